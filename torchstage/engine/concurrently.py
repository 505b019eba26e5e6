"""Concurrently: samples in from any thread, coroutines that make them run in an event loop, at most so many at once.

Guarantees: ``call`` takes no lock and waits for nothing; a sample that was taken is settled, or belongs to a dropped
batch; a coroutine that ends, in whatever way, gives its room to the next.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from time import perf_counter

from torchstage.engine.deadlines import StageTimeout
from torchstage.engine.event_loop import EventLoop, Making
from torchstage.engine.ledger import Site
from torchstage.engine.outcome import Failure, caught, said_stage
from torchstage.engine.stats import Tally
from torchstage.engine.ticket import Part
from torchstage.engine.told import Place, this_thread


class Concurrently:
    """The place of a segment of coroutines: at most ``concurrency`` of them at once, in an event loop."""

    runs_user_code = False

    def __init__(self, loop: EventLoop, concurrency: int, label: str = "") -> None:
        self.site = Site("event loop", concurrency, label)
        self._loop = loop
        self._tally: Tally | None = None  # one that never starts needs none
        self._concurrency = concurrency
        self._num_running = 0
        self._waiting: deque[Part] = deque()

    def call(self, part: Part, num_samples: int) -> None:
        """As Place.call."""
        self._loop.tell(self._take, part)

    def _take(self, part: Part) -> None:
        self._waiting.append(part)
        self._begin()

    def _begin(self) -> None:
        if self._loop.is_over:
            self._waiting.clear()
        while self._waiting and self._num_running < self._concurrency:
            part = self._waiting[0]
            try:
                slot = part.todo.pop()
            except IndexError:
                self._waiting.popleft()
                continue
            if part.batch.is_dropped:  # another place passed it on right after
                continue
            self._num_running += 1
            try:
                self._loop.begin(self._made, Making(part, slot, part.segment.stage), self._ended)
            except BaseException as error:  # the chain's modes cannot be entered, or no memory is left
                self._num_running -= 1
                part.fail(slot, caught(error, part.segment.stage, slot))

    def _ended(self) -> None:
        self._num_running -= 1
        self._begin()

    def give_up(
        self, task: "asyncio.Task[None]", making: Making, begin: float, error: Callable[[Making], StageTimeout]
    ) -> None:
        """In the loop's thread: cancel a sample that is too long in the stage that it came to at ``begin``, if it is
        still there, and let another one have its room, whatever it does about that."""
        part, slot = making.part, making.slot
        if task.done() or making.is_given_up or making.begin != begin or part.batch.is_dropped:
            return
        making.is_given_up = True
        failure = Failure(error(making), making.stage, slot)
        tally = self._tally
        if tally is not None:
            tally.fail(part.segment.key, making.stage, part.batch.num_each)
            self._tell(tally, making, begin, failure.error)
        task.cancel()
        part.fail(slot, failure)
        self._ended()

    async def _made(self, making: Making) -> None:
        part, slot = making.part, making.slot
        tally = self._tally = self._tally or self._loop.tally(self.site.label)
        work, num_each = tally.work_at(part.segment.key), part.batch.num_each
        work.num_samples += num_each
        probe = tally.probes.now
        making.begin = begin = since = perf_counter()
        try:
            value = part.take(slot)
            for leg in part.segment.legs:
                if leg.begin is not None:
                    leg.begin(part.batch.items[slot])
                for making.stage, step in leg.steps:
                    value = step(value)
                    if inspect.isawaitable(value):
                        value = await (value if probe is None else probe.in_stretches(making.stage, value))
                        if making.is_given_up:  # it was cancelled, and did not mind
                            return
                    making.begin = end = perf_counter()
                    making.laps.append((end - begin, None))
                    begin = end
            work.add(making.laps, num_each, num_each)
            work.seconds += sum(seconds for seconds, _ in making.laps)
            self._tell(tally, making, since)
            part.conclude(slot, value)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and (part.batch.is_dropped or making.is_given_up):
                raise
            if making.is_given_up:  # what its clean-up raised
                return
            tally.fail(part.segment.key, said_stage(error, making.stage), num_each)
            self._tell(tally, making, since, error)
            part.fail(slot, caught(error, making.stage, slot))
        finally:
            # Since Python 3.13, the frame of a coroutine that failed keeps this one: error, frame, this, batch, error.
            del part, making

    def _tell(self, tally: Tally, making: Making, since: float, error: BaseException | None = None) -> None:
        """What became of a sample, if somebody listens. One that fails after its last stage was told of already."""
        probe, part = tally.probes.now, making.part
        if probe is not None and (error is None or len(making.laps) < len(part.segment.key[1])):
            place = Place(this_thread(), since)
            probe.ran_through(part.segment, part.batch, making.slot, making.laps, place, overlaps=True, error=error)
