"""FFmpeg's log: our decodes are silent in it, and the user's set-up is not touched."""

import io
import logging
import threading
from collections.abc import Iterator

import av
import av.logging
import pytest

from tests.decode.clips import damaged, make_clip
from torchstage.decode import decode_video


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The user's set-up: PyAV's hook is on for warnings, and sends them to this handler."""
    logger, handler, level = logging.getLogger("libav"), Kept(), av.logging.get_level()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    av.logging.set_level(av.logging.WARNING)
    yield handler
    av.logging.set_level(level)
    logger.removeHandler(handler)
    logger.setLevel(before[0])
    logger.propagate = before[1]


@pytest.fixture(scope="module")
def chatty() -> bytes:
    """FFmpeg has something to say about many of its frames."""
    return damaged(make_clip(40, width=320, height=240, noise=4), 5, 35)


def decode_plainly(clip: bytes) -> None:
    with av.open(io.BytesIO(clip)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for _ in container.decode(video=0):
            pass


def test_our_decodes_say_nothing_through_the_hook(kept, chatty):
    for _ in range(3):
        decode_video(chatty, damaged="conceal")
    assert kept.records == []


def test_the_hook_hears_the_same_clip_when_the_user_decodes_it(kept, chatty):
    decode_plainly(chatty)
    assert kept.records


def test_the_user_s_set_up_is_as_before(kept, chatty):
    decode_video(chatty, damaged="conceal")
    assert av.logging.get_level() == av.logging.WARNING
    decode_plainly(chatty)
    assert kept.records


def test_a_user_s_decode_is_heard_while_ours_run_in_other_threads(kept, chatty):
    """The option belongs to one decoder: there is nothing to switch off and on again, so nothing to race for."""
    decode_plainly(chatty)
    av.logging.set_skip_repeated(False)
    alone = len(kept.records)
    kept.records.clear()
    decode_plainly(chatty)
    alone = len(kept.records)
    kept.records.clear()
    ours_begin, user_done = threading.Barrier(4), threading.Event()

    def decode_ours() -> None:
        ours_begin.wait()
        while True:
            decode_video(chatty, damaged="conceal")
            if user_done.is_set():
                return

    threads = [threading.Thread(target=decode_ours) for _ in range(3)]
    for thread in threads:
        thread.start()
    ours_begin.wait()
    decode_plainly(chatty)
    user_done.set()
    for thread in threads:
        thread.join()
    av.logging.set_skip_repeated(True)
    assert len(kept.records) == alone


def test_ffmpeg_s_own_printing_stays_silent_too(capfd, chatty):
    """A user may have given the messages back to FFmpeg, which prints them."""
    av.logging.restore_default_callback()
    try:
        decode_plainly(chatty)
        assert capfd.readouterr().err
        decode_video(chatty, damaged="conceal")
        assert capfd.readouterr().err == ""
    finally:
        av.logging.set_level(None)
