"""Ticket: a batch's dataset indices in, one settled value or failure for each slot out.

Guarantees: a slot is settled once, by whoever is first; a batch is finished once, by whoever is first; both without a
lock.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from torchstage.engine.outcome import SKIPPED, Failure, PartlyBad, Sifted
from torchstage.engine.stats import Key


class Wake(Protocol):
    """Where a finished batch, or anything the waiting consumer should look at, is announced."""

    def put(self, item: None, /) -> None: ...


class Nobody:
    """For batches that are made where they are used: nobody waits for them."""

    def put(self, item: None, /) -> None:
        pass


class Tolerance(Protocol):
    """What a loader does where a sample fails."""

    def takes(self, error: BaseException) -> bool:
        """Whether the other samples of the batch go on without it."""
        ...

    def sift(self, batch: "Batch", values: list[Any]) -> Sifted:
        """What becomes of a batch of these values, some of which are Failures."""
        ...


class Place(Protocol):
    """Who runs a segment: the pool's own threads, other threads, an event loop, an executor."""

    @property
    def runs_user_code(self) -> bool:
        """Whether ``call`` does: then the consumer's thread leaves it to others. Ctrl-C may break off what it does
        between any two steps, and it has its time-out to look after."""
        ...

    def call(self, part: "Part", num_samples: int) -> None:
        """That many samples more wait in the part. From any thread; never blocks."""
        ...


Step = tuple[str, Callable[[Any], Any]]  # a stage's name and its function


@dataclass(frozen=True, slots=True)
class Leg:
    """Stages that run one after another. ``begin`` is told before them which sample comes: its item. ``names``: of the
    stages, where one step stands for several of them."""

    steps: tuple[Step, ...]
    begin: Callable[[Any], None] | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Neighbouring stages that run in one place, one after another, with no hand-over. ``place`` None: the pool's own
    threads. ``spread``: what comes out is the list of a whole batch's samples, each of which goes on by itself; it
    tells their items, given that of the batch. ``limits``: how many seconds a sample may be in a stage, where that is
    looked at from outside."""

    legs: tuple[Leg, ...]
    place: Place | None = None
    spread: Callable[[Any], Sequence[Any]] | None = None
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        named = (leg.names or tuple(stage for stage, _ in leg.steps) for leg in self.legs)
        object.__setattr__(self, "key", (False, tuple(name for names in named for name in names)))

    @property
    def stage(self) -> str:
        """The name of its first stage."""
        return self.legs[0].steps[0][0]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All its steps."""
        return tuple(step for leg in self.legs for step in leg.steps)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """What is done with a batch, bound to it when it is admitted, so that a change takes effect at batch borders.

    ``segments`` map one item (mostly a dataset index) to one value. ``finish`` are named stages that run one after
    another once every sample is there: each maps what came before it (first the values, in order) and the batch's
    dataset indices. ``enter`` is called in a thread that meets this chain for the first time. The batches of a ``lane``
    go to the thread of that number alone, which works on them in their order. ``home`` finishes batches whose last
    sample came from elsewhere than the pool's own threads. ``is_counted``: what its batches' samples went through is
    counted where they are made. ``tolerance``: of samples that fail; None: they fail their batch. ``lost``: of a batch
    that is made elsewhere in one piece, which of its samples an error says to be lost there, if the others are to be
    made once more without it.
    """

    segments: tuple[Segment, ...]
    finish: tuple[tuple[str, Callable[[Any, Sequence[Any]], Any]], ...]
    enter: Callable[[], None]
    takes_whole: bool = False  # one ticket stands for a whole batch, or for what the user gets as one
    lane: int | None = None
    home: Place | None = None
    is_counted: bool = False
    tolerance: Tolerance | None = None
    lost: Callable[[BaseException], int | None] | None = None
    finish_key: Key = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_key", (True, tuple(stage for stage, _ in self.finish)))

    @property
    def last_stage(self) -> str:
        """Where a batch is once all its samples are there: the first that is given the whole of it."""
        return self.finish[0][0] if self.finish else self.segments[-1].stage


def is_tolerated(chain: Chain, error: BaseException) -> bool:
    """Whether the other samples go on without one that failed so."""
    tolerance = chain.tolerance
    return tolerance is not None and (isinstance(error, PartlyBad) or tolerance.takes(error))


def simple_chain(
    stage: str,
    sample: Callable[[Any], Any],
    finish: tuple[tuple[str, Callable[[Any, Sequence[Any]], Any]], ...],
    enter: Callable[[], None],
    *,
    takes_whole: bool = False,
    lane: int | None = None,
    names: tuple[str, ...] = (),
) -> Chain:
    """A chain of one stage, in the pool's own threads. ``names``: of all that it stands for, if it does for several."""
    return Chain((Segment((Leg(((stage, sample),), None, names),)),), finish, enter, takes_whole, lane)


def _nothing() -> None:
    """Nothing has to be set up."""


NO_CHAIN = simple_chain("fetch", lambda index: index, (), _nothing)  # of a batch that failed at the door


class Part:
    """The samples of a batch that wait for one of its segments. The place of a segment takes slots from ``todo`` and
    what waits there with ``take``; whoever is first has the slot."""

    __slots__ = ("batch", "next", "segment", "take", "todo", "waiting")

    def __init__(self, batch: "Batch", segment: Segment, todo: Any, waiting: Any) -> None:
        self.batch = batch
        self.segment = segment
        self.todo = todo  # taken from the end: the lowest slot first, or what waits longest
        self.waiting = waiting  # slot -> the value that the segment is given
        # What was made already is let go of; a batch's items are kept, for its errors.
        self.take: Callable[[int], Any] = waiting.__getitem__ if waiting is batch.items else waiting.pop
        self.next: Part | None = None

    def pass_on(self, slot: int, value: Any) -> None:
        """What came out of this part's segment goes into the next; a whole batch as its samples, each by itself.

        Raises ValueError where that is not as many samples as the batch has indices.
        """
        after = self.next
        assert after is not None
        if self.segment.spread is not None:
            values = self.batch.spread(value, self.segment.spread)
            slots = list(range(len(values)))
            if self.batch.chain.tolerance is not None:
                slots = [at for at in slots if not self.batch.has_failed_already(at, values[at])]
            after.waiting.update((at, values[at]) for at in slots)
            after.todo.extend(reversed(slots))
            num_samples = len(slots)
        else:
            after.waiting[slot] = value
            after.todo.appendleft(slot)
            num_samples = 1
        place = after.segment.place or self.batch.chain.home
        assert place is not None
        place.call(after, num_samples)
        if not num_samples:  # of an empty batch, that was the last of it
            self.call_home()

    def conclude(self, slot: int, value: Any) -> None:
        """A sample came out of this part's segment elsewhere than in the pool's own threads: it goes on, or is done."""
        if self.next is not None:
            self.pass_on(slot, value)
        else:
            self.batch.settle(slot, value)
            self.call_home()

    def fail(self, slot: int, failure: Failure) -> None:
        """A sample failed elsewhere than in the pool's own threads."""
        self.batch.fail(slot, failure)
        self.call_home()

    def call_home(self) -> None:
        """Have somebody finish the batch if this was its last sample."""
        batch = self.batch
        if batch.is_settled and not batch.is_dropped and not batch.done:
            assert batch.chain.home is not None
            batch.chain.home.call(batch.first, 0)


class Batch:
    """One admitted batch and the tickets of its samples. A slot is a ticket's place: 0 <= slot < size."""

    __slots__ = (
        "admitted_with",
        "after",
        "bad",
        "chain",
        "done",
        "done_at",
        "end",
        "failure",
        "finisher",
        "first",
        "has_bad",
        "has_failed",
        "indices",
        "is_called",
        "is_dropped",
        "is_left_out",
        "is_raw",
        "items",
        "kept",
        "lost",
        "num_made",
        "number",
        "settled",
        "size",
        "slots",
        "value",
        "wake",
    )

    def __init__(
        self, number: int, indices: Sequence[Any], chain: Chain, wake: Wake, items: Sequence[Any] | None = None
    ) -> None:
        self.number = number
        self.indices = indices  # what the user is told after an error: kept until the batch is handed out
        self.items = indices if items is None else items  # what the chain is given: an index, or more than that
        self.admitted_with = (self.indices, self.items)  # also once a whole batch was spread into its samples
        self.size = len(indices)
        self.settled: dict[int, Any] = {}
        self.finisher = [None]  # whoever pops it finishes the batch
        self.wake = wake
        self.has_failed = False
        self.has_bad = False  # whether samples failed that the others go on without
        self.bad: tuple[tuple[int, Any], ...] = ()  # their slots, and what the tolerance says of them
        self.kept: Sequence[Any] | None = None  # the indices that are left then; None: all
        self.lost: tuple[tuple[int, BaseException], ...] = ()  # samples that are not tried again, and why
        self.is_left_out = False  # no sample is left
        self.end: tuple[int, Any] | None = None  # of one made of others' samples: the place after it, its last index
        self.is_raw = False  # it is not handed out: its samples become parts of others
        self.slots: Sequence[int] | None = None  # of the samples that are left; None: all
        self.is_dropped = False
        self.is_called = False  # of a lane's batch: whether its thread was called to it
        self.done = False
        self.num_made = 0  # samples in its value
        self.done_at = 0.0  # on time.perf_counter's clock
        self.value: Any = None
        self.failure: Failure | None = None
        self.after: Callable[[Batch], Failure | None] | None = None  # called by who finishes it, before and after it is
        # announced; a failure is the batch's
        self.follow(chain, list(range(self.size - 1, -1, -1)))

    def follow(self, chain: Chain, todo: list[int]) -> None:
        """Have the samples of these slots made by this chain, from its first segment. The last slot comes first."""
        self.chain = chain
        self.first = part = Part(self, chain.segments[0], todo, self.items)
        for segment in chain.segments[1:]:
            part.next = part = Part(self, segment, deque[int](), dict[int, Any]())

    @property
    def todo(self) -> list[int]:
        """The slots that nobody has begun."""
        return self.first.todo

    @property
    def num_each(self) -> int:
        """How many samples a ticket stands for, as far as its index says that."""
        if not self.chain.takes_whole or self.size != 1:
            return 1
        index = self.indices[0]
        return len(cast(list[Any], index)) if isinstance(index, list) else 1

    @property
    def num_samples(self) -> int:
        """How many samples it has, likewise."""
        return self.size * self.num_each

    @property
    def is_settled(self) -> bool:
        """Whether every sample is there."""
        return len(self.settled) >= self.size

    def stage_before(self, slot: int) -> str:
        """The stage that the sample waits for."""
        part: Part | None = self.first.next
        while part is not None:
            if slot in part.waiting:
                return part.segment.stage
            part = part.next
        return self.chain.segments[0].stage

    def spread(self, values: Any, items_of: Callable[[Any], Sequence[Any]]) -> list[Any]:
        """From now on it is a batch of these samples, one for each index that the whole of it had."""
        (indices,), (item,) = self.indices, self.items
        values = list(values)
        if len(values) != len(indices):
            raise ValueError(f"{len(values)} samples came for {len(indices)} indices; each index wants one, in order.")
        self.items = items_of(item)
        self.size, self.indices = len(indices), indices  # in this order: others ask how many samples it has
        return values

    def settle(self, slot: int, outcome: Any) -> None:
        """Give the slot its outcome, unless it has one: setdefault claims and writes in one step, so a thread that
        comes back late (after a time-out gave its slot away) changes nothing."""
        self.settled.setdefault(slot, outcome)

    def fail(self, slot: int, failure: Failure) -> None:
        """Settle the slot with a failure, and the slots that nobody took yet as skipped.

        Slots are taken in order, so all that are left lie behind this one: the lowest failure still decides the batch.
        What the chain tolerates skips none.
        """
        if is_tolerated(self.chain, failure.error):
            self.has_bad = True  # before it can be finished
            self.settle(slot, failure)
            return
        self.has_failed = True
        self.settle(slot, failure)
        while self.todo:
            try:
                self.settle(self.todo.pop(), SKIPPED)
            except IndexError:  # another thread took the last one
                return

    def has_failed_already(self, slot: int, value: Any) -> bool:
        """Of a sample that came with others at once: whether it came as a failure. Then it is settled."""
        if type(value) is not Failure:
            return False
        self.fail(slot, value)
        return True

    def goes_on_without(self, error: BaseException) -> bool:
        """Whether this error, of a batch that is made elsewhere in one piece, is that of one sample, without which it
        is made once more."""
        sample = None if self.chain.lost is None else self.chain.lost(error)
        if sample is None or sample in dict(self.lost):
            return False
        self.lost = (*self.lost, (sample, error))
        return True

    def take_sifted(self, sifted: Sifted) -> None:
        """Samples of it failed, and this is what became of it."""
        self.value, self.kept, self.bad, self.slots = sifted.values, sifted.indices, sifted.bad, sifted.slots
        self.num_made = len(sifted.slots)
        self.is_left_out = not sifted.slots and sifted.failure is None

    def claim_finish(self) -> bool:
        """True for exactly one caller, and only after every slot is settled.

        Two threads may both see the last slot settled: 1. A settles slot 6, 2. B settles slot 7, 3. both count 8 of 8.
        Only one of them can pop the single finisher.
        """
        if not self.is_settled:
            return False
        try:
            self.finisher.pop()
        except IndexError:
            return False
        return True

    def first_failure(self) -> Failure | None:
        """The failure of the lowest slot: the one that a loop over the samples would have met first. Not one that the
        others go on without: they do not, for the sake of another."""
        if not self.has_failed:
            return None
        outcomes = (self.settled[slot] for slot in range(self.size))
        failures = (outcome for outcome in outcomes if isinstance(outcome, Failure))
        return next((one for one in failures if not is_tolerated(self.chain, one.error)), None)

    def drop(self) -> None:
        """Leave what nobody began yet undone, samples and collate: the run is over. Safe in a finalizer."""
        self.is_dropped = True
        part: Part | None = self.first
        while part is not None:
            part.todo.clear()
            part = part.next
        self.finisher.clear()
        self.let_go()

    def let_go(self) -> None:
        """Nothing more is made: the parts refer to the batch, but it not to them, so that it goes in its time."""
        self.first = NO_PART


NO_PART = Part.__new__(Part)  # of a batch that is done or dropped
NO_PART.segment, NO_PART.todo, NO_PART.next = NO_CHAIN.segments[0], [], None
NO_PART.batch = Batch(-1, (None,), NO_CHAIN, Nobody())  # a thread may be called to it by chance: it finds nothing
