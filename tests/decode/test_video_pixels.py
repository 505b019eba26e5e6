"""What the pixels are: size, turn, colour, against FFmpeg's own conversion."""

import io

import av
import numpy as np
import pytest
import torch

from tests.decode.clips import make_clip, numbers_in
from torchstage.decode import decode_video
from torchstage.decode.video_pixels import UPRIGHT, scaled, turned


def plain(clip: bytes, **options) -> torch.Tensor:
    """PyAV's shortest way to RGB."""
    with av.open(io.BytesIO(clip)) as container:
        pictures = [frame.to_ndarray(format="rgb24", **options) for frame in container.decode(video=0)]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p"])
def test_pixels_are_pyav_s_own(pix_fmt):
    clip = make_clip(6, noise=30, pix_fmt=pix_fmt)
    assert torch.equal(decode_video(clip).frames, plain(clip))


def test_scaled_pixels_are_pyav_s_own():
    clip = make_clip(6, noise=30)
    assert torch.equal(decode_video(clip, size=(24, 40)).frames, plain(clip, width=40, height=24))


@pytest.mark.parametrize(("width", "height"), [(63, 47), (17, 33), (65, 49)])
def test_odd_sizes(width, height):
    """Without chroma subsampling, which asks for even ones."""
    clip = make_clip(10, width=width, height=height, pix_fmt="yuv444p")
    frames, _ = decode_video(clip)
    assert frames.shape == (10, 3, height, width)
    assert numbers_in(frames) == list(range(10))
    assert decode_video(clip, size=(31, 15)).frames.shape == (10, 3, 31, 15)


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        (None, (48, 64)),
        (24, (24, 32)),
        (26, (26, 34)),
        (96, (96, 128)),
        ((10, 20), (10, 20)),
        ([10, 20], (10, 20)),
    ],
)
def test_size(size, shape):
    assert decode_video(make_clip(2), size=size).frames.shape[-2:] == shape


def test_an_int_is_the_shorter_side_whichever_it_is():
    assert scaled((48, 64), 24) == (24, 32)
    assert scaled((64, 48), 24) == (32, 24)
    assert scaled((1000, 1), 1) == (1000, 1)


def bright_corner(frame: torch.Tensor) -> tuple[int, int]:
    """(row, column) of the brightest quarter, each 0 or 1."""
    height, width = frame.shape[-2:]
    quarters = frame.double().mean(0)[: height // 2 * 2, : width // 2 * 2].reshape(2, height // 2, 2, width // 2)
    brightest = int(quarters.mean((1, 3)).argmax())
    return brightest // 2, brightest % 2


# FFmpeg's angles count against the clock: 90 means that the stored picture is to be turned left.
@pytest.mark.parametrize(("rotation", "shape", "corner"), [
    (0, (48, 64), (0, 0)),
    (90, (64, 48), (1, 0)),
    (180, (48, 64), (1, 1)),
    (-90, (64, 48), (0, 1)),
])  # fmt: skip
def test_rotation_is_applied(rotation, shape, corner):
    clip = make_clip(4, rotation=rotation)
    with av.open(io.BytesIO(clip)) as container:
        assert next(container.decode(video=0)).rotation % 360 == rotation % 360
    frames, _ = decode_video(clip)
    assert frames.shape[-2:] == shape
    assert bright_corner(frames[0]) == corner


def test_rotation_can_be_left_out():
    frames, _ = decode_video(make_clip(4, rotation=90), rotate=False)
    assert frames.shape[-2:] == (48, 64)
    assert bright_corner(frames[0]) == (0, 0)


def test_size_means_the_turned_frame():
    clip = make_clip(4, rotation=90)
    assert decode_video(clip, size=(20, 10)).frames.shape[-2:] == (20, 10)
    assert decode_video(clip, size=24).frames.shape[-2:] == (32, 24)
    assert bright_corner(decode_video(clip, size=(20, 10)).frames[0]) == (1, 0)


@pytest.mark.parametrize("rotation", [45, 10])
def test_other_angles_are_left_as_stored(rotation):
    assert decode_video(make_clip(4, rotation=rotation)).frames.shape[-2:] == (48, 64)


def test_all_eight_turns_and_mirrors():
    """Each (a, b, c, d) moves the pixel at (x, y) to (a x + c y, b x + d y), as FFmpeg defines the display matrix."""
    picture = torch.arange(6).reshape(1, 2, 3)
    rows = [(False, y, x) for y in (False, True) for x in (False, True)]
    seen = {
        tuple(turned(picture, (transpose, y, x)).flatten().tolist()) for transpose in (False, True) for _, y, x in rows
    }
    assert len(seen) == 8
    assert torch.equal(turned(picture, UPRIGHT), picture)


def test_a_stream_that_changes_its_size_keeps_the_first():
    """Raw streams may be joined: the second part is scaled to the pictures of the first."""
    joined = make_clip(5, container="h264") + make_clip(5, container="h264", width=128, height=96)
    frames, _ = decode_video(joined)
    assert frames.shape == (10, 3, 48, 64)
    assert numbers_in(frames) == [0, 1, 2, 3, 4] * 2


def test_grey_becomes_rgb():
    frames, _ = decode_video(make_clip(4, pix_fmt="gray"))
    assert frames.shape == (4, 3, 48, 64)
    assert torch.equal(frames[:, 0], frames[:, 1])
