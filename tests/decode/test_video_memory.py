"""Nothing is left behind, however a decode ends: files, containers, decoders, memory."""

import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.decode.clips import damaged, make_clip
from torchstage.decode import DecodeError, decode_video, video_pixels

NUM_OPENS = int(os.environ.get("TORCHSTAGE_VIDEO_OPENS", "2000"))  # a long run takes 10,000
NUM_THREADS = 8
MAX_GROWTH_MIB = 50


class Cancelled(BaseException):
    """As KeyboardInterrupt: no `except Exception` sees it."""


@pytest.fixture
def clips(tmp_path) -> tuple[Path, Path]:
    good, bad = tmp_path / "good.mp4", tmp_path / "bad.mp4"
    clip = make_clip(20, width=160, height=120, noise=4, key_interval=5, sound=True)
    good.write_bytes(clip)
    bad.write_bytes(damaged(clip, 5, 15))
    return good, bad


def cancel_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The `number`-th picture of this thread is never finished."""
    paint, seen = video_pixels.Painter.paint, threading.local()

    def interrupted(painter, frame):
        seen.count = getattr(seen, "count", 0) + 1
        if seen.count % number == 0:
            raise Cancelled
        return paint(painter, frame)

    monkeypatch.setattr(video_pixels.Painter, "paint", interrupted)


def test_a_cancelled_decode_closes_its_file(monkeypatch, clips):
    """The test's fixture looks for files that stayed open."""
    process = psutil.Process()
    before = process.num_fds()
    cancel_at(monkeypatch, 3)
    for _ in range(5):
        with pytest.raises(Cancelled) as caught:
            decode_video(clips[0])
        assert process.num_fds() == before  # while the traceback still holds the inner frames
        del caught


def test_errors_that_are_kept_hold_no_memory(clips):
    kept = []
    process = psutil.Process()
    for k in range(60):
        if k == 20:
            before = process.memory_info().rss
        with pytest.raises(DecodeError) as caught:
            decode_video(clips[1])
        kept.append(caught.value)
    assert (process.memory_info().rss - before) / 2**20 < 10
    assert len(kept) == 60


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_thousands_of_opens_from_eight_threads_lose_nothing(monkeypatch, clips):
    """Three frames of each; every tenth file is corrupt, and every hundredth picture is cancelled."""
    cancel_at(monkeypatch, 100)
    process = psutil.Process()

    def open_many(first: int, last: int) -> Counter[str]:
        """A thread's share; nothing is kept of a decode but its outcome."""
        return Counter(open_one(number) for number in range(first, last, NUM_THREADS))

    def open_one(number: int) -> str:
        try:
            decode_video(clips[number % 10 == 0], num_frames=3)
        except DecodeError:
            return "corrupt"
        except Cancelled:
            return "cancelled"
        return "good"

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(open_many, range(NUM_THREADS), [400] * NUM_THREADS))
        rss, descriptors = process.memory_info().rss, process.num_fds()
        found = sum(pool.map(open_many, range(NUM_THREADS), [NUM_OPENS] * NUM_THREADS), Counter[str]())
        growth_mib = (process.memory_info().rss - rss) / 2**20
        assert process.num_fds() == descriptors
    assert found.total() == NUM_OPENS
    assert found["corrupt"] == NUM_OPENS // 10  # they fail before their hundredth picture
    assert found["cancelled"] > 0
    assert growth_mib < MAX_GROWTH_MIB, f"{growth_mib:.1f} MiB more after {NUM_OPENS} opens"
    print(f"{NUM_OPENS} opens: {growth_mib:.1f} MiB more")


@pytest.mark.stress
def test_eight_threads_get_the_frames_of_one(clips):
    alone = decode_video(clips[0])
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for frames, seconds in pool.map(decode_video, [clips[0]] * 64):
            assert (frames == alone.frames).all()
            assert (seconds == alone.pts_seconds).all()


def test_no_thread_is_started_by_a_decode(clips):
    """FFmpeg's own threads, of the codec and of the scaler, would be seen by the system."""
    process = psutil.Process()
    decode_video(clips[0], size=(30, 40))  # torch may start its own once
    before, seen = process.num_threads(), []
    paint = video_pixels.Painter.paint

    class Counting(video_pixels.Painter):
        def paint(self, frame):
            picture = paint(self, frame)
            seen.append(process.num_threads())
            return picture

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchstage.decode.video_pyav.Painter", Counting)
        decode_video(clips[0], size=(30, 40))
    assert seen
    assert max(seen) == before
