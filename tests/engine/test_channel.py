"""Channel: first in, first out; nobody is left waiting."""

import signal
import threading
import weakref

import pytest
from fakes import PATIENCE_SECONDS, in_threads

from torchstage.engine.channel import Channel


def test_what_comes_first_leaves_first():
    channel: Channel[str] = Channel()
    for word in ("one", "two", "three"):
        channel.put(word)
    assert [channel.get() for _ in range(3)] == ["one", "two", "three"]


def test_what_was_put_before_the_end_is_taken_before_it():
    channel: Channel[str] = Channel()
    channel.put("work")
    channel.close(2)
    assert [channel.get() for _ in range(3)] == ["work", None, None]


def test_close_wakes_every_thread_that_waits():
    channel: Channel[str] = Channel()
    ready = threading.Barrier(5)

    def wait() -> str | None:
        ready.wait(PATIENCE_SECONDS)
        return channel.get()

    answers: list[str | None] = []
    threads = [threading.Thread(target=lambda: answers.append(wait()), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_SECONDS)
    channel.close(4)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert answers == [None] * 4


def test_many_threads_share_what_is_put_without_loss():
    channel: Channel[int] = Channel()
    for number in range(300):
        channel.put(number)
    channel.close(4)

    def take(_: int) -> list[int]:
        taken = []
        while (number := channel.get()) is not None:
            taken.append(number)
        return taken

    assert sorted(number for taken in in_threads(4, take) for number in taken) == list(range(300))


def test_a_finalizer_may_put_and_close():
    """It may run at any line of any thread, also of the one that is inside the channel just then."""

    class Holder:
        """Something whose end closes the channel."""

    channel: Channel[str] = Channel()
    holder = Holder()
    weakref.finalize(holder, channel.close, 1)
    channel.put("work")
    del holder
    assert [channel.get(), channel.get()] == ["work", None]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs an interval timer")
def test_a_signal_handler_may_put_while_the_same_thread_gets():
    channel: Channel[str] = Channel()
    before = signal.signal(signal.SIGALRM, lambda number, frame: channel.put("rung"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert channel.get() == "rung"
    finally:
        signal.signal(signal.SIGALRM, before)
