"""Ledger: the tallies of threads and the waits of consumers in, what a loader did altogether out.

Guarantees: no lock is waited for; what has ended is summed up, so that what is kept does not grow with the number of
epochs; a sum is exact, however many threads and iterators come and go meanwhile.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from time import perf_counter
from typing import Any

from torchstage.engine.histogram import NUM_BINS, Histogram, bin_of, joined
from torchstage.engine.probe import Probes
from torchstage.engine.stats import Key, Tally, Work
from torchstage.engine.ticket import Batch

BEAT_PERIOD_SECONDS = 20e-3  # a beat costs 50 us of a consumer that has nothing to do
BEAT_SECONDS = (0.5e-3, 3e-3)  # they are of different length, so that they keep no time with what they look at
GOLDEN = 0.618034  # multiples of it, without their whole part, fall evenly
MAX_BAD = 100  # bad samples that are kept
LATE_SECONDS = 1e-3  # where nobody counts switches: who is later than that had to wait for the GIL

_resource: Any = import_module("resource") if find_spec("resource") is not None else None
_THREAD: int | None = getattr(_resource, "RUSAGE_THREAD", None)


def num_switches() -> int:
    """How often the calling thread gave its core up by itself; 0 where that is not known."""
    return 0 if _THREAD is None else _resource.getrusage(_THREAD).ru_nvcsw


def had_to_wait(seconds: float, asked_seconds: float, num_switches: int) -> bool:
    """Whether a thread that slept so long, and gave its core up so often, had to wait for the GIL when it woke: going
    to sleep is one switch, and another one means that."""
    return num_switches > 1 or (_THREAD is None and seconds - asked_seconds > LATE_SECONDS)


class Site:
    """A place where stages run. ``threads``: or how many samples may be in the making there at once; ``wanted``: how
    many there were to be."""

    __slots__ = ("executor", "label", "threads", "wanted")

    def __init__(self, executor: str, threads: int, label: str = "", *, wanted: int = 0) -> None:
        self.executor = executor
        self.wanted = wanted or threads
        self.threads = threads
        self.label = label

    @property
    def size(self) -> int:
        """How many work there; while none has started, how many are to."""
        return self.threads or self.wanted


class Steps:
    """What the consumer of one iterator met, epoch after epoch. Written in its thread alone.

    A step is from one batch handed out to the next: what the caller does with a batch, then the wait for another.
    """

    NUMBERS = (
        *("num_batches", "num_samples", "elapsed_seconds", "wait_seconds", "between_seconds", "setup_seconds"),
        *("held_seconds", "num_beats", "beat_seconds", "late_seconds", "num_bad", "num_filtered"),
    )

    def __init__(self) -> None:
        self.num_batches = 0  # handed out
        self.num_samples = 0
        self.num_bad = self.num_filtered = 0  # samples in whose place came another, or nothing
        self.bad: deque[Any] = deque(maxlen=MAX_BAD)  # the latest of them
        self.elapsed_seconds = 0.0
        self.wait_seconds = 0.0  # without the first batch of an epoch
        self.between_seconds = 0.0  # between the caller's calls
        self.setup_seconds = 0.0
        self.held_seconds = 0.0
        self.num_beats = 0  # times that the consumer, while it waited, woke just to see whether it can
        self.beat_seconds = 0.0  # how long they took
        self.late_seconds = 0.0  # of those, how long those took that had to wait for the GIL
        self._next_beat = 0.0
        self.waits: Histogram = [0] * NUM_BINS
        self.first_seconds: float | None = None  # until the first batch of the latest epoch came
        self.first_at = 0.0
        self.called_at: float | None = None  # the caller waits since then
        self.returned_at: float | None = None  # None: the next batch is an epoch's first
        self.look: Callable[[], Sequence[Batch]] = tuple  # what is in flight
        self.num_elsewhere: Callable[[], int] = lambda: 0  # batches that worker processes make
        self.num_bytes: Callable[[], int | None] = lambda: None  # of the largest batch
        self.owner: Callable[[], Any] = lambda: None  # the iterator, while it is there
        self.probes = Probes()  # who else is told
        self.number: int | None = None  # of the batch that was handed out last, where batches have numbers

    @property
    def is_over(self) -> bool:
        """Whether nothing is added any more."""
        return self.owner() is None

    def begin(self, setup_seconds: float) -> None:
        """The next batch is the first of an epoch, for which things were made ready."""
        self.returned_at = self.called_at = None
        self.setup_seconds += setup_seconds

    def count(self, next_data: Callable[[], Any]) -> Any:
        """What comes next, counted."""
        self.call()
        try:
            batch = next_data()
        except StopIteration:
            self.end()
            raise
        except BaseException:
            self.hand_out(0)
            raise
        self.hand_out()
        return batch

    def call(self) -> None:
        """The caller asks for a batch."""
        now = self.called_at = perf_counter()
        if self.returned_at is not None:
            self.between_seconds += now - self.returned_at
            self.elapsed_seconds += now - self.returned_at
        if (probe := self.probes.now) is not None:
            probe.tell("called", self, now)

    def seconds_since_call(self) -> float:
        """How long the caller has waited."""
        return 0.0 if self.called_at is None else perf_counter() - self.called_at

    def hand_out(self, num_batches: int = 1) -> None:
        """The caller gets it; or, if 0, an error.

        Nobody sees this wait counted twice: 1. a reader takes ``called_at``, 2. the wait is over, no longer told by
        ``called_at``, and then counted, 3. the reader takes what was counted. It finds ``called_at`` another one.
        """
        now, called_at = perf_counter(), self.called_at
        if called_at is None:  # it was begun anew meanwhile
            return
        self.called_at = None
        seconds = now - called_at
        self.elapsed_seconds += seconds
        if self.returned_at is None:
            self.first_seconds, self.first_at = seconds, now
        else:
            self.wait_seconds += seconds
            self.waits[bin_of(seconds)] += 1
        self.num_batches += num_batches
        if (probe := self.probes.now) is not None:
            probe.tell("handed_out", self, called_at, now, num_batches == 0)
        self.returned_at = now

    def end(self) -> None:
        """There is no batch left."""
        called_at, self.called_at = self.called_at, None
        if (probe := self.probes.now) is not None:
            probe.tell("ended", self, called_at, perf_counter())
        if called_at is not None:
            self.elapsed_seconds += perf_counter() - called_at
        self.returned_at = None

    def hold(self, newest: Batch) -> None:
        """The caller asks for a batch. If the newest that may be in flight is made, nothing was left to be begun."""
        if newest.done and self.returned_at is not None and self.called_at is not None:
            self.held_seconds += max(0.0, self.called_at - max(self.returned_at, newest.done_at))

    def beat_due(self, now: float) -> float | None:
        """How long to sleep, only to see whether the GIL can be had; None if it is not time for that."""
        if now < self._next_beat:
            return None
        self._next_beat = now + BEAT_PERIOD_SECONDS
        low, high = BEAT_SECONDS
        return low + (high - low) * (self.num_beats * GOLDEN % 1)

    def beat(self, seconds: float, asked_seconds: float, num_switches: int) -> None:
        """It slept."""
        self.num_beats += 1
        self.beat_seconds += seconds
        if had_to_wait(seconds, asked_seconds, num_switches):
            self.late_seconds += seconds


class Total:
    """Everything that can be added up. One that was made is not changed any more."""

    def __init__(self) -> None:
        self.works: dict[Key, Work] = {}
        self.parked: dict[str, float] = {}  # seconds, by the label of the place
        self.numbers: dict[str, float] = dict.fromkeys(Steps.NUMBERS, 0)
        self.waits: Histogram = [0] * NUM_BINS
        self.first: tuple[float, float | None] = (0.0, None)  # when the latest epoch's first batch came, and its wait

    @classmethod
    def of_thread(cls, tally: Tally, now: float) -> "Total":
        """What one thread did."""
        total = cls()
        total.works = {key: Work(len(key[1])).plus(work) for key, work in list(tally.works.items())}
        seconds, parked_at = tally.parked
        total.parked[tally.label] = seconds + (0.0 if parked_at is None else now - parked_at)
        return total

    @classmethod
    def of_consumer(cls, steps: Steps, now: float) -> "Total":
        """What one consumer met; a batch that it waits for counts until now."""
        total = cls()
        while True:
            called_at, returned_at = steps.called_at, steps.returned_at
            total.numbers = {name: getattr(steps, name) for name in Steps.NUMBERS}
            if steps.called_at is called_at:
                break
        if called_at is not None and called_at < now and not steps.is_over:
            total.numbers["elapsed_seconds"] += now - called_at
            total.numbers["wait_seconds"] += 0.0 if returned_at is None else now - called_at
        total.waits = list(steps.waits)
        total.first = (steps.first_at, steps.first_seconds)
        return total

    def plus(self, other: "Total", sign: int = 1) -> "Total":
        """The sum, or the difference, as a new one."""
        total = Total()
        total.works = dict(self.works)
        for key, work in other.works.items():
            total.works[key] = total.works.get(key, Work(len(key[1]))).plus(work, sign)
        total.parked = dict(self.parked)
        for label, seconds in other.parked.items():
            total.parked[label] = total.parked.get(label, 0.0) + sign * seconds
        total.numbers = {name: number + sign * other.numbers[name] for name, number in self.numbers.items()}
        total.waits = joined(self.waits, other.waits, sign)
        total.first = max(self.first, other.first, key=lambda first: first[0])
        return total


class Ledger:
    """The accounts of one loader, and of those that frameworks make of it.

    No account is lost or counted twice while some are summed up: 1. whoever sums up puts the new sum down together with
    the set of accounts that are in it, 2. takes these off the list; Ctrl-C may come before, and then whoever sums up
    next takes them off first. A reader takes the sum and the set, then the list,
    and begins again if the sum is another one by then: an account on the list is in the sum if it is in the set.
    """

    def __init__(self) -> None:
        self._open: list[Tally | Steps] = []
        self._summed: tuple[Total, frozenset[Tally | Steps]] = Total(), frozenset()
        self._summing = threading.Lock()
        self.lineup: tuple[Any, ...] = ()  # the stages, as they run now
        self.probes = Probes()
        self.bad: deque[Any] = deque(maxlen=MAX_BAD)  # records of samples that were not handed out as they are
        self.placement: Any = None  # where stages are to run, as far as that is known

    def __reduce__(self) -> tuple[Any, ...]:
        return Ledger, ()  # a copy has its own

    def tally(self, label: str) -> Tally:
        """A new account of a thread that works at the place of this label."""
        return self._opened(Tally(label, self.probes))

    def steps(self, owner: Any) -> Steps:
        """A new account of the consumer of this iterator."""
        steps = Steps()
        steps.owner, steps.probes, steps.bad = weakref.ref(owner), self.probes, self.bad
        return self._opened(steps)

    def _opened(self, account: Any) -> Any:
        self._open.append(account)
        if self._summing.acquire(blocking=False):  # else somebody is at it
            try:
                self._sum_up()
            finally:
                self._summing.release()
        return account

    def _sum_up(self) -> None:
        total, summed = self._summed
        over: list[Tally | Steps] = []
        for account in list(self._open):
            if account in summed:
                self._open.remove(account)
            elif account.is_over:
                over.append(account)
        if over:
            now = perf_counter()
            for account in over:
                total = total.plus(_total_of(account, now))
            self._summed = total, frozenset(over)
            for account in over:
                self._open.remove(account)

    def total(self) -> Total:
        """All that was done and met so far."""
        while True:
            latest, accounts = self._summed, list(self._open)
            if self._summed is latest:
                break
        (total, summed), now = latest, perf_counter()
        for account in accounts:
            if account not in summed:
                total = total.plus(_total_of(account, now))
        return total

    @property
    def consumers(self) -> list[Steps]:
        """Of the iterators that are there."""
        return [account for account in list(self._open) if isinstance(account, Steps) and not account.is_over]


def _total_of(account: Tally | Steps, now: float) -> Total:
    return Total.of_thread(account, now) if isinstance(account, Tally) else Total.of_consumer(account, now)
