"""Stand-ins for what the engine is given: functions, a chain of them, the consumer's bell."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torchstage.engine.pipeline import Exhausted, Pool, Run
from torchstage.engine.ticket import Batch, Chain, Leg, Part, Place, Segment, simple_chain

PATIENCE_SECONDS = 20.0  # for an event that must come; a test that waits this long has failed


class Bell:
    """Counts announcements, and tells what could be read when each was made."""

    def __init__(self) -> None:
        self.seen: list[bool] = []
        self.watched: list[Batch] = []  # taken out by the announcement: no batch is kept alive from here

    def put(self, item: None, /) -> None:
        self.seen.append(bool(self.watched) and self.watched.pop().done)


def do_nothing(*arguments: Any) -> None:
    """Set-up, enter: all that a test is not about."""


def attend() -> float:
    """A consumer that has nothing to look after, and looks again as often as a real one."""
    return 0.05


def chain_of(
    sample: Callable[[Any], Any] = lambda index: index,
    *finish: tuple[str, Callable[[Any, Sequence[Any]], Any]],
    enter: Callable[[], None] = do_nothing,
) -> Chain:
    return simple_chain("fetch", sample, finish or (("collate", lambda values, indices: list(values)),), enter)


def batch_of(size: int, chain: Chain | None = None, number: int = 0) -> Batch:
    """A batch of the dataset indices 100, 101, ... that rings a bell of its own when it is done."""
    bell = Bell()
    batch = Batch(number, range(100, 100 + size), chain or chain_of(), bell)
    bell.watched.append(batch)
    return batch


def bell_of(batch: Batch) -> Bell:
    assert isinstance(batch.wake, Bell)
    return batch.wake


class Gate:
    """User code that stops inside until it is let through, and says that it is there."""

    def __init__(self) -> None:
        self.is_inside = threading.Event()
        self._may_leave = threading.Event()

    def __call__(self, value: Any = None) -> Any:
        self.is_inside.set()
        assert self._may_leave.wait(PATIENCE_SECONDS)
        return value

    def wait_until_inside(self) -> None:
        assert self.is_inside.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        self._may_leave.set()

    @property
    def is_open(self) -> bool:
        return self._may_leave.is_set()


@contextmanager
def pool_of(num_threads: int, start: bool = True) -> Iterator[Pool]:
    """A pool that has ended, threads and all, when the block is left."""
    pool = Pool(num_threads, "torchstage-test")
    try:
        if start:
            pool.start(num_threads, do_nothing)
        yield pool
    finally:
        pool.abandon()
        assert pool.join(time.monotonic() + PATIENCE_SECONDS) == []


def run_of(pool: Pool, batches: Sequence[Sequence[Any]], chain: Chain, window: int = 4, in_order: bool = True) -> Run:
    """A run over these batches of indices, with its window already admitted."""
    run = Run(pool, iter([(indices, chain, None) for indices in batches]), lambda batch: window, in_order)
    run.fill()
    return run


def next_of(run: Run, timeout_seconds: float | None = PATIENCE_SECONDS) -> Batch:
    return run.next(timeout_seconds, attend)


def rest_of(run: Run) -> list[Batch]:
    """The batches that are left, in the order in which they are handed out."""
    batches = []
    while True:
        try:
            batches.append(next_of(run))
        except Exhausted:
            return batches


def in_threads(num_threads: int, function: Callable[[int], Any]) -> list[Any]:
    """What the function returned in that many threads that were let go at the same moment."""
    together = threading.Barrier(num_threads)
    results: list[Any] = [None] * num_threads

    def run(number: int) -> None:
        together.wait(PATIENCE_SECONDS)
        results[number] = function(number)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    return results


class Elsewhere:
    """A place that runs samples when the test says so, in the test's own thread."""

    runs_user_code = False

    def __init__(self) -> None:
        self.called: list[tuple[Part, int]] = []

    def call(self, part: Part, num_samples: int) -> None:
        self.called.append((part, num_samples))

    def make_one(self) -> None:
        """Make the sample that waits longest, as any place does."""
        part, _ = self.called[0]
        slot = part.todo.pop()
        value = part.take(slot)
        for leg in part.segment.legs:
            if leg.begin is not None:
                leg.begin(part.batch.items[slot])
            for _, step in leg.steps:
                value = step(value)
        part.conclude(slot, value)
        if not part.todo:
            del self.called[0]


def segment_of(
    stage: str, function: Callable[[Any], Any], place: Place | None = None, begin: Callable[[Any], None] | None = None
) -> Segment:
    return Segment((Leg(((stage, function),), begin),), place)


def chain_of_segments(*segments: Segment, home: Place | None = None, takes_whole: bool = False) -> Chain:
    """Samples go through these; the batch is the list of what comes out."""
    collate = "collate", lambda values, indices: list(values)
    return Chain(segments, (collate,), do_nothing, takes_whole, home=home)


def wait_for(is_so: Callable[[], Any]) -> None:
    """Return when it is; for what no event tells."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)
