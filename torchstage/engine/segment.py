"""Segment: parts of batches in from a channel, finished batches out. What one thread does, from its start to its end.

Guarantees: a thread holds nothing of a batch while it waits for the next one; it ends at the first None of its channel.
"""

import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from time import perf_counter

from torchstage.engine.channel import Channel
from torchstage.engine.gather import announce, finish
from torchstage.engine.outcome import NoError, SkipSample, caught, said_stage
from torchstage.engine.parking import LONE_SECONDS, Parking
from torchstage.engine.priority import niceness, stand_back
from torchstage.engine.stats import Key, Meter, Tally
from torchstage.engine.stuck import GivenUp
from torchstage.engine.ticket import Batch, Part, Wake
from torchstage.engine.watch import here

CHEAP_SECONDS = 1e-3  # a batch made in less is announced together with those after it: waking somebody costs a tenth

alive: set["Worker"] = set()  # every thread of every pool, from before it starts until it ends: joined at exit


class Worker:
    """One thread of a segment, and what others may read of it: the batch and slot it is on, and its tally."""

    def __init__(
        self,
        number: int,
        name: str,
        channel: Channel[Part],
        meter: Meter,
        parking: Parking,
        *,
        is_annex: bool = False,
        tally: Tally | None = None,
    ) -> None:
        self.number = number
        self.is_annex = is_annex  # it only makes samples; batches are finished by the pool's own threads
        self.channel = channel
        self.meter = meter
        self.parking = parking
        self.niceness = niceness()
        self.tally = tally or Tally()
        self.batch: Batch | None = None
        self.slot = 0
        self.stage = ""
        self.key: Key = (False, ())  # of the stages that it works on, or worked on last
        self.is_given_up = False  # it was stuck in user code, another thread has its place, and it is to end
        self.entered: Callable[[], None] | None = None
        self.setup_error: BaseException | None = None
        self.unannounced: list[Wake] = []
        self.is_set_up = False
        self._tear_down: Callable[[], None] | None = None
        self._set_up_is_over: SimpleQueue[None] = SimpleQueue()  # not an Event: Ctrl-C can break its lock
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, set_up: Callable[[int], Callable[[], None] | None]) -> None:
        """Start the thread and wait until ``set_up(number)`` has run in it. Raises what that raised.

        What it returned, if anything, is called in the thread as the last thing before it ends.
        """
        self._set_up = set_up
        alive.add(self)
        try:
            self.thread.start()
        except RuntimeError:  # the system has no thread left to give
            alive.discard(self)
            raise
        self._set_up_is_over.get()
        error, self.setup_error = self.setup_error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame

    def place(self) -> str:
        """Where the thread is, in words: stage, dataset index and batch."""
        batch = self.batch
        if batch is None:
            return "its set-up (worker_init_fn)" if not self.is_set_up else "no stage"
        if not 0 <= self.slot < len(batch.indices):  # it may have moved on since
            return f"stage {batch.chain.last_stage!r} (batch {batch.number})"
        if batch.chain.lane is not None:
            return f"stage {self.stage!r} (batch {batch.number})"
        return f"stage {self.stage!r}, dataset index {batch.indices[self.slot]!r} (batch {batch.number})"

    def _run(self) -> None:
        try:
            stand_back(self.niceness)
            here.watch = self.tally.watch
            self.parking.join()
            is_ready = False
            try:
                self._tear_down = self._set_up(self.number)
                is_ready = True
            except BaseException as error:
                self.setup_error = error
            del self._set_up
            self.is_set_up = True
            self._set_up_is_over.put(None)
            while is_ready and self._serve_one():
                pass
            if self._tear_down is not None:
                self._tear_down()
        finally:
            self._tear_down = None
            self.tally.is_over = True
            alive.discard(self)

    def _serve_one(self) -> bool:
        """Wait for a batch and work on it. A function of its own, so that nothing of the batch outlives it."""
        if self.parking.running > self.parking.limit:
            self._wake_consumer()
            tally = self.tally
            seconds, parked_at = tally.parked[0], perf_counter()
            tally.parked = seconds, parked_at
            self.parking.wait_for_room()
            tally.parked = seconds + perf_counter() - parked_at, None
        channel = self.channel
        try:
            part = channel.get_nowait()
        except Empty:
            self._wake_consumer()  # before this thread waits itself
            part = channel.get()
        while channel.urgent and not self.parking.is_open and not self.is_given_up:
            try:
                self._serve(channel.urgent.popleft())
            except IndexError:  # another thread took the last one
                break
        if self.is_given_up:  # who gave it up calls others to what it was called to
            return False
        if part is None or self.parking.is_open:
            self._wake_consumer()
            while part is not None:  # what lies before the end is not left there: it leads to the pool, and back here
                part = channel.get()
            channel.urgent.clear()
            return False
        self._serve(part)
        return not self.is_given_up

    def _serve(self, part: Part) -> None:
        batch = part.batch
        if (part.todo or batch.is_settled) and not batch.is_dropped:
            self.batch = batch
            try:
                if part.todo and part.segment.place is not None and not self.is_annex:
                    part.segment.place.call(part, len(part.todo))  # for the consumer
                else:
                    self._work_on(part)
            except GivenUp:
                self.is_given_up = True
            except BaseException as error:  # ours, or no memory left: the consumer must hear of it, not wait for ever
                if not batch.done:
                    batch.drop()
                    announce(batch, caught(error, "engine"))
                    batch.wake.put(None)
            self.batch = None

    def _wake_consumer(self) -> None:
        """Announce what was finished meanwhile."""
        while self.unannounced:
            self.unannounced.pop().put(None)

    def _work_on(self, part: Part) -> None:
        """Take samples of the batch until every one is taken; finish it, if its last one was settled here.

        All threads that were called to this batch do the same at once: a list's pop is what shares the samples out.
        """
        batch, todo, take, legs, parking = part.batch, part.todo, part.take, part.segment.legs, self.parking
        chain, is_last = batch.chain, part.next is None
        if chain.enter is not self.entered:
            chain.enter()
            self.entered = chain.enter  # not the chain: an idle thread must not keep the user's objects alive
        settle = batch.settled.setdefault  # Batch.settle, without a frame for each sample
        only = None  # the one function that all is done with: the shortest way, which is paid for every sample
        if is_last and len(legs) == 1 and legs[0].begin is None and len(legs[0].steps) == 1:
            self.stage, only = legs[0].steps[0]
        tally, num_each, seconds = self.tally, batch.num_each, self.meter.sample_seconds
        probe = tally.probes.now
        if probe is not tally.probe:
            tally.follow()
        key, watch = part.segment.key, tally.watch
        self.key = key
        work = tally.work_at(key)
        num_come = 0 if chain.lane is not None else num_each  # how many a lane read is known when it has read them
        every = 1 if seconds is None or probe is not None else work.every(num_each, seconds)
        due = every - work.num_untimed  # the sample of this visit that is timed by itself
        shortest = 0 if only is None else due  # until that one, the shortest way
        num_samples = 0
        begin = perf_counter()
        while todo and not parking.is_open:
            try:
                self.slot = slot = todo.pop()
            except IndexError:  # another thread took the last one
                break
            num_samples += 1
            work.num_samples += num_come  # before its batch can be handed out
            try:
                if num_samples < shortest:
                    settle(slot, only(take(slot)))  # pyright: ignore[reportOptionalCall]  # it is there
                    continue
                is_timed = num_samples >= due
                value = take(slot)
                if is_timed:
                    due = num_samples + every
                    shortest = 0 if only is None else due
                    watch.begin(batch, slot, part.segment)
                for leg in legs:
                    if leg.begin is not None:
                        leg.begin(batch.items[slot])
                    for self.stage, step in leg.steps:
                        value = step(value)
                        if is_timed:
                            watch.lap()
                if is_timed:
                    work.add(watch.end(), num_each, every * num_each)
                if is_last:
                    settle(slot, value)
                else:
                    part.pass_on(slot, value)
            except GivenUp as gone:  # neither the batch nor the tally is this thread's to touch any more
                watch.fail(gone)
                raise
            except BaseException as error:
                watch.fail(error)
                if (is_error := not isinstance(error, NoError)) or isinstance(error, SkipSample):
                    work.num_samples += num_each - num_come
                    tally.fail(key, said_stage(error, self.stage), num_each, is_error=is_error)
                batch.fail(slot, caught(error, self.stage, slot))
            value = None  # what the user gets must not be kept here
        end = perf_counter()
        if num_samples:
            work.num_untimed = every - (due - num_samples)
            work.seconds += end - begin - watch.take_lost()
            self.meter.add(num_samples, end - begin)
        if self.is_annex:
            part.call_home()
        elif batch.claim_finish():
            self.slot = -1
            finished = finish(batch, tally, end)
            self.meter.add_finish(batch.size, finished - end)
            self.unannounced.append(batch.wake)
            work_seconds = self.meter.work_seconds
            if finished - begin > CHEAP_SECONDS or work_seconds is None or work_seconds > LONE_SECONDS:
                self._wake_consumer()
        if end >= parking.next_look:
            parking.look(end, self.meter.work_seconds)
        # A user's frame, kept by a traceback, keeps this one: let it keep nothing of the batch.
        del part, batch, chain, todo, take, legs, only, settle


def join(workers: Iterable[Worker], deadline: float) -> list[Worker]:
    """Wait for the threads of these workers until ``deadline``. Returns those that are still alive."""
    workers = [worker for worker in workers if worker.thread.is_alive()]
    for worker in workers:
        if worker.thread is not threading.current_thread():
            worker.thread.join(max(0.0, deadline - time.monotonic()))
    return [worker for worker in workers if worker.thread.is_alive()]
