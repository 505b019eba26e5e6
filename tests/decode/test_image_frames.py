"""decode_image on files with several frames (UR-049): the first frame, how many there are, one warning a process."""

import io
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from tests.decode.pictures import encoded, noise, opened, smooth, tensor
from torchstage import StageLoader
from torchstage.decode import decode_image, image, image_info


def animation(format: str, num_frames: int = 3) -> bytes:
    frames = [Image.fromarray(noise(seed=number)) for number in range(num_frames)]
    options = {"lossless": True} if format == "WEBP" else {}
    return encoded(frames[0], format, save_all=True, append_images=frames[1:], duration=50, **options)


ANIMATED = ["GIF", "WEBP", "PNG", "TIFF"]


@pytest.fixture
def fresh(monkeypatch):
    """As in a process that has not warned yet."""
    monkeypatch.setattr(image, "_frames", image._UnusedFrames())


@pytest.fixture
def said(monkeypatch):
    frames = image._UnusedFrames()
    frames._said = True
    monkeypatch.setattr(image, "_frames", frames)


@pytest.mark.parametrize("format", ANIMATED)
def test_ur_049_the_first_frame_is_decoded(format, said):
    data = animation(format)
    assert torch.equal(decode_image(data), tensor(opened(data).convert("RGB")))
    if format != "GIF":  # which has a palette
        assert torch.equal(decode_image(data), tensor(noise(seed=0)))


@pytest.mark.parametrize("format", ANIMATED)
@pytest.mark.parametrize("num_frames", [1, 3])
def test_ur_049_the_number_of_frames_can_be_had(format, num_frames):
    assert image_info(animation(format, num_frames)).num_frames == num_frames


@pytest.mark.parametrize("format", ANIMATED)
def test_ur_049_the_first_such_file_is_named_in_a_warning(format, fresh, tmp_path):
    path = tmp_path / f"dance.{format.lower()}"
    path.write_bytes(animation(format))
    with pytest.warns(UserWarning, match=r"dance\.\w+ has 3 frames, of which the first is used") as seen:
        decode_image(path)
    assert [warning.filename for warning in seen] == [__file__]
    decode_image(path)  # the next one would be an error here


def test_the_warning_comes_after_the_picture_so_that_it_is_not_lost(fresh, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="has 3 frames"):
            decode_image(animation("GIF"))
    assert decode_image(animation("GIF")).shape == (3, 20, 40)


@pytest.mark.parametrize("data", [animation("GIF", 1), encoded(smooth(9, 9), "JPEG")], ids=["GIF", "JPEG"])
def test_a_still_picture_says_nothing(data, fresh):
    decode_image(data)


def test_a_photograph_with_a_depth_map_behind_it_says_nothing(fresh):
    """MPO, as telephones write it: what is behind the picture is no frame of it."""
    data = encoded(smooth(20, 40), "MPO", save_all=True, append_images=[smooth(5, 10)])
    assert image_info(data).num_frames == 2
    assert decode_image(data).shape == (3, 20, 40)


def test_a_second_frame_that_is_damaged_does_not_harm_the_first(fresh):
    data = animation("GIF")
    one = len(animation("GIF", 1))
    assert torch.equal(decode_image(data[: one + 10]), decode_image(animation("GIF", 1)))


def test_ur_049_eight_threads_warn_once(fresh):
    data = animation("GIF")
    barrier = threading.Barrier(8)

    def decode():
        barrier.wait()
        decode_image(data)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=decode) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seen) == 1


def test_ur_049_a_run_of_two_epochs_warns_once(tmp_path):
    """In a process of its own, with Python's own filters."""
    (tmp_path / "dance.gif").write_bytes(animation("GIF"))
    script = textwrap.dedent(
        """
        import sys
        from torchstage import StageLoader
        from torchstage.decode import decode_image

        class Dances:
            def __len__(self):
                return 32

            def __getitem__(self, index):
                return decode_image(sys.argv[1])

        for _ in range(2):
            for batch in StageLoader(Dances(), batch_size=8, num_workers=4):
                assert batch.shape == (8, 3, 20, 40)
        """
    )
    command = [sys.executable, "-W", "always", "-c", script, str(tmp_path / "dance.gif")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stderr.count("has 3 frames") == 1


def test_the_information_of_a_file_is_right():
    info = image_info(encoded(noise(channels=4), "PNG", icc_profile=b"x"))
    assert (info.format, info.mode, info.width, info.height) == ("PNG", "RGBA", 40, 20)
    assert (info.orientation, info.num_frames, info.has_alpha, info.has_icc_profile) == (1, 1, True, True)
    grey = image_info(encoded(np.zeros((3, 5), np.uint16)))
    assert grey.mode in ("I;16", "I")  # as the version of Pillow has it
    assert (grey.has_alpha, grey.has_icc_profile) == (False, False)


def test_the_information_costs_no_pixels(monkeypatch):
    def fail(self):
        raise AssertionError("decoded")

    data = encoded(smooth(9, 9), "JPEG")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    assert image_info(data).width == 9


def test_frames_of_a_loader_are_those_of_pillow(said):
    files = [animation("GIF", 2), animation("WEBP", 2)] * 8
    loader = StageLoader([decode_image(file) for file in files], batch_size=16, num_workers=2)
    expected = torch.stack([tensor(Image.open(io.BytesIO(file)).convert("RGB")) for file in files])
    assert torch.equal(next(iter(loader)), expected)
