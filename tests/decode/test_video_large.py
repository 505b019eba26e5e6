"""Files too large to keep their packets in memory: the header is believed, and the container seeks."""

import random

import pytest
import torch

from tests.decode.clips import damaged, index_first, make_clip, numbers_in, times_of
from torchstage.decode import DecodeError, decode_video, video_packets, video_pyav

CONTAINERS = [
    ("mp4", "libx264", 0),
    ("mp4", "libx264", 3),
    ("matroska", "libx264", 3),
    ("mpegts", "libx264", 3),
    ("flv", "libx264", 3),
    ("avi", "mpeg4", 0),
    ("webm", "libvpx-vp9", 0),
]


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(video_pyav, "LARGEST_IN_MEMORY", 0)


@pytest.mark.parametrize("key_interval", [4, 250])
@pytest.mark.parametrize(("container", "codec", "num_b_frames"), CONTAINERS)
@pytest.mark.parametrize("seeks_early", [False, True])
def test_frames_are_those_of_a_file_in_memory(monkeypatch, container, codec, num_b_frames, key_interval, seeks_early):
    if seeks_early:  # also where there is no index, and the frames lie near
        monkeypatch.setattr(video_packets, "LONGEST_GROUP_SECONDS", 0.1)
    clip = make_clip(
        38, container=container, codec=codec, num_b_frames=num_b_frames, key_interval=key_interval, noise=3
    )
    shown = times_of(clip)
    draw = random.Random(0)
    wanted = [draw.uniform(shown[0], shown[-1]) for _ in range(6)] + [shown[0], shown[-1]]
    frames, seconds = decode_video(clip, timestamps=wanted)
    right = [max(k for k, at in enumerate(shown) if at <= t) for t in wanted]
    assert numbers_in(frames) == right
    assert seconds.tolist() == [shown[k] for k in right]
    assert decode_video(clip).pts_seconds.tolist() == shown


def test_a_seek_is_made_where_it_saves_work(monkeypatch):
    """Key frames every 10 frames, two wanted frames far apart: most packets are never read."""
    read = []
    plain = video_packets.PacketsOnDisk.read
    monkeypatch.setattr(video_packets.PacketsOnDisk, "read", lambda *args, **how: read.append(1) or plain(*args, **how))
    decode_video(make_clip(120, key_interval=10, noise=3), timestamps=[0.05, 3.9])
    assert len(read) < 30
    read.clear()
    decode_video(make_clip(120, key_interval=250, noise=3), timestamps=[0.05, 3.9])
    assert len(read) > 110


def test_evenly_follows_the_header():
    assert numbers_in(decode_video(make_clip(30), num_frames=3).frames) == [5, 15, 25]
    assert numbers_in(decode_video(make_clip(30, container="matroska"), num_frames=4).frames) == [3, 11, 18, 26]


def test_fewer_frames_than_asked_for_are_told_where_the_header_counts_them():
    with pytest.raises(DecodeError, match="16 frames were asked for, the clip has 5"):
        decode_video(make_clip(5), num_frames=16)


def test_a_header_that_promises_too_much_repeats_nothing():
    """Matroska's header tells the length of the longest stream: here, of a file that was cut."""
    clip = make_clip(120, container="matroska", noise=20)
    half = clip[: len(clip) // 2]
    with pytest.raises(DecodeError, match="no frame is shown at"):
        decode_video(half, num_frames=8)
    frames, seconds = decode_video(half, num_frames=8, missing="drop")
    assert 1 <= len(frames) < 8
    assert len(set(seconds.tolist())) == len(frames)
    again, _ = decode_video(half, num_frames=8, missing="repeat")
    assert len(again) == 8
    assert torch.equal(again[: len(frames)], frames)


def test_damage_is_an_error_unless_it_may_be_concealed():
    clip = damaged(make_clip(40, width=320, height=240, noise=4), 20, 22)
    with pytest.raises(DecodeError, match=r"the clip is damaged at 0\.[67]"):
        decode_video(clip, timestamps=[1.2])
    assert len(decode_video(clip, damaged="conceal").frames) > 30


def test_a_cut_mp4_is_an_error_where_frames_are_missing():
    clip = index_first(make_clip(60, noise=20))
    with pytest.raises(DecodeError):
        decode_video(clip[: len(clip) // 2], num_frames=4)
