"""Deadlines: samples in the making in, those that are in a stage for too long failed in their place and given up out.

The consumer looks, when it is about to wait or was woken, and nobody else does: there is no thread for it. While the
consumer is elsewhere nothing happens; when it comes back, what is over its time and still not done is given up at once.

Guarantees: a sample is given up once, and only while a thread is inside its stage; a thread that was given up touches
nothing of the batch and takes no other sample; another one has its place before the consumer waits again. A look costs
a microsecond a thread, and is taken when a deadline may be due, not before.
"""

import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any, Protocol

from torchstage.engine.outcome import Failure
from torchstage.engine.pool import Pool
from torchstage.engine.segment import Worker
from torchstage.engine.stuck import Entry, Running, give_up
from torchstage.engine.ticket import Batch
from torchstage.engine.told import Place, Thread

MOST_PER_THREAD = 8  # threads that are stuck at a time, for each of the loader's: more are no accident but the rule
LEAST_WAIT_SECONDS = 1e-3  # a deadline that is due while it is looked at comes right after
AGAIN_SECONDS = 0.05  # until it is looked again at what is late and cannot be given up yet

Where = Callable[[Batch, int, str], str]  # in words: a sample of the batch in this stage
Stack = Callable[[Worker], str]


class StageTimeout(TimeoutError):  # noqa: N818  # it is one
    """A sample was in a stage for longer than that may take.

    Args:
        message: all of it in words.
        stage: its name.
        seconds: that a sample may take in it.
        index: of the sample in the dataset; None if unknown.
        stack: where the thread was at that moment, as Python prints it; "" if unknown.
    """

    def __init__(
        self, message: str, *, stage: str = "", seconds: float = 0.0, index: Any = None, stack: str = ""
    ) -> None:
        super().__init__(message)
        self.stage, self.seconds, self.index, self.stack = stage, seconds, index, stack


def timed_out(
    where: str, who: str, stack: str, batch: Batch, slot: int, stage: str, seconds: float, *, is_given_up: bool = True
) -> StageTimeout:
    """The error of a sample that was too long in a stage. ``who``: is in it, in words."""
    index = batch.indices[slot] if 0 <= slot < len(batch.indices) else None
    words = f"{where}: not done after {seconds:g} seconds, and given up, " if is_given_up else where
    words += f"{who}, which is here:\n{stack}" if stack else f"{who}."
    return StageTimeout(words, stage=stage, seconds=seconds, index=index, stack=stack)


class Looked(Protocol):
    """Where samples may be stuck: threads, coroutines, executors."""

    def look(self, now: float) -> float:
        """Give up what is late. When the next deadline is due, on time.perf_counter's clock, as far as is known now."""
        ...

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """Give this sample up, which the consumer did not get in so many seconds. False if it is not in here."""
        ...


class Deadlines:
    """All that a loader's consumer looks at. ``least_seconds``: the shortest time that any stage has."""

    def __init__(self, least_seconds: float, places: Sequence[Looked]) -> None:
        self._least_seconds = least_seconds
        self._places = places
        self._due = 0.0  # nothing is late before

    def look(self) -> float:
        """Give up what is late. In how many seconds to look again.

        Raises StageTimeout where nobody can take the place of who is stuck, RuntimeError when too many are.
        """
        now = perf_counter()
        if now >= self._due:
            due = now + self._least_seconds  # of whatever begins from now on
            for place in self._places:
                due = min(due, place.look(now))
            self._due = due
        return max(self._due - perf_counter(), LEAST_WAIT_SECONDS)

    @property
    def has_late(self) -> bool:
        """Whether a thread is in a stage for too long at this moment."""
        now = perf_counter()
        return any(place.has_late(now) for place in self._places if isinstance(place, Threads))

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """Give up one sample that did not come in so many seconds, whatever its stage may take. False if nobody is at
        it: it waits, or its batch is being finished."""
        return slot >= 0 and any(place.give_up(batch, slot, seconds) for place in self._places)


class Stuck:
    """The threads of a loader that are stuck in user code, over all its epochs: those that were given up, and those
    that nobody could take the place of."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._entries: list[tuple[Worker, Entry]] = []  # of those that were not given up
        # Of executors of the user's: futures that were given up and are not done yet; which of them say what runs.
        self.futures: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()
        self.tellers: weakref.WeakSet[Any] = weakref.WeakSet()

    def __reduce__(self) -> tuple[Any, ...]:
        return Stuck, ()  # a copy of the loader has its own

    def add(self, worker: Worker) -> None:
        """It was given up."""
        self._workers = [*self.alive, worker]

    def keep(self, worker: Worker, entry: Entry) -> None:
        """It was not: it is in there until its entry ends."""
        self._entries = [(one, known) for one, known in self._entries if "by" not in known and known is not entry]
        self._entries.append((worker, entry))

    @property
    def is_inside(self) -> bool:
        """Whether any of them is still in user code, as far as is known."""
        return bool(self.alive) or any("by" not in entry and one.thread.is_alive() for one, entry in self._entries)

    @property
    def alive(self) -> list[Worker]:
        """Those that have not come out yet."""
        return [worker for worker in self._workers if worker.thread.is_alive()]

    def check(self, num_threads: int) -> None:
        """Raise RuntimeError if so many are stuck that others should not get stuck, too."""
        most, alive = MOST_PER_THREAD * num_threads, self.alive
        if len(alive) >= most:
            raise RuntimeError(
                f"StageLoader: {len(alive)} threads are stuck in user code, {MOST_PER_THREAD} for each that the loader "
                f"has, and no more are given up. The latest: {alive[-1].thread.name}, in {alive[-1].place()}. What "
                "blocks there needs a time-out of its own (a socket's, say), or runs in processes, which can be ended: "
                "executor='process'."
            )


class Threads:
    """The threads of pools. ``replace``: have another in the place of one that was given up. ``why_not(batch)``: in
    words, why nobody could take the place of who is in this batch; None: somebody can; "": that is said in its turn."""

    def __init__(
        self,
        running: Running,
        pools: Callable[[], Iterable[Pool]],
        where: Where,
        stack: Stack,
        stuck: Stuck,
        replace: Callable[[Pool, Worker], None],
        why_not: Callable[[Batch], str | None],
    ) -> None:
        self._running, self._pools, self._stuck = running, pools, stuck
        self._where, self._stack, self._replace, self._why_not = where, stack, replace, why_not

    def look(self, now: float) -> float:
        """As Looked.look."""
        due = math.inf
        for pool in self._pools():
            for worker in list(pool.workers):
                entry = self._running.of(worker.thread.ident)
                if entry is None:
                    continue
                end = entry.get("said", entry["since"]) + entry["seconds"]
                if end > now:
                    due = min(due, end)
                elif not self._give_up(pool, worker, entry, worker.batch, worker.slot, entry["seconds"]):
                    due = min(due, now + AGAIN_SECONDS)
        return due

    def has_late(self, now: float) -> bool:
        """Whether any is late, given up or not."""
        workers = [worker for pool in self._pools() for worker in list(pool.workers)]
        entries = [self._running.of(worker.thread.ident) for worker in workers]
        return any(entry is not None and entry["since"] + entry["seconds"] <= now for entry in entries)

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """As Looked.give_up."""
        for pool in self._pools():
            for worker in list(pool.workers):
                if worker.batch is batch and worker.slot == slot:
                    entry = self._running.of(worker.thread.ident)
                    return entry is not None and self._give_up(pool, worker, entry, batch, slot, seconds)
        return False

    def _give_up(
        self, pool: Pool, worker: Worker, entry: Entry, batch: Batch | None, slot: int, seconds: float
    ) -> bool:
        """``batch`` and ``slot`` were read after the entry: if that is still its thread's when it is taken away, they
        are what the thread is on."""
        if batch is None or pool.is_closed:
            return False
        stage: str = entry["stage"]
        who, stack = f"in thread {worker.thread.name}", self._stack(worker)
        why_not = None if batch.is_dropped else self._why_not(batch)
        if why_not == "":
            return False
        if why_not is not None:
            if "by" in entry:  # it has come meanwhile
                return False
            entry["said"] = perf_counter()
            self._stuck.keep(worker, entry)
            where = f"{self._where(batch, slot, stage)}: not done after {seconds:g} seconds. {why_not} It is "
            raise timed_out(where, who, stack, batch, slot, stage, seconds, is_given_up=False)
        self._stuck.check(pool.num_threads)
        if not give_up(entry):
            return False
        self._stuck.add(worker)
        worker.stage = stage  # where several run as one, it has the first's: this is what others are told from now on
        error = timed_out(self._where(batch, slot, stage), who, stack, batch, slot, stage, seconds)
        _count(worker, entry, batch, slot, error)
        if not batch.is_dropped:
            batch.fail(slot, Failure(error, stage, slot))
        self._replace(pool, worker)
        call_home(batch, pool)
        return True


def call_home(batch: Batch, pool: Pool) -> None:
    """Have somebody finish the batch, if its last sample was given up. ``pool``: that has it, if nobody else does."""
    if batch.is_settled and not batch.is_dropped and not batch.done:
        (batch.chain.home or pool).call(batch.first, 0)


def _count(worker: Worker, entry: Entry, batch: Batch, slot: int, error: StageTimeout) -> None:
    """In the account of the thread that is stuck, which will not write there any more: it worked for so long, and the
    sample failed."""
    tally, key, now = worker.tally, worker.key, perf_counter()
    tally.work_at(key).seconds += now - entry["since"]
    tally.fail(key, error.stage, batch.num_each)
    probe = tally.probes.now
    if probe is not None and error.stage in key[1]:
        segment = next((known for known in batch.chain.segments if known.key == key), None)
        if segment is not None:
            place = Place(Thread(os.getpid(), worker.thread.native_id or 0, worker.thread.name), entry["since"])
            number = key[1].index(error.stage)
            probe.ran_through(segment, batch, slot, [], place, number, overlaps=True, error=error)


class Lanes:
    """The threads of lanes. Each has read its dataset so far, so nobody could go on in its place: in its turn,
    what is late is said, and said again after as long; nothing is given up."""

    def __init__(
        self, running: Running, turn: Callable[[], Batch | None], workers: Callable[[], Sequence[Worker]], stack: Stack
    ) -> None:
        self._running, self._turn, self._workers, self._stack = running, turn, workers, stack

    def look(self, now: float) -> float:
        """As Looked.look. Raises StageTimeout."""
        batch, workers = self._turn(), self._workers()
        lane = None if batch is None else batch.chain.lane
        if batch is None or lane is None or lane >= len(workers) or batch.done:
            return math.inf
        worker = workers[lane]
        entry = self._running.of(worker.thread.ident)
        if entry is None or worker.batch is not batch:
            return math.inf
        end = entry.get("said", entry["since"]) + entry["seconds"]
        if end > now:
            return end
        stage, seconds = entry["stage"], entry["seconds"]
        stack = self._stack(worker)
        if self._running.of(worker.thread.ident) is not entry:
            return now
        entry["said"] = perf_counter()
        where = (
            f"stage {stage!r}, lane {lane}, batch {batch.number}: not done after {seconds:g} seconds. Nobody else can "
            "go on where this lane is in its dataset: the next batch is waited for again. It is "
        )
        raise timed_out(where, f"in thread {worker.thread.name}", stack, batch, -1, stage, seconds, is_given_up=False)

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """As Looked.give_up: never."""
        return False
