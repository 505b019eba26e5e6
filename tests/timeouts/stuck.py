"""Stand-ins for user code that never comes back: it waits until the test is over, so that no thread is left behind."""

import threading
import time

from torchstage.engine.deadlines import StageTimeout

PATIENCE_SECONDS = 20.0  # for what must come; a test that waits this long has failed
SECONDS = 0.2  # that a stage has


class Stuck:
    """A stage's function that does not come back for some of its values before it is let go."""

    def __init__(self, *values):
        self.values = set(values)
        self.is_inside = threading.Event()
        self._let_go = threading.Event()
        self.threads = []  # that got stuck

    def __call__(self, value):
        if value in self.values:
            self.wait_for_ever()
        return value

    def wait_for_ever(self):
        self.threads.append(threading.current_thread())
        self.is_inside.set()
        assert self._let_go.wait(3 * PATIENCE_SECONDS)

    def let_go(self):
        self._let_go.set()
        for thread in self.threads:
            if not thread.name.startswith("MainThread"):
                thread.join(0.01)


def story(iterator):
    """Each batch as a list, and each time-out in its place."""
    events = []
    while True:
        try:
            batch = next(iterator)
            events.append(batch.tolist() if hasattr(batch, "tolist") else batch)
        except StopIteration:
            return events
        except StageTimeout as error:
            events.append(error)


def shape(events):
    """The same, without what the errors say."""
    return [type(event) if isinstance(event, BaseException) else event for event in events]


def flat(batches):
    """The samples of batches, where all came."""
    return [sample for batch in batches for sample in batch]


def wait_for(is_so):
    """Return when it is; for what no event tells."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)
