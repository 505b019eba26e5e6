"""Event loop: its beginning and its end, who waits for it meanwhile, and what it keeps."""

import asyncio
import gc
import threading
import time
import weakref

import pytest
from fakes import PATIENCE_SECONDS, Gate, do_nothing, in_threads, wait_for
from fakes_elsewhere import Door, batch_in, event_loop, make, same

from torchstage.engine.concurrently import Concurrently
from torchstage.engine.event_loop import EventLoop
from torchstage.engine.segment import alive


def test_other_threads_wait_for_a_coroutine_and_hear_its_error():
    async def fail():
        raise KeyError("user")

    with event_loop() as loop:
        assert in_threads(4, lambda number: loop.wait_for(same(number))) == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="user"):
            loop.wait_for(fail())
        assert loop._owed == {}


def test_who_waits_when_the_loop_ends_is_told():
    door = Door()
    with event_loop() as loop:
        raised = []

        def wait():
            with pytest.raises(asyncio.CancelledError):
                loop.wait_for(door(1))
            raised.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: door.num_inside)
        loop.abandon()
        thread.join(PATIENCE_SECONDS)
        assert raised == [True]


def test_who_asks_while_the_loop_ends_is_told():
    """1. The last task has ended, 2. somebody asks for another, 3. the loop is closed: it will never begin."""
    at_close = Gate()

    def new_loop():
        loop = asyncio.new_event_loop()
        close = loop.close
        loop.close = lambda: (at_close(), close())
        return loop

    with event_loop(new_loop=new_loop) as loop:
        loop.abandon()
        at_close.wait_until_inside()
        raised = []

        def wait():
            with pytest.raises(asyncio.CancelledError):
                loop.wait_for(same(1))
            raised.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_for(lambda: loop._owed)
        at_close.open()
        thread.join(PATIENCE_SECONDS)
        assert raised == [True]


def test_who_asks_after_the_end_is_told():
    with event_loop() as loop:
        loop.abandon()
        assert loop.join(time.monotonic() + PATIENCE_SECONDS) == []
        with pytest.raises(RuntimeError, match="the event loop has ended"):
            loop.wait_for(same(1))


def test_nothing_starts_before_it_is_told_to():
    with event_loop(start=False) as loop:
        assert not loop.has_started
        loop.leave()
        loop.tell(do_nothing)


def test_the_end_cancels_what_waits_and_lets_it_clean_up():
    door, cleaned = Door(), []

    async def fetch(value):
        try:
            await door(value)
        finally:
            await asyncio.sleep(0)
            cleaned.append(value)

    with event_loop() as loop:
        place = Concurrently(loop, 2)
        batch = batch_in(place, fetch, 5)
        place.call(batch.first, 5)
        wait_for(lambda: door.num_inside == 2)
    assert sorted(cleaned) == [100, 101]
    assert loop not in alive
    assert not place._waiting  # it leads to the pool, and from there back to the loop


def test_a_coroutine_that_is_stuck_is_named():
    gate = Gate()

    async def stuck(value):
        gate()

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        place.call(batch_in(place, stuck).first, 1)
        gate.wait_until_inside()
        loop.abandon()
        loop.abandon()
        assert loop.join(time.monotonic()) == [loop]
        assert loop.place() == "stage 'fetch'"
        gate.open()


def test_an_error_in_set_up_is_raised_where_it_is_started():
    def fail(number):
        raise ValueError("set-up")

    with event_loop(start=False) as loop:
        with pytest.raises(ValueError, match="set-up"):
            loop.start(fail)
        loop.thread.join(PATIENCE_SECONDS)
        assert loop not in alive


def test_a_loop_that_is_told_to_end_while_it_starts_ends():
    gate = Gate()
    with event_loop(start=False) as loop:
        starter = threading.Thread(target=loop.start, args=(lambda number: gate(),))
        starter.start()
        gate.wait_until_inside()
        loop.abandon()
        gate.open()
        starter.join(PATIENCE_SECONDS)


def test_a_thread_that_the_system_refuses_leaves_no_loop_open(monkeypatch):
    def refuse():
        raise RuntimeError("can't start new thread")

    loop = EventLoop("torchstage-test-loop", asyncio.new_event_loop)
    monkeypatch.setattr(loop.thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        loop.start(do_nothing)
    assert loop not in alive
    assert loop._loop.is_closed()


def test_nothing_is_kept_of_samples_that_were_made_failed_or_were_dropped():
    class Value:
        """Something that can be referenced weakly."""

    values, door = [], Door()

    async def fetch(index):
        values.append(weakref.ref(value := Value()))
        if index == 101:
            raise ValueError(index)
        if index == 102:
            await door(index)
        return value

    gc.collect()
    gc.disable()
    try:
        with event_loop() as loop:
            place = Concurrently(loop, 8)

            def make_and_drop():
                batch = batch_in(place, fetch, 3)
                place.call(batch.first, 3)
                wait_for(lambda: len(batch.settled) == 2 and door.num_inside)
                batch.drop()

            make_and_drop()
            loop.leave()
            wait_for(lambda: not loop._tasks)
            assert make(place, same) == [100]  # so the loop has left the first batch
            wait_for(lambda: [value() for value in values] == [None] * 3)
    finally:
        gc.enable()
