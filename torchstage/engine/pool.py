"""Pool: threads that work on batches, from their start to their end, whatever run the batches belong to.

Guarantees: nothing starts before it is told to; ``abandon`` takes no lock and waits for nothing, so a finalizer may
call it; threads know their channel, never a run or an iterator; at interpreter exit every thread is ended, or named if
it is stuck in user code.
"""

import atexit
import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from torchstage.engine.channel import Channel
from torchstage.engine.ledger import Ledger, Site
from torchstage.engine.parking import Parking, usable_cores
from torchstage.engine.segment import Worker, alive, join
from torchstage.engine.stats import Meter
from torchstage.engine.ticket import Batch, Part

VISIT_SECONDS = 200e-6  # calling one more thread to a batch costs 10 to 50 us: it should find several times that to do

EXIT_WAIT_SECONDS = 5.0  # for user code at interpreter exit: long enough to decode, too short to be taken for a hang

_pools: weakref.WeakSet["Pool"] = weakref.WeakSet()


class Annex(Protocol):
    """Another place that batches of a pool go through. It lives and ends with the pool."""

    def abandon(self) -> None:
        """As ``Pool.abandon``."""
        ...

    def leave(self) -> None:
        """Cancel what belongs to dropped batches. Waits for nothing; safe in a finalizer."""
        ...

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        """As ``Pool.where``."""
        ...

    def join(self, deadline: float) -> list[Worker]:
        """As ``Pool.join``."""
        ...

    def forget(self) -> None:
        """As ``Pool.forget``."""
        ...


class Pool:
    """Up to ``num_threads`` threads that work on batches, in the order in which these were put into the channel.

    ``has_lanes``: each thread has a channel of its own, and gets the batches whose chain names it. ``annexes``: where
    else its batches go; added before the pool starts. ``is_annex``: it is one itself, and finishes no batch.
    """

    runs_user_code = False

    def __init__(
        self,
        num_threads: int,
        name: str,
        has_lanes: bool = False,
        *,
        is_annex: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.site = Site("lane" if has_lanes else "thread", 0, name, wanted=num_threads)
        self.num_threads = num_threads
        self.has_lanes = has_lanes
        self.is_annex = is_annex
        self.annexes: list[Annex] = []
        self.channels: list[Channel[Part]] = [Channel() for _ in range(num_threads if has_lanes else 1)]
        self.meter = Meter()
        self.parking = Parking(num_threads, usable_cores())
        self.workers: list[Worker] = []
        self.given_up: list[Worker] = []  # threads that are stuck in user code, and others have their places
        self._num_replaced = 0
        self.is_closed = False
        self._is_told = False  # whether all threads were told to end
        self._name = name
        if has_lanes:  # the turn of each comes: none may be parked
            self.parking.next_look = math.inf
        _pools.add(self)

    def start(self, num_threads: int, set_up: Callable[[int], Callable[[], None] | None]) -> None:
        """Have that many threads, at most all of them. ``set_up(k)`` runs in thread k, one after another, before its
        first batch; what it raises is raised here, and what it returns is called when the thread ends."""
        while len(self.workers) < min(num_threads, self.num_threads):
            worker = self._new_worker(len(self.workers), f"{self._name}-{len(self.workers)}")
            self.site.threads = max(self.site.threads, len(self.workers) + 1)
            self.workers.append(worker)  # before it starts: Ctrl-C in start() must not leave a thread that nobody ends
            _start(worker, set_up)

    def _new_worker(self, number: int, name: str) -> Worker:
        channel, tally = self.channels[number if self.has_lanes else 0], self.ledger.tally(self.site.label)
        return Worker(number, name, channel, self.meter, self.parking, is_annex=self.is_annex, tally=tally)

    def replace(self, worker: Worker, set_up: Callable[[int], Callable[[], None] | None]) -> None:
        """Have another thread in the place, and with the number, of one that was given up: it is stuck in user code,
        and ends when it comes out of that. Its account is closed: what it does there is nobody's. Raises as ``start``.
        """
        self.given_up = [*(known for known in self.given_up if known.thread.is_alive()), worker]
        self._num_replaced += 1
        worker.tally.is_over = True
        self.parking.leave()
        new = self._new_worker(worker.number, f"{self._name}-{worker.number}.{self._num_replaced}")
        self.workers[worker.number] = new
        _start(new, set_up)

    @property
    def num_started(self) -> int:
        """Threads started so far."""
        return len(self.workers)

    @property
    def has_ended(self) -> bool:
        """Whether it was closed and none of its threads is left."""
        return self.is_closed and not self.join(0.0)

    @property
    def is_idle(self) -> bool:
        """Whether no thread is on a batch nor called to one; for an instant also when one is just taking up its call,
        so that calling it again must do no harm."""
        return all(channel.is_empty() for channel in self.channels) and all(w.batch is None for w in self.workers)

    def call_threads_to(self, batch: Batch, *, has_time: bool = False) -> None:
        """Let as many threads come to the batch as there is work in it for: all where samples are dear, so that the
        batch is early; one where they are cheap, so that nobody is woken for a few microseconds of work, or where it
        ``has_time``. To a lane's batch, the lane's own."""
        if batch.chain.lane is not None:
            self.channels[batch.chain.lane].put(batch.first)
            return
        num_threads = min(batch.size, 1 if has_time else len(self.workers))
        seconds = self.meter.sample_seconds
        if seconds is not None:
            num_threads = max(1, min(num_threads, math.ceil(batch.size * seconds / VISIT_SECONDS)))
        for _ in range(num_threads):
            self.channels[0].put(batch.first)

    def call(self, part: Part, num_samples: int) -> None:
        """Have a thread come to samples that were begun elsewhere, as many as there may be use for; or finish a batch.
        From any thread; never blocks."""
        if self.is_closed:  # nobody comes, and what is put down here would keep the pool
            return
        for _ in range(max(1, min(num_samples, self.num_threads))):
            self.channels[0].put_urgent(part)

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        """The stage that a sample is in at this moment, and the thread if it is one of ours; None if it waits."""
        for worker in self.workers:
            if worker.batch is batch and worker.slot == slot:
                return worker.stage, worker
        return next((found for annex in self.annexes if (found := annex.where(batch, slot)) is not None), None)

    def leave(self) -> None:
        """What belongs to dropped batches is not begun any more; elsewhere it is cancelled."""
        for annex in self.annexes:
            annex.leave()

    def let_loose(self, now: float) -> bool:
        """The consumer waits: let parked threads in where the others leave room. True if samples were taken for so
        cheap that not every thread was called to each batch; that is forgotten."""
        seconds = self.meter.sample_seconds
        self.meter.forget()
        self.parking.look(now, None)
        for annex in self.annexes:  # whose threads may wait for one another, too
            if isinstance(annex, Pool):
                annex.let_loose(now)
        return seconds is not None and seconds < VISIT_SECONDS

    def abandon(self) -> None:
        """Let the threads end as soon as they are out of user code. Waits for nothing; safe in a finalizer."""
        self.is_closed = True
        for annex in self.annexes:
            annex.abandon()
        if not self._is_told:  # last of all, so that after Ctrl-C in here whoever comes next tells them again
            self.parking.open()
            for channel in self.channels:
                channel.close(1 if self.has_lanes else self.num_threads)
            self._is_told = True

    def join(self, deadline: float) -> list[Worker]:
        """Wait for the threads until ``deadline`` (on time.monotonic's clock). Returns those still in user code, those
        that were given up among them."""
        stuck = join([*self.workers, *self.given_up], deadline)
        return stuck + [worker for annex in self.annexes for worker in annex.join(deadline)]

    def join_working(self, deadline: float) -> None:
        """Likewise, for all but those that were given up."""
        join(self.workers, deadline)
        for annex in self.annexes:
            (annex.join_working if isinstance(annex, Pool) else annex.join)(deadline)

    def forget(self) -> None:
        """In a forked child: the threads stayed behind. Touches no lock, since one of them may have held it."""
        self.is_closed = True
        for worker in self.workers:
            worker.tally.leave()
        self.workers, self.given_up = [], []
        for annex in self.annexes:
            annex.forget()


def _start(worker: Worker, set_up: Callable[[int], Callable[[], None] | None]) -> None:
    try:
        worker.start(set_up)
    except RuntimeError:
        worker.tally.is_over = worker.tally.is_over or worker.thread.ident is None  # the system has no thread left
        raise


@atexit.register
def _end_all_threads() -> None:
    """At interpreter exit: a thread that is still inside torch when the interpreter is gone can abort the process."""
    for pool in list(_pools):
        pool.abandon()
    for worker in join(list(alive), time.monotonic() + EXIT_WAIT_SECONDS):
        where = f"{EXIT_WAIT_SECONDS:g} s after the end of the program; it is left behind"
        sys.stderr.write(f"torchstage: thread {worker.thread.name} is still in {worker.place()}, {where}.\n")


def _forget_all_threads() -> None:
    alive.clear()
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all_threads)
