"""Around: what is done around a step: a watch that sees when it does not end, and Ctrl-C at some moment in it.

Guarantees: signals are handled as before once it is over.
"""

import faulthandler
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torchstage

STEP_SECONDS = 120  # no step takes a hundredth of it on a machine that does nothing else


class Hung(BaseException):
    """A step did not end."""


@contextmanager
def watched(what: str) -> Iterator[None]:
    """Raise Hung where this does not end, with the stacks of all threads on standard error."""

    def report(number: int, frame: FrameType | None) -> None:
        print(f"\nhangs in: {what}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__, all_threads=True)
        raise Hung(what)

    before = signal.signal(signal.SIGALRM, report)
    signal.setitimer(signal.ITIMER_REAL, STEP_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted_within(draw: random.Random) -> Iterator[None]:
    """Ctrl-C at some moment, if this thread is in torchstage's own code then."""
    home = torchstage.__path__[0]
    is_on = [True]

    def interrupt(number: int, frame: FrameType | None) -> None:
        if is_on and frame is not None and frame.f_code.co_filename.startswith(home):
            is_on.clear()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    main = threading.get_ident()
    waits = [draw.random() * 0.0003 for _ in range(8)]

    def send() -> None:
        for seconds in waits:
            time.sleep(seconds)
            if not is_on:
                return
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=send, name="torchstage-test-interrupts")
    thread.start()
    try:
        yield
    finally:
        is_on.clear()
        thread.join()
        signal.signal(signal.SIGUSR1, before)
