"""Ticket: a batch's dataset indices in, one settled value or failure for each slot out.

Guarantees: a slot is settled once, by whoever is first; a batch is finished once, by whoever is first; both without a
lock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Wake(Protocol):
    """Where a finished batch, or anything the waiting consumer should look at, is announced."""

    def put(self, item: None, /) -> None: ...


class Nobody:
    """For batches that are made where they are used: nobody waits for them."""

    def put(self, item: None, /) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in a sample's or a batch's place, kept as the user's own exception object.

    ``stage`` is where it was raised; ``slot`` is the sample's place in its batch, None when the whole batch failed.
    """

    error: BaseException
    stage: str
    slot: int | None = None


def caught(error: BaseException, stage: str, slot: int | None = None) -> Failure:
    """The failure of an error just caught, its traceback without the engine's own frame.

    That frame holds the batch and belongs to a thread that lives on; and the user's line is what the user looks for.
    """
    trace = error.__traceback__
    return Failure(error.with_traceback(trace.tb_next if trace else None), stage, slot)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A slot that was never run, because a sample before it failed and decides the batch already."""


SKIPPED = Skipped()


@dataclass(frozen=True, slots=True)
class Chain:
    """What is done with a batch, bound to it when it is admitted, so that a change takes effect at batch borders.

    ``sample`` maps one item (mostly a dataset index) to one value, in the stage called ``stage``. ``finish`` are named
    stages that run one after another once every sample is there: each maps what came before it (first the values, in
    order) and the batch's dataset indices. ``enter`` is called in a thread that meets this chain for the first time.
    The batches of a ``lane`` go to the thread of that number alone, which works on them in their order.
    """

    sample: Callable[[Any], Any]
    finish: tuple[tuple[str, Callable[[Any, Sequence[Any]], Any]], ...]
    enter: Callable[[], None]
    stage: str = "fetch"
    takes_whole: bool = False  # one ticket stands for a whole batch, or for what the user gets as one
    lane: int | None = None


def _nothing() -> None:
    """Nothing has to be set up."""


NO_CHAIN = Chain(sample=lambda index: index, finish=(), enter=_nothing)  # of a batch that failed at the door


class Batch:
    """One admitted batch and the tickets of its samples. A slot is a ticket's place: 0 <= slot < size."""

    __slots__ = (
        "chain",
        "done",
        "failure",
        "finisher",
        "has_failed",
        "indices",
        "is_called",
        "items",
        "number",
        "settled",
        "size",
        "todo",
        "value",
        "wake",
    )

    def __init__(
        self, number: int, indices: Sequence[Any], chain: Chain, wake: Wake, items: Sequence[Any] | None = None
    ) -> None:
        self.number = number
        self.indices = indices  # what the user is told after an error: kept until the batch is handed out
        self.items = indices if items is None else items  # what the chain is given: an index, or more than that
        self.chain = chain
        self.size = len(indices)
        self.todo = list(range(self.size - 1, -1, -1))  # taken from the end: the lowest slot first
        self.settled: dict[int, Any] = {}
        self.finisher = [None]  # whoever pops it finishes the batch
        self.wake = wake
        self.has_failed = False
        self.is_called = False  # of a lane's batch: whether its thread was called to it
        self.done = False
        self.value: Any = None
        self.failure: Failure | None = None

    def settle(self, slot: int, outcome: Any) -> None:
        """Give the slot its outcome, unless it has one: setdefault claims and writes in one step, so a thread that
        comes back late (after a time-out gave its slot away) changes nothing."""
        self.settled.setdefault(slot, outcome)

    def fail(self, slot: int, failure: Failure) -> None:
        """Settle the slot with a failure, and the slots that nobody took yet as skipped.

        Slots are taken in order, so all that are left lie behind this one: the lowest failure still decides the batch.
        """
        self.has_failed = True
        self.settle(slot, failure)
        while self.todo:
            try:
                self.settle(self.todo.pop(), SKIPPED)
            except IndexError:  # another thread took the last one
                return

    def claim_finish(self) -> bool:
        """True for exactly one caller, and only after every slot is settled.

        Two threads may both see the last slot settled: 1. A settles slot 6, 2. B settles slot 7, 3. both count 8 of 8.
        Only one of them can pop the single finisher.
        """
        if len(self.settled) < self.size:
            return False
        try:
            self.finisher.pop()
        except IndexError:
            return False
        return True

    def first_failure(self) -> Failure | None:
        """The failure of the lowest slot: the one that a loop over the samples would have met first."""
        if not self.has_failed:
            return None
        outcomes = (self.settled[slot] for slot in range(self.size))
        return next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)

    def drop(self) -> None:
        """Leave what nobody began yet undone, samples and collate: the run is over. Safe in a finalizer."""
        self.todo.clear()
        self.finisher.clear()
