"""What decode_video says of files that are no video, of damaged ones, and of the files of the system."""

import re

import pytest

from tests.decode.clips import damaged, index_first, make_clip, numbers_in, sound_only, without_index
from torchstage.decode import DecodeError, decode_video

FAULTY = {
    "zero bytes": (b"", "the file is empty (zero bytes)"),
    "text": (b"this is no video at all\n" * 50, "FFmpeg: Invalid data found when processing input"),
    "one byte": (b"\0", "FFmpeg: "),
    "without its index": (without_index(make_clip()), "FFmpeg: Invalid data found when processing input"),
    "sound only": (sound_only(), "there is no video stream; the file holds: audio"),
    "cut in the index": (index_first(make_clip())[:200], ""),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_file_that_is_no_video_is_one_clear_error(kind, tmp_path):
    content, says = FAULTY[kind]
    path = tmp_path / "clip.mp4"
    path.write_bytes(content)
    with pytest.raises(DecodeError, match=f"^{re.escape(f'{path}: {says}')}"):
        decode_video(path, num_frames=4)
    with pytest.raises(DecodeError, match=f"^<{len(content)} bytes>: {re.escape(says)}"):
        decode_video(content, num_frames=4)


def test_a_wrong_extension_is_no_fault(tmp_path):
    """FFmpeg looks at the content."""
    path = tmp_path / "clip.txt"
    path.write_bytes(make_clip(container="matroska"))
    assert numbers_in(decode_video(path, num_frames=4).frames) == [3, 11, 18, 26]


@pytest.mark.parametrize("sound", [False, True])
def test_sound_makes_no_difference(sound):
    assert numbers_in(decode_video(make_clip(sound=sound), num_frames=3).frames) == [5, 15, 25]


def test_a_one_second_avi_is_read_whole():
    frames, _ = decode_video(make_clip(30, container="avi", codec="mpeg4"))
    assert numbers_in(frames) == list(range(30))


def test_a_file_that_is_not_there_stays_the_system_s_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        decode_video(tmp_path / "nowhere.mp4")
    with pytest.raises(OSError, match="directory"):
        decode_video(tmp_path)
    assert not issubclass(OSError, DecodeError)


def test_a_clip_cannot_make_ffmpeg_open_another_file(tmp_path):
    """A playlist under the name of a clip: what it points at is not read, from memory or from disk."""
    other = tmp_path / "other.ts"
    other.write_bytes(make_clip(container="mpegts"))
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile://{other}\n#EXT-X-ENDLIST\n".encode()
    with pytest.raises(DecodeError):
        decode_video(playlist)
    path = tmp_path / "clip.mp4"
    path.write_bytes(playlist.replace(f"file://{other}".encode(), b"http://127.0.0.1:9/x.ts"))
    with pytest.raises(DecodeError):
        decode_video(path)


TRUNCATED = {
    "mp4": lambda: index_first(make_clip(noise=20)),
    "matroska": lambda: make_clip(90, container="matroska", noise=20),
}


@pytest.mark.parametrize("container", TRUNCATED)
def test_a_clip_cut_short_is_an_error_unless_it_may_be_concealed(container):
    clip = TRUNCATED[container]()
    half = clip[: len(clip) // 2]
    with pytest.raises(DecodeError, match="the clip is damaged"):
        decode_video(half, num_frames=4)
    frames, seconds = decode_video(half, damaged="conceal")
    whole = decode_video(clip)
    assert 1 <= len(frames) < len(whole.frames)
    assert seconds.tolist() == whole.pts_seconds[: len(frames)].tolist()


def rough_clip(num_frames: int = 40, **options) -> bytes:
    """Enough detail that spoiled data cannot pass for good data."""
    return make_clip(num_frames, width=320, height=240, noise=4, **options)


# FFmpeg's decoders of HEVC and AV1 report next to nothing, so they cannot stand here.
CODECS = [("mp4", "libx264"), ("mp4", "mpeg4"), ("webm", "libvpx-vp9")]


@pytest.mark.parametrize(("container", "codec"), CODECS)
def test_damaged_packets_are_an_error_that_tells_where(container, codec):
    clip = damaged(rough_clip(container=container, codec=codec), first=20, last=22)
    with pytest.raises(DecodeError, match=r"the clip is damaged at 0\.[67]\d* s: FFmpeg"):
        decode_video(clip)


def test_damaged_packets_that_nothing_wanted_needs_are_not_looked_at():
    clip = damaged(rough_clip(key_interval=10), first=21, last=24)
    frames, _ = decode_video(clip, timestamps=[5 / 30, 35 / 30])
    assert numbers_in(frames) == [5, 35]
    with pytest.raises(DecodeError, match="the clip is damaged"):
        decode_video(clip, timestamps=[5 / 30, 28 / 30])


@pytest.mark.parametrize(("container", "codec"), CODECS)
def test_damage_may_be_concealed(container, codec):
    clip = damaged(rough_clip(container=container, codec=codec, key_interval=10), first=21, last=24)
    frames, seconds = decode_video(clip, damaged="conceal")
    numbers = dict(zip((round(30 * at) for at in seconds.tolist()), numbers_in(frames), strict=True))
    untouched = [*range(20), *range(30, 40)]
    assert {k: numbers.get(k) for k in untouched} == {k: k for k in untouched}


def test_a_clip_of_which_nothing_can_be_decoded_is_an_error_whatever_the_policy():
    clip = damaged(rough_clip(4, container="webm", codec="libvpx-vp9"), 0, 3)
    with pytest.raises(DecodeError, match="the clip is damaged"):
        decode_video(clip)
    with pytest.raises(DecodeError, match="no frame could be decoded"):
        decode_video(clip, damaged="conceal")
    with pytest.raises(DecodeError, match="could be decoded"):
        decode_video(clip, num_frames=2, damaged="conceal")


def test_an_error_keeps_neither_decoder_nor_pictures_alive():
    """A loader that skips bad samples may keep their errors."""
    with pytest.raises(DecodeError) as caught:
        decode_video(damaged(rough_clip(), first=20, last=22))
    assert [entry.name for entry in caught.traceback][-1] == "decode_video"
    assert caught.value.__cause__ is None or caught.value.__cause__.__traceback__ is None


def test_the_cause_is_ffmpeg_s_own_error():
    with pytest.raises(DecodeError) as caught:
        decode_video(b"this is no video at all\n" * 50)
    assert type(caught.value.__cause__).__name__ == "InvalidDataError"
