"""Told: what happened to a sample or a batch in, plain records for listeners out.

Guarantees: a record keeps nothing of a batch but a dataset index. Times are on time.perf_counter's clock.
"""

import os
import threading
from typing import Any, NamedTuple

from torchstage.engine.ticket import Batch


class Thread(NamedTuple):
    """A thread of some process, as the system and as Python call it."""

    pid: int
    tid: int
    name: str


class Place(NamedTuple):
    """Where an executor made a sample, and when it began there, on that process's clock."""

    thread: Thread
    begin: float


class Ran(NamedTuple):
    """A stage ran, from ``begin`` to ``end``. ``slot`` None: on a whole batch. ``index``: the sample's dataset index;
    of samples that come as one, the list of theirs. ``overlaps``: others may have been in the same thread meanwhile.
    ``error``: the kind of error that it ended with."""

    stage: str
    begin: float
    end: float
    thread: Thread
    batch: int | None = None
    lane: int | None = None
    slot: int | None = None
    index: Any = None
    num_samples: int = 1
    overlaps: bool = False
    error: str | None = None


class Listener:
    """Who listens. Each method is called in the thread where it happens, and must be quick."""

    fault: Exception | None = None  # what it raised: it is told nothing more since then

    def enter(self, stage: str) -> None:
        """The calling thread begins a stage, or goes on with one."""

    def leave(self) -> None:
        """The stage that it entered last is over, or waits."""

    def ran(self, one: Ran) -> None:
        """A stage is over."""

    def called(self, steps: Any, now: float) -> None:
        """A consumer asks for a batch."""

    def handed_out(self, steps: Any, since: float, now: float, is_error: bool) -> None:
        """It gets it, or the error in its place, after it waited since then."""

    def ended(self, steps: Any, since: float | None, now: float) -> None:
        """It is told that there is none left."""


WHAT_IS_TOLD = ("enter", "leave", "ran", "called", "handed_out", "ended")


def hears(listener: Listener, what: str) -> bool:
    """Whether it has a method of its own for this."""
    return getattr(type(listener), what) is not getattr(Listener, what)


def this_thread() -> Thread:
    """The calling one."""
    return Thread(os.getpid(), threading.get_native_id(), threading.current_thread().name)


def of_sample(
    stage: str,
    begin: float,
    end: float,
    thread: Thread,
    batch: Batch,
    slot: int,
    *,
    overlaps: bool = False,
    error: BaseException | None = None,
) -> Ran:
    """A stage ran on a ticket of the batch."""
    index = batch.indices[slot] if slot < len(batch.indices) else None
    said = None if error is None else type(error).__name__
    return Ran(stage, begin, end, thread, batch.number, batch.chain.lane, slot, index, batch.num_each, overlaps, said)


def of_batch(
    stage: str, begin: float, end: float, batch: Batch, error: str | None, thread: Thread | None = None
) -> Ran:
    """Something was done with a whole batch."""
    known = thread or this_thread()
    return Ran(stage, begin, end, known, batch.number, batch.chain.lane, num_samples=batch.num_made, error=error)
