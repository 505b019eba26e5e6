"""The torchcodec backend: the same frames by the same times; a clear error where it is not installed."""

import subprocess
import sys

import pytest
import torch

from tests.decode.clips import make_clip, numbers_in, times_of, without_index
from torchstage.decode import DecodeError, decode_video


def is_there() -> bool:
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, RuntimeError, OSError):  # missing, or FFmpeg's libraries are
        return False
    return True


needs_torchcodec = pytest.mark.skipif(not is_there(), reason="needs torchcodec and FFmpeg's libraries")


def test_without_torchcodec_the_error_says_what_to_install():
    script = (
        "import sys; sys.modules['torchcodec'] = None\n"
        "from torchstage.decode import decode_video\n"
        "try: decode_video(b'x', backend='torchcodec')\n"
        "except ImportError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.startswith("decode_video: backend='torchcodec' needs torchcodec and FFmpeg's libraries: pip")


def test_torchcodec_cannot_leave_rotation_out():
    with pytest.raises(ValueError, match="torchcodec always applies the file's rotation"):
        decode_video(b"x", rotate=False, backend="torchcodec")


@needs_torchcodec
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_the_frames_are_those_of_pyav(container, tmp_path):
    clip = make_clip(30, container=container, num_b_frames=3, key_interval=10, noise=3)
    path = tmp_path / "clip"
    path.write_bytes(clip)
    for source in (clip, path):
        ours, theirs = decode_video(source), decode_video(source, backend="torchcodec")
        assert torch.equal(theirs.pts_seconds, ours.pts_seconds)
        assert numbers_in(theirs.frames) == numbers_in(ours.frames)
        assert theirs.frames.dtype == torch.uint8
    for asked in ({"num_frames": 4}, {"timestamps": times_of(clip)}):
        ours, theirs = decode_video(clip, **asked), decode_video(clip, **asked, backend="torchcodec")
        assert torch.equal(theirs.pts_seconds, ours.pts_seconds)


@needs_torchcodec
def test_size_and_rotation():
    clip = make_clip(4, rotation=90)
    assert decode_video(clip, backend="torchcodec").frames.shape == (4, 3, 64, 48)
    assert decode_video(clip, size=24, backend="torchcodec").frames.shape == (4, 3, 32, 24)
    assert decode_video(clip, size=(10, 20), backend="torchcodec").frames.shape == (4, 3, 10, 20)


@needs_torchcodec
def test_the_policies_are_the_same():
    clip = make_clip(5)
    with pytest.raises(DecodeError, match="no frame is shown at 9 s"):
        decode_video(clip, timestamps=[9.0], backend="torchcodec")
    with pytest.raises(DecodeError, match="16 frames were asked for"):
        decode_video(clip, num_frames=16, backend="torchcodec")
    repeated = decode_video(clip, timestamps=[-1.0, 0.1, 9.0], missing="repeat", backend="torchcodec")
    assert numbers_in(repeated.frames) == [0, 3, 4]
    assert numbers_in(decode_video(clip, timestamps=[0.1, 9.0], missing="drop", backend="torchcodec").frames) == [3]


@needs_torchcodec
@pytest.mark.parametrize("clip", [b"", b"no video at all" * 50, without_index(make_clip(4))])
def test_a_file_that_is_no_video_is_a_decode_error(clip):
    with pytest.raises(DecodeError, match="bytes>: "):
        decode_video(clip, backend="torchcodec")
