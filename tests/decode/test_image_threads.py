"""decode_image in many threads (UR-051): an image belongs to the thread that opened it; eight give what one gives."""

import io
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageFile

from tests.decode.pictures import encoded, noise, smooth
from torchstage.decode import decode_image, image_open

FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]


@pytest.fixture
def files(tmp_path):
    paths = []
    for number in range(48):
        format = FORMATS[number % len(FORMATS)]
        paths.append(tmp_path / f"{number}.{format.lower()}")
        image = smooth(50 + number, 60) if number % 2 else Image.fromarray(noise(seed=number))
        paths[-1].write_bytes(encoded(image, format))
    return paths


@pytest.mark.parametrize("options", [{}, {"size": 32}, {"size": (16, 16), "draft": True}, {"icc_profile": "to_srgb"}])
def test_eight_threads_give_what_one_gives(files, options):
    one = [decode_image(path, **options) for path in files]
    with ThreadPoolExecutor(8) as threads:
        many = list(threads.map(lambda path: decode_image(path, **options), files * 4))
    assert all(torch.equal(result, one[number % len(files)]) for number, result in enumerate(many))


def test_ur_051_an_image_is_opened_decoded_and_closed_by_one_thread(files, monkeypatch):
    seen: dict[int, set[int]] = {}
    kept = []

    def watched(stream):
        image = identified(stream)
        kept.append(image)  # its id stays its own
        seen[id(image)] = {threading.get_ident()}
        return image

    def noted(method):
        def note(self, *arguments):
            if id(self) in seen:
                seen[id(self)].add(threading.get_ident())
            return method(self, *arguments)

        return note

    identified = image_open.identified
    monkeypatch.setattr(image_open, "identified", watched)
    for name in ("load", "__exit__"):
        monkeypatch.setattr(ImageFile.ImageFile, name, noted(getattr(ImageFile.ImageFile, name)))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(decode_image, files))
    assert len(seen) == len(files)
    assert all(len(idents) == 1 for idents in seen.values())
    assert len(set().union(*seen.values())) > 1


def test_two_threads_that_decode_one_buffer_do_not_meet():
    data = bytearray(encoded(smooth(200, 200), "PNG"))
    expected = decode_image(data)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(decode_image, [data] * 64))
    assert all(torch.equal(result, expected) for result in results)


def num_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files in /proc")
def test_no_file_stays_open(files, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(files[1].read_bytes()[:200])
    decode_image(files[0])
    before = num_open_files()
    for path in files:
        decode_image(path)
    for source in (broken, tmp_path / "none.png", tmp_path):
        with pytest.raises((ValueError, OSError)):
            decode_image(source)
    assert num_open_files() == before


def test_threads_that_are_the_first_to_decode_know_all_formats(tmp_path):
    """Pillow learns its rarer formats at the first file that needs one; two threads that do so at once can miss one."""
    (tmp_path / "picture.pcx").write_bytes(encoded(smooth(9, 9), "PCX"))
    (tmp_path / "picture.jpg").write_bytes(encoded(smooth(9, 9), "JPEG"))
    (tmp_path / "picture.tga").write_bytes(encoded(smooth(9, 9), "TGA"))
    script = textwrap.dedent(
        """
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        from torchstage.decode import decode_image

        sys.setswitchinterval(1e-6)
        barrier = threading.Barrier(8)

        def decode(path):
            barrier.wait()
            return decode_image(path)

        with ThreadPoolExecutor(8) as threads:
            assert len(list(threads.map(decode, sys.argv[1:] * 8))) == 24
        """
    )
    command = [sys.executable, "-W", "error", "-c", script, *map(str, sorted(tmp_path.iterdir()))]
    subprocess.run(command, timeout=100, check=True)


def test_a_closed_stream_is_not_needed_by_the_result():
    data = io.BytesIO(encoded(noise())).getvalue()
    result = decode_image(data)
    del data
    assert result.sum() > 0
