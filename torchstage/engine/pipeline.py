"""Pipeline: indices in at the door, finished batches out in order.

A ``Pool`` is threads; it belongs to whoever keeps it. A ``Run`` is one epoch through a pool, for one iterator.

Guarantees: the number of batches in flight is bounded here, at the door, and nowhere behind it; nothing starts before
the pool is told to; ``abandon`` takes no lock and waits for nothing, so a finalizer may call it; threads know the
channel, never a run or an iterator.
"""

import atexit
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torchstage.engine.channel import Channel
from torchstage.engine.gather import InFlight, announce
from torchstage.engine.parking import PERIOD_SECONDS, Parking, usable_cores
from torchstage.engine.segment import Worker, alive
from torchstage.engine.stats import Meter, Tally, merge
from torchstage.engine.ticket import NO_CHAIN, Batch, Chain, caught

Admission = tuple[Sequence[Any], Chain, Sequence[Any] | None]  # indices, chain, and the items if they are not the indices

VISIT_SECONDS = 200e-6  # calling one more thread to a batch costs 10 to 50 us: it should find several times that to do

EXIT_WAIT_SECONDS = 5.0  # for user code at interpreter exit: long enough to decode, too short to be taken for a hang

_pools: weakref.WeakSet["Pool"] = weakref.WeakSet()


class Pool:
    """Up to ``num_threads`` threads that work on batches, in the order in which these were put into the channel."""

    def __init__(self, num_threads: int, name: str) -> None:
        self.num_threads = num_threads
        self.channel: Channel[Batch] = Channel()
        self.meter = Meter()
        self.parking = Parking(num_threads, usable_cores())
        self.workers: list[Worker] = []
        self.is_closed = False
        self._name = name
        _pools.add(self)

    def start(self, num_threads: int, set_up: Callable[[int], Any]) -> None:
        """Have that many threads, at most all of them. ``set_up(k)`` runs in thread k, one after another, before its
        first batch; what it raises is raised here."""
        while len(self.workers) < min(num_threads, self.num_threads):
            number = len(self.workers)
            worker = Worker(number, f"{self._name}-{number}", self.channel, self.meter, self.parking)
            self.workers.append(worker)  # before it starts: Ctrl-C in start() must not leave a thread that nobody ends
            worker.start(set_up)

    @property
    def num_started(self) -> int:
        """Threads started so far."""
        return len(self.workers)

    @property
    def has_ended(self) -> bool:
        """Whether it was closed and none of its threads is left."""
        return self.is_closed and not any(worker.thread.is_alive() for worker in self.workers)

    def call_threads_to(self, batch: Batch) -> None:
        """Let as many threads come to the batch as there is work in it for: all where samples are dear, so that the
        batch is early; one where they are cheap, so that nobody is woken for a few microseconds of work."""
        num_threads = min(batch.size, len(self.workers))
        seconds = self.meter.sample_seconds
        if seconds is not None:
            num_threads = max(1, min(num_threads, math.ceil(batch.size * seconds / VISIT_SECONDS)))
        for _ in range(num_threads):
            self.channel.put(batch)

    def let_loose(self, now: float) -> bool:
        """The consumer waits: let parked threads in where the others leave room. True if samples were taken for so
        cheap that not every thread was called to each batch; that is forgotten."""
        seconds = self.meter.sample_seconds
        self.meter.forget()
        self.parking.look(now, None)
        return seconds is not None and seconds < VISIT_SECONDS

    def abandon(self) -> None:
        """Let the threads end as soon as they are out of user code. Waits for nothing; safe in a finalizer."""
        if not self.is_closed:
            self.is_closed = True
            self.parking.open()
            self.channel.close(self.num_threads)

    def join(self, deadline: float) -> list[Worker]:
        """Wait for the threads until ``deadline`` (on time.monotonic's clock). Returns those still in user code."""
        return join(self.workers, deadline)

    def forget(self) -> None:
        """In a forked child: the threads stayed behind. Touches no lock, since one of them may have held it."""
        self.is_closed = True
        self.workers = []

    def tally(self) -> Tally:
        """What the threads did so far."""
        return merge(worker.tally for worker in self.workers)


def join(workers: Iterable[Worker], deadline: float) -> list[Worker]:
    """Wait for the threads of these workers until ``deadline``. Returns those that are still alive."""
    workers = [worker for worker in workers if worker.thread.is_alive()]
    for worker in workers:
        if worker.thread is not threading.current_thread():
            worker.thread.join(max(0.0, deadline - time.monotonic()))
    return [worker for worker in workers if worker.thread.is_alive()]


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


class Exhausted(Exception):  # noqa: N818  # it never leaves the iterator
    """Every batch was handed out."""


class TimedOut(Exception):  # noqa: N818  # it never leaves the iterator
    """The batch whose turn it is did not come in time."""


class Closed(Exception):  # noqa: N818  # it never leaves the iterator
    """The run was abandoned while the consumer waited."""


class Run:
    """One epoch: takes indices from ``source`` in the caller's thread, hands out batches.

    ``source`` gives the indices, the chain and the items of one batch after another; its errors are handed out in their place.
    ``window(batch)`` is how many batches like that one may be in flight.
    """

    def __init__(
        self,
        pool: Pool,
        source: Iterator[Admission],
        window: Callable[[Batch], int],
        in_order: bool = True,
    ) -> None:
        self._pool = pool
        self._source = source
        self._window = window
        self._in_flight = InFlight(in_order)
        self._num_admitted = 0
        self._taken: Admission | None = None
        self._is_exhausted = False
        self._has_called = False
        self.is_on_trial = False  # only the first batch is worked on; ``call_threads`` ends it
        self._is_short = False  # the source failed, so the window is not full
        self.is_closed = False

    @property
    def wake(self) -> Callable[[None], None]:
        """Announce something that the consumer should look at while it waits."""
        return self._in_flight.wake.put

    def fill(self) -> None:
        """Admit batches until the window is full or the source is exhausted or fails."""
        self._is_short = False
        while (batch := self._admit()) is not None and len(self._in_flight) < self._window(batch):
            pass

    def _look_after(self) -> None:
        """Nothing was finished for a while: what was measured before may be wrong now; or Ctrl-C came after a batch was
        admitted and before threads were called to it."""
        was_cheap = self._pool.let_loose(time.perf_counter())
        if self.is_on_trial:
            return
        head = next((batch for batch in self._in_flight if batch.todo), None)
        if was_cheap or (head is not None and not any(worker.batch is head for worker in self._pool.workers)):
            self.call_threads()

    def redo(self, chain_of: Callable[[Chain], Chain]) -> None:
        """Make what is in flight anew, from its first sample: what was made so far is not trusted. Waits until no
        thread is inside the old batches, so that old and new work do not meet."""
        old = list(self._in_flight)
        for batch in old:
            batch.drop()
        while any(worker.batch is batch for worker in self._pool.workers for batch in old):
            self._in_flight.wait(PERIOD_SECONDS)
        self._in_flight.clear()
        for batch in old:
            if batch.chain is not NO_CHAIN:
                again = Batch(batch.number, batch.indices, chain_of(batch.chain), batch.wake, batch.items)
                self._in_flight.add(again)
                self._pool.call_threads_to(again)
            else:
                self._in_flight.add(batch)

    def call_threads(self) -> None:
        """Call the pool's threads to what is in flight once more, the first batch first."""
        self.is_on_trial = False
        for batch in self._in_flight:
            if batch.todo:
                self._pool.call_threads_to(batch)

    def next(self, timeout_seconds: float | None, attend: Callable[[], float]) -> Batch:
        """Wait for the batch whose turn it is, admit another, and return the one.

        ``attend`` is called whenever the consumer is about to wait or was woken; it returns after how many seconds it
        wants to be called again. Raises Exhausted at the end, TimedOut when the batch did not come in time, Closed when
        the run was abandoned meanwhile (by a signal handler, or by another thread).
        """
        if not self._in_flight:
            raise Exhausted
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        call_again = attend()
        while (batch := self._in_flight.next_done()) is None:
            if self.is_closed or self._pool.is_closed:  # at exit, the pool alone
                raise Closed
            patience = call_again if deadline is None else min(call_again, deadline - time.monotonic())
            if patience <= 0:
                raise TimedOut
            if not self._in_flight.wait(patience):
                self._look_after()
            call_again = attend()
        self._in_flight.hand_out(batch)
        try:
            if self._is_short:
                self.fill()
            else:
                self._admit()
        except BaseException:  # Ctrl-C inside the sampler: the batch is not lost
            self._in_flight.put_back(batch)
            raise
        return batch

    def _admit(self) -> Batch | None:
        """Let one batch in. None if there is none, or if the source failed: that is handed out in its place."""
        if self._is_exhausted:
            return None
        number, wake = self._num_admitted, self._in_flight.wake
        try:
            if self._taken is None:  # else Ctrl-C came right after it was taken
                self._taken = next(self._source)
            indices, chain, items = self._taken
        except StopIteration:
            self._is_exhausted = True
            return None
        except KeyboardInterrupt:  # the user's, not the sampler's
            raise
        except BaseException as error:
            self._is_short = True
            batch = Batch(number, (), NO_CHAIN, wake)
            self._num_admitted += 1
            self._in_flight.add(batch)
            announce(batch, caught(error, "sampler"))
            return None
        batch = Batch(number, indices, chain, wake, items)
        self._num_admitted += 1
        self._in_flight.add(batch)
        self._taken = None
        if not self.is_on_trial or not self._has_called:
            self._has_called = True
            self._pool.call_threads_to(batch)
        return batch

    def late(self) -> tuple[Batch, int, Worker | None] | None:
        """What the consumer waits for: the batch, the lowest slot that is not settled, and the thread that is on it."""
        batch = next((batch for batch in self._in_flight if not batch.done), None)
        if batch is None:
            return None
        slot = next((slot for slot in range(batch.size) if slot not in batch.settled), -1)
        on_it = (worker for worker in self._pool.workers if worker.batch is batch and worker.slot == slot)
        return batch, slot, next(on_it, None)

    def abandon(self) -> None:
        """Leave what is in flight undone. Waits for nothing; safe in a finalizer."""
        self.is_closed = True
        for batch in list(self._in_flight):
            batch.drop()
        self._in_flight.wake.put(None)
