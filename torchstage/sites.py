"""Sites: a pool and what runs elsewhere than in its threads in, the places where that runs out.

Guarantees: nothing starts before it is told to; whatever starts ends with the pool.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torchstage import threads
from torchstage.copies import Private
from torchstage.elsewhere import submit_to
from torchstage.engine.concurrently import Concurrently
from torchstage.engine.event_loop import EventLoop
from torchstage.engine.executors import NUM_UNBOUNDED, InExecutor, Submit
from torchstage.engine.ledger import Site
from torchstage.engine.pool import Pool
from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Place
from torchstage.line import Line, Where

SetUp = Callable[[int, int, Private | None], None]  # number, how many there are, what is its own


class Sites:
    """The places of one pool, and their threads."""

    def __init__(self, pool: Pool, key: "Key") -> None:
        self.home = pool
        self._whole: InExecutor | None = None
        self._places: dict[Where, Place] = {}
        self._pools: list[Pool] = []
        self._loop_is_given = False  # what is its own
        self.loop: EventLoop | None = None
        self.add(key)

    def _new(self, label: str, where: Where) -> Place:
        if where.executor is not None:
            ledger = self.home.ledger
            submit = partial(submit_to, where.executor, ledger.probes)
            place = InExecutor(where.executor, submit, where.concurrency, label, ledger)
            self.home.annexes.append(place)
            return place
        if where.is_async:
            if self.loop is None:
                self.loop = EventLoop("torchstage-event-loop", new_event_loop, self.home.ledger)
                self.home.annexes.append(self.loop)
            self.loop.num_coroutines += where.concurrency or 1
            return Concurrently(self.loop, where.concurrency or 1, label)
        pool = Pool(where.concurrency or 1, f"torchstage-{label}", is_annex=True, ledger=self.home.ledger)
        self._pools.append(pool)
        self.home.annexes.append(pool)
        return pool

    def whole(self, where: Where, submit: Submit) -> InExecutor:
        """The place where whole batches are made."""
        if self._whole is None:
            assert where.executor is not None
            self._whole = InExecutor(where.executor, submit, None, "process", self.home.ledger)
            self.home.annexes.append(self._whole)
        return self._whole

    def add(self, key: "Key") -> None:
        """Have places for these stages, too."""
        for label, where in key:
            if not where.is_home and where not in self._places:
                self._places[where] = self._new(label, where)
        self.key = key

    def site(self, where: Where) -> Site:
        """What to call the place, and how many work there."""
        place: Any = self._places.get(where, self.home)
        return place.site

    def place(self, where: Where) -> Place | None:
        """None: the pool's own threads."""
        return self._places.get(where)

    @property
    def has_others(self) -> bool:
        """Whether anything runs elsewhere than in the pool's own threads."""
        return bool(self._places)

    @property
    def num_samples(self) -> int:
        """How many samples may be in the making there at once."""
        return sum(where.concurrency or NUM_UNBOUNDED for where in self._places)

    @property
    def num_to_start(self) -> int:
        """How many threads are still to be started, or to be given what is their own."""
        return sum(pool.num_threads - pool.num_started for pool in self._pools) + self._loop_waits

    @property
    def _loop_waits(self) -> bool:
        return self.loop is not None and not self._loop_is_given

    def start(self, set_up: SetUp, privates: Iterator[Private | None]) -> None:
        """Start all threads that have not started, each with the next of what is its own."""
        for pool in self._pools:
            pool.start(pool.num_threads, lambda number, pool=pool: set_up(number, pool.num_threads, next(privates)))
        if self.loop is not None and self._loop_waits:
            own = next(privates)
            self._loop_is_given = True
            if self.loop.has_started:
                self.loop.tell(threads.have, own)
            else:
                self.loop.start(lambda number: set_up(number, 1, own))

    def replace(self, pool: Pool, worker: Worker, set_up: SetUp, own: Private | None) -> None:
        """Have another thread in the place of one of such a pool that was given up."""
        pool.replace(worker, lambda number: set_up(number, pool.num_threads, own))

    @property
    def pools(self) -> list[Pool]:
        """The pools of threads: the home of all, and those of single stages."""
        return [self.home, *self._pools]

    @property
    def executors(self) -> list[InExecutor]:
        """The places that executors are, also that of whole batches."""
        found = [place for place in self._places.values() if isinstance(place, InExecutor)]
        return found if self._whole is None else [*found, self._whole]

    def start_loop(self, set_up: SetUp) -> None:
        """Start the event loop alone, if there is one."""
        if self.loop is not None:
            self.loop.start(lambda number: set_up(number, 1, None))


Key = tuple[tuple[str, Where], ...]


def key_of(line: Line) -> Key:
    """What must be the same for places to be used again."""
    many = [("fetch", line.many_where)] if line.takes_batches else []
    return (*many, *((station.label, station.where) for station in (*line.by_sample, *line.after_many)))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, if it is installed."""
    if find_spec("uvloop") is not None:
        uvloop: Any = import_module("uvloop")
        return uvloop.new_event_loop()
    return asyncio.new_event_loop()
