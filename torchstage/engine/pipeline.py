"""Pipeline: indices in at the door, finished batches out in order.

A ``Pool`` is threads; it belongs to whoever keeps it. A ``Run`` is one epoch through a pool, for one iterator.

Guarantees: the number of batches in flight is bounded here, at the door, and nowhere behind it; ``abandon`` takes no
lock and waits for nothing, so a finalizer may call it; threads know the channel, never a run or an iterator.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter

from torchstage.engine.early import Admission, Early
from torchstage.engine.gather import InFlight, announce
from torchstage.engine.heartbeat import Beats
from torchstage.engine.ledger import Steps, num_switches
from torchstage.engine.outcome import Failure, caught
from torchstage.engine.parking import PERIOD_SECONDS
from torchstage.engine.pool import Pool
from torchstage.engine.regroup import Regroup, Step
from torchstage.engine.segment import Worker
from torchstage.engine.ticket import NO_CHAIN, Batch, Chain

MIN_AHEAD = 2  # batches beside the one that is admitted: with fewer in flight, one that is made slowly may come late

__all__ = ["Admission", "Closed", "Exhausted", "Pool", "Run", "TimedOut"]


class Exhausted(Exception):  # noqa: N818  # it never leaves the iterator
    """Every batch was handed out."""


class TimedOut(Exception):  # noqa: N818  # it never leaves the iterator
    """The batch whose turn it is did not come in time."""


class Closed(Exception):  # noqa: N818  # it never leaves the iterator
    """The run was abandoned while the consumer waited."""


class Run:
    """One epoch: takes indices from ``source`` in the caller's thread, hands out batches.

    ``source`` gives the indices, the chain and the items of one batch after another, or None to let nothing in this
    time; its errors are handed out in their place. ``window(batch)`` is how many batches like that one may be in
    flight; ``is_elastic``: it changes with what was measured, so that a batch handed out is not always replaced by one.
    ``after(batch)`` is called by whoever finishes a batch, before and after it is announced; its failure is the
    batch's. ``steps`` is told how the consumer fares. ``early``: batches of this epoch that were begun before it, and
    those of the next one.
    """

    def __init__(
        self,
        pool: Pool,
        source: Iterator[Admission | None],
        window: Callable[[Batch], int],
        in_order: bool = True,
        *,
        is_elastic: bool = False,
        after: Callable[[Batch], Failure | None] | None = None,
        steps: Steps | None = None,
        regroup: Regroup | None = None,
        early: Early | None = None,
    ) -> None:
        self._pool = pool
        self._early = early
        self._source = source
        self._window = window
        self._in_flight = InFlight(in_order)
        self._is_elastic = is_elastic
        self._after = after
        self._steps = steps or Steps()
        self._latest: Batch | None = None
        self._num_admitted = 0
        self._taken: Admission | None = None
        self._is_exhausted = False
        self.is_on_trial = False  # no thread is called to what is admitted, until ``call_threads`` ends it
        self.was_left_on_trial = False  # whether a batch was handed out meanwhile
        self._is_short = False  # the source failed, so the window is not full
        self._unhurried: list[Batch] = []  # those to which one thread alone was called
        self.is_closed = False
        self._regroup = regroup
        self._step: Step | None = None  # that is being taken
        self.beats: Beats | None = None  # while it is measured what holds the GIL

    @property
    def wake(self) -> Callable[[None], None]:
        """Announce something that the consumer should look at while it waits."""
        return self._in_flight.wake.put

    @property
    def in_flight(self) -> InFlight:
        """What was admitted and not yet handed out: for a source that looks at it."""
        return self._in_flight

    def fill(self) -> None:
        """Admit batches until the window is full or the source is exhausted or fails."""
        self._is_short = False
        while self._has_room() and (batch := self._admit()) is not None:
            self._latest = batch
        self._admit_early()

    def _has_room(self) -> bool:
        latest = self._latest
        return latest is None or not self._in_flight or len(self._in_flight) < self._window(latest)

    def _look_after(self) -> None:
        """Nothing was finished for a while: what was measured before may be wrong now; or Ctrl-C came after a batch was
        admitted and before threads were called to it."""
        was_cheap = self._pool.let_loose(time.perf_counter())
        if self._pool.has_lanes:
            self._call_lanes()
            return
        for batch in self._in_flight:
            self._call_elsewhere(batch)
        if self.is_on_trial:
            return
        head = next((batch for batch in self._in_flight if batch.todo and batch.first.segment.place is None), None)
        if was_cheap or (head is not None and not any(worker.batch is head for worker in self._pool.workers)):
            self.call_threads()

    def redo(self, chain_of: Callable[[Chain], Chain], look: Callable[[], None] = lambda: None) -> None:
        """Make what is in flight anew, from its first sample: what was made so far is not trusted. Waits until no
        thread is inside the old batches, so that old and new work do not meet; ``look`` is called meanwhile, and what
        it raises ends that."""
        old = list(self._in_flight)
        for batch in old:
            if self._regroup is None or batch.is_raw:
                batch.drop()
        while any(worker.batch is batch for worker in self._pool.workers for batch in old):
            look()
            self._in_flight.wait(PERIOD_SECONDS)
        self._in_flight.clear()
        for batch in old:
            if batch.chain is not NO_CHAIN and (self._regroup is None or batch.is_raw):
                indices, items = batch.admitted_with
                again = Batch(batch.number, indices, chain_of(batch.chain), batch.wake, items)
                self._tell_after(again)
                self._in_flight.add(again)
                self._call(again)
            else:
                self._in_flight.add(batch)

    def rebind(self, chain_of: Callable[[Chain], Chain]) -> None:
        """Have the samples that nobody has begun made by other chains from here on."""
        for batch in self._in_flight:
            todo: list[int] = []
            with suppress(IndexError):
                while True:
                    todo.append(batch.todo.pop())
            if todo and batch.chain is not NO_CHAIN:
                batch.follow(chain_of(batch.chain), todo[::-1])

    def call_to_first(self, num_samples: int) -> bool:
        """Call the pool's threads to the first batches alone, as many as make up that number. False if none is left,
        nor will be: where few may be in flight, more come when these are handed out."""
        num_called = 0
        for batch in self._in_flight:
            if batch.todo and num_called < num_samples:
                num_called += batch.size
                self._pool.call_threads_to(batch)
        return num_called > 0 or not self._is_exhausted

    def call_threads(self) -> None:
        """Call the pool's threads to what is in flight once more, the first batch first."""
        self.is_on_trial = False
        for batch in self._in_flight:
            if batch.todo:
                self._call(batch)

    def call_again(self) -> None:
        """A thread was given up, with whatever it was called to: call others to all that waits."""
        self.is_on_trial = False
        for batch in self._in_flight:
            part = batch.first
            if batch.todo and part.segment.place is None:
                self._pool.call_threads_to(batch)
                part = part.next
            while part is not None:
                if part.todo:
                    place = part.segment.place or self._pool
                    (self._pool if place.runs_user_code else place).call(part, len(part.todo))
                part = part.next
            if batch.is_settled:
                self._pool.call(batch.first, 0)

    def _call(self, batch: Batch) -> None:
        """Have the batch's first segment begin."""
        if batch.first.segment.place is not None:
            self._call_elsewhere(batch)
        elif self._in_flight.is_ahead(MIN_AHEAD):
            self._unhurried = [other for other in self._unhurried if other.todo]
            self._unhurried.append(batch)
            self._pool.call_threads_to(batch, has_time=True)
        else:
            self._hurry()
            self._pool.call_threads_to(batch)

    def _hurry(self) -> None:
        """Call all threads to the batches that seemed to have time: the caller may wait for them soon.

        While batches are there before they are asked for, one thread works on each of those that come after. Threads
        that make a batch ready earlier than anybody wants it do nothing but hold up the training loop: each call of
        torch lets go of the GIL, and has to wait for whoever took it.
        """
        while self._unhurried:
            batch = self._unhurried.pop(0)
            if batch.todo:
                self._pool.call_threads_to(batch)

    def _call_elsewhere(self, batch: Batch) -> None:
        """If it begins elsewhere than in the pool, call that, once: Ctrl-C may have come before."""
        place = batch.first.segment.place
        if place is not None and not batch.is_called:
            if place.runs_user_code:
                self._pool.call(batch.first, 1)
            else:
                place.call(batch.first, batch.size)
            batch.is_called = True

    def _call_lanes(self) -> None:
        """Call each lane to its batches, once, and in their order: also where Ctrl-C came after a batch was admitted
        and before its lane was called to it."""
        for batch in self._in_flight:
            if not batch.is_called:
                self._pool.call_threads_to(batch)
                batch.is_called = True

    def next(self, timeout_seconds: float | None, attend: Callable[[], float]) -> Batch:
        """Wait for the batch whose turn it is, admit another, and return the one.

        ``attend`` is called whenever the consumer is about to wait or was woken; it returns after how many seconds it
        wants to be called again. Raises Exhausted at the end, TimedOut when the batch did not come in time, Closed when
        the run was abandoned meanwhile (by a signal handler, or by another thread).
        """
        if self._regroup is not None:
            if self._step is not None:  # Ctrl-C came
                self._take(self._regroup, self._step)
            if not self._in_flight:  # what there was had no sample that is left, or too few for a batch
                self._regrouped(self._regroup, attend)
        if not self._in_flight:
            raise Exhausted
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        if not self._is_exhausted:
            self._steps.hold(self._in_flight.newest)
        call_again = attend()
        while (batch := self._attended(attend)) is None or self._is_held():
            if not self._in_flight:
                raise Exhausted
            if self.is_closed or self._pool.is_closed:  # at exit, the pool alone
                raise Closed
            self._hurry()
            patience = call_again if deadline is None else min(call_again, deadline - time.monotonic())
            if patience <= 0:
                if batch is not None:
                    break
                raise TimedOut
            self._wait(patience)
            call_again = attend()
        try:
            self.was_left_on_trial |= self.is_on_trial
            self._in_flight.hand_out(batch)
            if self._is_short or self._is_elastic or self._regroup is not None:
                self.fill()
            else:
                self._admit()
                self._admit_early()
        except BaseException:  # Ctrl-C, inside the sampler too: the batch is not lost
            self.put_back(batch)
            raise
        return batch

    def _is_held(self) -> bool:
        """Whether a batch that is done has to wait, because what is made after it is looked at, or measured.

        A batch of one sample may be done on trial while the second sample is made. Handed out now: 1. the user changes
        the dataset, 2. the second sample is judged, and the change is taken for one that samples make. So it waits.
        Where nothing else is in flight, nothing would come of that: whoever looks at the samples is told.
        """
        beats = self.beats if self.beats is not None and self.beats.holds else None
        if (beats is None and not self.is_on_trial) or all(batch.done for batch in self._in_flight):
            return False
        if beats is not None:
            beats.num_holds += 1
        return True

    def _wait(self, patience: float) -> None:
        """Wait until something is announced, or for so many seconds. Some of the time is a beat."""
        if self.beats is not None:
            self._wait_in_beats(self.beats, patience)
            return
        beat_seconds = self._steps.beat_due(perf_counter())
        if beat_seconds is not None and beat_seconds < patience:
            before, begin = num_switches(), perf_counter()
            if self._in_flight.wait(beat_seconds):
                return
            self._steps.beat(perf_counter() - begin, beat_seconds, num_switches() - before)
            patience -= beat_seconds
        if not self._in_flight.wait(patience):
            self._look_after()

    def _wait_in_beats(self, beats: Beats, patience: float) -> None:
        """Likewise, one beat after another."""
        until = perf_counter() + patience
        while perf_counter() < until and self.beats is beats:
            beat, is_announced = beats.sleep(self._in_flight.wait)
            if beat is not None:
                self._steps.beat(beat.end - beat.begin, beat.asked, 1 + beat.is_late)
            if is_announced:
                return
        self._look_after()

    def _attended(self, attend: Callable[[], float]) -> Batch | None:
        """The batch to hand out now, as it is after the consumer attended to what it shows; None if none is done.

        What was made on trial is not handed out before it was judged: 1. the consumer attends, and nothing was judged
        yet, 2. a thread makes the last of the first samples, has it judged and finishes the batch, 3. the consumer sees
        it done. So it attends once more, and what is not trusted is made anew.
        """
        if self._regroup is not None:
            return self._regrouped(self._regroup, attend)
        batch = self._in_flight.next_done()
        if batch is None:
            return None
        attend()
        return self._in_flight.next_done()

    def _regrouped(self, regroup: Regroup, attend: Callable[[], float]) -> Batch | None:
        """Likewise, of batches that are made of the samples of others."""
        in_flight = self._in_flight
        while True:
            done = in_flight.raw_and_done()
            if done:
                attend()
            for raw in done:
                if not in_flight.has(raw):  # it is made anew
                    break
                self._take(regroup, regroup.step(raw, in_flight.wake))
            if not in_flight.has_raw:
                self.fill()
                if not in_flight.has_raw and self._is_exhausted:
                    rest = regroup.rest(in_flight.wake)
                    if rest is not None:
                        self._take(regroup, rest)
            if not done:
                break
        return in_flight.next_done()

    def _take(self, regroup: Regroup, step: Step) -> None:
        """Put batches whose samples are all there in the place of those that the samples were in, and have them
        finished.

        No sample is lost, or comes twice, if Ctrl-C comes in here: 1. the step is put down, 2. Ctrl-C, 3. the caller
        asks for a batch again, and the step is taken once more, of which each part may be done twice.
        """
        self._step = step
        self._in_flight.put_in_place(step.raw, step.groups)
        regroup.take(step)
        if step.raw is not None:
            step.raw.value = step.raw.failure = None  # it may be the latest that was admitted, which is kept
        for group in step.groups:
            if not group.done:
                group.after = self._after
                self._pool.call(group.first, 1)
        self._step = None

    def _tell_after(self, batch: Batch) -> None:
        """Who is told of the batch when it is finished."""
        batch.is_raw = self._regroup is not None
        if not batch.is_raw:
            batch.after = self._after

    def put_back(self, batch: Batch) -> None:
        """The batch was not handed out after all: it is the next one."""
        self._in_flight.put_back(batch)
        self._is_short = True  # or longer than the window, if another was admitted for it

    def _admit(self) -> Batch | None:
        """Let one batch in. None if there is none, or if the source failed: that is handed out in its place."""
        if self._is_exhausted:
            return None
        number, wake = self._num_admitted, self._in_flight.wake
        try:
            if self._taken is None:  # else Ctrl-C came right after it was taken
                self._taken = next(self._source)
            if self._taken is None:
                return None
            indices, chain, items = self._taken
        except StopIteration:
            self._is_exhausted = True
            return None
        except KeyboardInterrupt:  # the user's, not the sampler's
            raise
        except BaseException as error:
            self._is_short = True
            batch = Batch(number, (), NO_CHAIN, wake)
            batch.is_raw = self._regroup is not None  # its place is behind the samples of those before it
            self._num_admitted += 1
            self._in_flight.add(batch)
            announce(batch, caught(error, "sampler"))
            return None
        batch = self._begun_early(number, self._taken) or Batch(number, indices, chain, wake, items)
        batch.wake = wake
        self._tell_after(batch)
        self._num_admitted += 1
        self._in_flight.add(batch)
        self._taken = None
        if chain.lane is not None:
            self._call_lanes()
        elif batch.todo and not self.is_on_trial:
            self._call(batch)
        elif batch.done and batch.after is not None:
            batch.after(batch)
        return batch

    def _begun_early(self, number: int, admission: Admission) -> Batch | None:
        """The same batch, if it was begun before this epoch.

        Nobody is left waiting: 1. a thread finishes it, 2. the consumer has itself woken by it from now on, 3. the
        thread asks whom to wake. And if it asked before, the batch is done when the consumer looks at it.
        """
        if not self._early:
            return None
        batch = self._early.take(number, admission)
        if batch is None:
            self._pool.leave()
        return batch

    def _admit_early(self) -> None:
        """Once this epoch has no more, let batches of the next one in, behind all of this one and in the same room. All
        threads are called to those that seemed to have time: so nobody comes to these before nothing is left to begin
        of those."""
        early, latest = self._early, self._latest
        if early is None or latest is None or not self._is_exhausted or self.is_closed:
            return
        if self.is_on_trial or self.beats is not None:  # the first samples, or a measurement, are looked at alone
            return
        while len(self._in_flight) + len(early) < self._window(early.newest or latest):
            batch = early.admit()
            if batch is None:
                return
            self._hurry()
            if batch.first.segment.place is not None:
                self._call_elsewhere(batch)
            else:
                before = [*self._in_flight, *early][:-1]
                has_time = len(before) >= MIN_AHEAD and before[len(before) // 2].done
                self._pool.call_threads_to(batch, has_time=has_time)

    def late(self) -> tuple[Batch, int, str, Worker | None] | None:
        """What the consumer waits for: the batch, the lowest slot that is not settled (-1: all are), the stage that
        it is in or waits for, and the thread that is on it, if it is one of ours."""
        batch = next((batch for batch in self._in_flight if not batch.done), None)
        if batch is None:
            return None
        slot = next((slot for slot in range(batch.size) if slot not in batch.settled), -1)
        stage, worker = self._pool.where(batch, slot) or (batch.stage_before(slot), None)
        return batch, slot, batch.chain.last_stage if slot < 0 else stage, worker

    def abandon(self) -> None:
        """Leave what is in flight undone. Waits for nothing; safe in a finalizer."""
        self.is_closed = True
        for batch in list(self._in_flight):
            batch.drop()
        self._pool.leave()
        self._in_flight.wake.put(None)
