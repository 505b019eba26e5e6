"""Which frames decode_video chooses, and when it says they are shown."""

import subprocess
import sys

import pytest
import torch
from torch.utils.data import default_collate

from tests.decode.clips import RATE, TICKS, make_clip, number_in, numbers_in, times_of
from torchstage.decode import DecodeError, decode_video

CONTAINERS = [
    ("mp4", "libx264", 0),
    ("mp4", "libx264", 3),
    ("matroska", "libx264", 3),
    ("mpegts", "libx264", 3),
    ("flv", "libx264", 3),
    ("avi", "mpeg4", 0),
    ("webm", "libvpx-vp9", 0),
    ("mp4", "mpeg4", 0),
    ("mpeg", "mpeg2video", 0),
]


@pytest.mark.parametrize(("container", "codec", "num_b_frames"), CONTAINERS)
@pytest.mark.parametrize("key_interval", [4, 250])
def test_every_frame_comes_once_and_in_order(container, codec, num_b_frames, key_interval):
    clip = make_clip(container=container, codec=codec, num_b_frames=num_b_frames, key_interval=key_interval)
    frames, seconds = decode_video(clip)
    assert frames.shape == (30, 3, 48, 64)
    assert frames.dtype == torch.uint8
    assert frames.is_contiguous()
    assert numbers_in(frames) == list(range(30))
    assert seconds.dtype == torch.float64
    assert seconds.tolist() == times_of(clip)


@pytest.mark.parametrize(("container", "codec", "num_b_frames"), CONTAINERS)
@pytest.mark.parametrize("key_interval", [4, 250])
def test_a_few_frames_are_the_same_as_among_all(container, codec, num_b_frames, key_interval):
    """Seeking, leaving out frames that nobody needs, and stopping early change no pixel."""
    clip = make_clip(container=container, codec=codec, num_b_frames=num_b_frames, key_interval=key_interval, noise=20)
    every = decode_video(clip)
    few = decode_video(clip, num_frames=5)
    places = [every.pts_seconds.tolist().index(seconds) for seconds in few.pts_seconds.tolist()]
    assert places == sorted(places)
    assert torch.equal(few.frames, every.frames[places])


@pytest.mark.parametrize("key_interval", [4, 250])
def test_evenly_is_the_middle_of_equal_parts(key_interval):
    clip = make_clip(30, key_interval=key_interval, num_b_frames=2)
    assert numbers_in(decode_video(clip, num_frames=30).frames) == list(range(30))
    assert numbers_in(decode_video(clip, num_frames=1).frames) == [15]
    assert numbers_in(decode_video(clip, num_frames=3).frames) == [5, 15, 25]
    assert numbers_in(decode_video(clip, num_frames=4).frames) == [3, 11, 18, 26]


def test_a_time_that_came_back_finds_its_frame_again():
    clip = make_clip(num_b_frames=3)
    every = decode_video(clip)
    again = decode_video(clip, timestamps=every.pts_seconds.tolist())
    assert torch.equal(again.frames, every.frames)
    assert torch.equal(again.pts_seconds, every.pts_seconds)


def test_a_frame_is_shown_until_the_next_one():
    clip = make_clip(num_b_frames=3)
    frames, seconds = decode_video(clip, timestamps=[0.0, 0.999 / RATE, 1.001 / RATE, 29.999 / RATE])
    assert numbers_in(frames) == [0, 0, 1, 29]
    assert seconds.tolist() == [0.0, 0.0, 1 / RATE, 29 / RATE]


def test_frames_stand_in_the_order_of_the_times_that_were_asked_for():
    frames, _ = decode_video(make_clip(key_interval=4), timestamps=[0.9, 0.1, 0.5, 0.1])
    assert numbers_in(frames) == [27, 3, 15, 3]


GAPS_AND_BURSTS = [0, 1, 2, 3, 40, 41, 43, 90, 95, 96, 97, 98, 200, 210, 211]


@pytest.mark.parametrize("num_b_frames", [0, 3])
@pytest.mark.parametrize("key_interval", [4, 250])
@pytest.mark.parametrize("start", [0, 5 * RATE])
@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_variable_rate_is_chosen_by_time(num_b_frames, key_interval, start, container):
    """Twenty times in a clip with gaps and bursts, which begins at 0 or at 5 s, against a search by hand."""
    ticks = [(start + k) * TICKS for k in GAPS_AND_BURSTS]
    clip = make_clip(times=ticks, num_b_frames=num_b_frames, key_interval=key_interval, container=container)
    shown = times_of(clip)
    assert shown[0] == pytest.approx(start / RATE, abs=1e-3)
    wanted = [shown[0] + k * (shown[-1] - shown[0]) / 19 for k in range(20)]
    frames, seconds = decode_video(clip, timestamps=wanted)
    right = [max(k for k, at in enumerate(shown) if at <= t) for t in wanted]
    assert numbers_in(frames) == right
    assert seconds.tolist() == [shown[k] for k in right]


def test_a_long_frame_is_given_for_each_time_that_falls_on_it():
    clip = make_clip(times=[0, TICKS, 20 * TICKS, 21 * TICKS])
    frames, seconds = decode_video(clip, num_frames=4)
    assert numbers_in(frames) == [1, 1, 1, 1]
    assert seconds.tolist() == [1 / RATE] * 4


@pytest.mark.parametrize("wanted", [[0.2, 1.0], [0.2, 7.5]])
def test_a_time_past_the_end_is_an_error_that_names_it(wanted):
    with pytest.raises(DecodeError, match=rf"no frame is shown at {wanted[1]:g} s; the clip runs from 0 s up to 1 s"):
        decode_video(make_clip(30), timestamps=wanted)


def test_a_time_before_the_first_frame_is_an_error():
    clip = make_clip(times=[(150 + k) * TICKS for k in range(10)])
    with pytest.raises(DecodeError, match=r"no frame is shown at 0 s; the clip runs from 5 s"):
        decode_video(clip, timestamps=[0.0])


def test_times_outside_repeat_the_nearest_frame_only_when_told():
    clip = make_clip(times=[(150 + k) * TICKS for k in range(10)])
    frames, seconds = decode_video(clip, timestamps=[0.0, 5.1, 99.0], missing="repeat")
    assert numbers_in(frames) == [0, 3, 9]
    assert seconds.tolist() == [5.0, 5.1, 159 / 30]


def test_times_outside_are_dropped_only_when_told():
    frames, _ = decode_video(make_clip(), timestamps=[9.0, 0.5, -1.0, 0.1], missing="drop")
    assert numbers_in(frames) == [15, 3]
    with pytest.raises(DecodeError, match="no frame is shown at 9 s"):
        decode_video(make_clip(), timestamps=[9.0], missing="drop")


def test_fewer_frames_than_asked_for():
    clip = make_clip(5)
    with pytest.raises(DecodeError, match="16 frames were asked for, the clip has 5"):
        decode_video(clip, num_frames=16)
    assert numbers_in(decode_video(clip, num_frames=16, missing="drop").frames) == [0, 1, 2, 3, 4]
    repeated = numbers_in(decode_video(clip, num_frames=10, missing="repeat").frames)
    assert repeated == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_a_raw_stream_without_times_is_counted():
    """Such a stream says at most its rate; FFmpeg assumes 25 frames a second where it says none."""
    clip = make_clip(container="h264", num_b_frames=2)
    frames, seconds = decode_video(clip)
    assert numbers_in(frames) == list(range(30))
    assert seconds.tolist() == pytest.approx([k * seconds[1].item() for k in range(30)])
    assert numbers_in(decode_video(clip, num_frames=3).frames) == [5, 15, 25]


def test_a_clip_on_disk_is_the_same_as_in_memory(tmp_path):
    clip = make_clip()
    path = tmp_path / "a clip: 100%d.mp4"
    path.write_bytes(clip)
    for source in (path, str(path), bytearray(clip), memoryview(clip)):
        assert torch.equal(decode_video(source, num_frames=3).frames, decode_video(clip, num_frames=3).frames)


def test_clips_collate_to_a_batch():
    batch = default_collate([decode_video(make_clip(n), num_frames=4) for n in (8, 12)])
    assert batch.frames.shape == (2, 4, 3, 48, 64)
    assert batch.pts_seconds.shape == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"num_frames": 0}, ValueError, "num_frames must be at least 1, got 0"),
        ({"num_frames": 2.5}, TypeError, "num_frames must be an int, got 2.5"),
        ({"num_frames": True}, TypeError, "num_frames must be an int, got True"),
        ({"num_frames": 1, "timestamps": [0.0]}, ValueError, "num_frames or timestamps, not both"),
        ({"timestamps": []}, ValueError, "timestamps is empty"),
        ({"timestamps": [float("nan")]}, ValueError, "timestamps must be finite"),
        ({"size": 0}, ValueError, "size must be None, an int or"),
        ({"size": (1, 2, 3)}, ValueError, "size must be None, an int or"),
        ({"missing": "skip"}, ValueError, "missing must be one of 'raise', 'repeat', 'drop', got 'skip'"),
        ({"damaged": "skip"}, ValueError, "damaged must be one of"),
        ({"backend": "cv2"}, ValueError, "backend must be one of"),
    ],
)
def test_arguments_that_make_no_sense_are_named(arguments, error, says):
    with pytest.raises(error, match=says) as caught:
        decode_video(b"never looked at", **arguments)
    assert not isinstance(caught.value, DecodeError)


def test_a_source_of_another_type_is_named():
    with pytest.raises(TypeError, match="must be bytes or a path, got int"):
        decode_video(7)  # type: ignore[arg-type]


def test_without_pyav_the_error_says_what_to_install():
    script = (
        "import sys; sys.modules['av'] = None\n"
        "from torchstage.decode import decode_video\n"
        "try: decode_video(b'x')\n"
        "except ImportError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "decode_video needs PyAV: pip install 'torchstage[video]'"


def test_the_clips_say_which_frame_is_which():
    """The tests above rest on it: the picture of frame k is read as k."""
    frames = decode_video(make_clip(39)).frames
    assert [number_in(frame) for frame in frames] == list(range(39))
