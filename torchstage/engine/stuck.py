"""Stuck: a stage's function and how long a sample may be in it in, the same function out, of which others see since
when a thread is inside.

Guarantees: whoever is first, of the thread that comes out and of the consumer that does not wait any longer, has the
sample, without a lock; a thread that was given up meets ``GivenUp`` as soon as it is out of user code. It costs half
a microsecond a sample and stage, and nothing where it is not used.
"""

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torchstage.engine.outcome import NoError

# What is kept of a sample in a stage: "stage", "seconds" that it may be there, "since" when, on time.perf_counter's
# clock, and "by" whom that was ended. A dict: the quickest to make, and its setdefault is what tells who was first.
Entry = dict[str, Any]
RETURNED, WAS_LATE = "the thread", "the consumer"


class GivenUp(NoError):  # noqa: N818  # it never leaves a thread
    """The consumer did not wait for the calling thread any longer: what it made is nobody's, and it has to end."""


class Running:
    """Which threads are in which stages of a loader."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}  # by thread: the latest
        self.waits: dict[Any, int] = {}  # futures, and the threads that wait for them inside a stage

    def limited(self, function: Callable[[Any], Any], stage: str, seconds: float) -> Callable[[Any], Any]:
        """The function, looked at while it runs. Raises GivenUp in a thread that was given up meanwhile."""
        entries = self._entries

        def limited(value: Any) -> Any:
            entry = entries[get_ident()] = {"stage": stage, "seconds": seconds, "since": perf_counter()}
            try:
                return function(value)
            finally:
                # 1. The thread comes out, 2. the consumer finds it late: whoever comes first to the entry has the
                # sample. The other one sees that, and touches nothing of it.
                if entry.setdefault("by", RETURNED) is not RETURNED:
                    raise GivenUp

        return limited

    def of(self, thread: int | None) -> Entry | None:
        """What the thread is in at this moment; None: nothing that is looked at."""
        entry = self._entries.get(thread or 0)
        return None if entry is None or "by" in entry else entry


def give_up(entry: Entry) -> bool:
    """Take the sample away from the thread that has it. False if that has come out."""
    return entry.setdefault("by", WAS_LATE) is WAS_LATE
