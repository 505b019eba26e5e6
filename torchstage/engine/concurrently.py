"""Concurrently: samples in from any thread, coroutines that make them run in an event loop, at most so many at once.

Guarantees: ``call`` takes no lock and waits for nothing; a sample that was taken is settled, or belongs to a dropped
batch; a coroutine that ends, in whatever way, gives its room to the next.
"""

import asyncio
import inspect
from collections import deque

from torchstage.engine.event_loop import EventLoop, Making
from torchstage.engine.ticket import Part, caught


class Concurrently:
    """The place of a segment of coroutines: at most ``concurrency`` of them at once, in an event loop."""

    runs_user_code = False

    def __init__(self, loop: EventLoop, concurrency: int) -> None:
        self._loop = loop
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

    async def _made(self, making: Making) -> None:
        part, slot = making.part, making.slot
        try:
            value = part.take(slot)
            for leg in part.segment.legs:
                if leg.begin is not None:
                    leg.begin(part.batch.items[slot])
                for making.stage, step in leg.steps:
                    value = step(value)
                    if inspect.isawaitable(value):
                        value = await value
            part.conclude(slot, value)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and part.batch.is_dropped:
                raise
            part.fail(slot, caught(error, making.stage, slot))
