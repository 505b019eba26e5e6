"""Stand-ins for what runs in other places than the pool's own threads: batches that go there, coroutines that wait."""

import asyncio
import threading
import time
from contextlib import contextmanager

from fakes import PATIENCE_SECONDS, Elsewhere, chain_of_segments, do_nothing, segment_of, wait_for

from torchstage.engine.event_loop import EventLoop
from torchstage.engine.ticket import Batch, Chain, Nobody


class Home(Elsewhere):
    """Where batches are finished: remembers which were called to it."""


@contextmanager
def event_loop(start=True, new_loop=asyncio.new_event_loop):
    loop = EventLoop("torchstage-test-loop", new_loop)
    if start:
        loop.start(do_nothing)
    try:
        yield loop
    finally:
        loop.abandon()
        assert loop.join(time.monotonic() + PATIENCE_SECONDS) == []


def batch_in(place, function, size=1, number=0, enter=None, *then):
    chain = chain_of_segments(segment_of("fetch", function, place), *then, home=Home())
    if enter is not None:
        chain = Chain(chain.segments, chain.finish, enter, home=chain.home)
    return Batch(number, range(100, 100 + size), chain, Nobody())


def values_of(batch):
    """The values of its samples, once all are there."""
    wait_for(lambda: batch.is_settled)
    return [batch.settled[slot] for slot in range(batch.size)]


def make(place, function, size=1):
    """What becomes of these samples."""
    batch = batch_in(place, function, size)
    place.call(batch.first, size)
    return values_of(batch)


async def same(value):
    return value


class Door:
    """A coroutine function whose coroutines wait until they are let through; it counts those inside."""

    def __init__(self):
        self.num_inside = self.most_inside = 0
        self._event = None

    async def __call__(self, value):
        self._event = self._event or asyncio.Event()
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        try:
            await self._event.wait()
        finally:
            self.num_inside -= 1
        return value

    def open(self, loop):
        loop.tell(lambda: self._event.set())


def in_loop(loop, *functions):
    """Call these in the loop's thread with nothing in between, and wait until that was done."""
    is_over = threading.Event()

    def call_all():
        for function in functions:
            function()
        is_over.set()

    loop.tell(call_all)
    assert is_over.wait(PATIENCE_SECONDS)
