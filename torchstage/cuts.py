"""Cuts: a batch that is asked of a lane in, and with the batch where the lane then is, out.

Guarantees: what a lane tells is kept with its batch, and counts when that is handed out; nobody waits for a lane that
was told to end.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from torchstage.engine.parking import PERIOD_SECONDS
from torchstage.marks import Mark


class Cut:
    """A batch that a lane is asked for, and where the lane is once it has made it."""

    __slots__ = (
        *("bad", "has_ended", "has_failed", "has_state", "index", "is_cut_off", "is_last", "is_left_out", "lane"),
        "mark",
    )

    def __init__(self, index: Any, lane: int) -> None:
        self.index = index
        self.lane = lane
        self.mark: Mark | None = None  # None: as far after the last one as there are batches since
        self.has_ended = False  # whether there was no such batch, nor will be
        self.has_failed = False  # to get to where it was to go on: it is as far as before
        self.is_last = False  # whether the dataset ended inside it
        self.has_state = False  # whether the dataset can tell where it is
        self.bad: Sequence[Any] = ()  # records of samples that failed on the way to it
        self.is_left_out = False  # whether they were all
        self.is_cut_off = False  # whether the dataset ended right after such a one


class Opening:
    """Where a lane is before it begins an epoch. Told by the lane's thread, waited for by the consumer's."""

    def __init__(self) -> None:
        self.is_asked = False  # whether the lane was asked for a batch: else it tells nothing
        self._mark: Mark | None = None
        self._is_told: SimpleQueue[None] = SimpleQueue()

    def tell(self, mark: Mark | None) -> None:
        self._mark = mark
        self._is_told.put(None)

    def wait(self, is_open: Callable[[], bool]) -> Mark | None:
        """None if the lane did not begin, or will not, because its threads were told to end."""
        while self._mark is None and is_open():
            with suppress(Empty):
                self._is_told.get(timeout=PERIOD_SECONDS)
                self._is_told.put(None)  # for the next who asks
                break
        return self._mark
