"""What tests of threads look at: which loader threads are alive, how long something takes to come true."""

import threading
import time
from collections.abc import Callable

PATIENCE_SECONDS = 10.0  # far above what is promised, so that a busy machine fails no test


def loader_threads() -> list[threading.Thread]:
    """The threads of all loaders of this process."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("torchstage-")]


def seconds_until(condition: Callable[[], object], patience_seconds: float = PATIENCE_SECONDS) -> float:
    """Seconds until the condition came true. Fails the test if it does not in time."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < patience_seconds, "it did not come true in time"
        time.sleep(0.001)
    return time.monotonic() - begin


def seconds_until_no_loader_thread() -> float:
    """Seconds until every loader thread of this process has ended."""
    return seconds_until(lambda: not loader_threads())
