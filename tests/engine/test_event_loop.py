"""Event loop: coroutines of samples, at most so many at once, in one thread that goes on whatever they do."""

import asyncio
import contextvars

import pytest
from fakes import Elsewhere, segment_of, wait_for
from fakes_elsewhere import Door, batch_in, event_loop, in_loop, make, same, values_of

from torchstage.engine.concurrently import Concurrently


def test_samples_wait_at_the_same_time_but_no_more_than_asked_for():
    door = Door()
    with event_loop() as loop:
        place = Concurrently(loop, 3)
        batch = batch_in(place, door, 8)
        place.call(batch.first, 8)
        wait_for(lambda: door.num_inside == 3)
        door.open(loop)
        assert values_of(batch) == list(range(100, 108))
    assert door.most_inside == 3


def test_who_settles_the_last_sample_calls_home():
    with event_loop() as loop:
        place = Concurrently(loop, 2)
        batch = batch_in(place, same, 3)
        place.call(batch.first, 3)
        wait_for(lambda: batch.chain.home.called)
        assert {part for part, _ in batch.chain.home.called} == {batch.first}
        assert batch.claim_finish()


def test_a_sample_goes_on_to_the_next_place():
    with event_loop() as loop:
        place, after = Concurrently(loop, 2), Elsewhere()
        batch = batch_in(place, same, 1, 0, None, segment_of("decode", str, after))
        place.call(batch.first, 1)
        wait_for(lambda: after.called)
        after.make_one()
        assert batch.settled == {0: "100"}


def test_a_coroutine_that_is_cancelled_before_its_first_step_gives_its_place_back():
    """1. It is begun, 2. its batch is dropped and it is cancelled, 3. its first step would be due: nothing of it runs,
    no ``finally`` either."""
    with event_loop() as loop:
        place = Concurrently(loop, 1)
        old = batch_in(place, same, 2)
        in_loop(loop, lambda: place._take(old.first), old.drop, loop._cancel_dropped)
        assert make(place, same, 2) == [100, 101]


def test_a_coroutine_that_is_cancelled_gives_its_place_back():
    door = Door()
    with event_loop() as loop:
        place = Concurrently(loop, 2)
        old = batch_in(place, door, 5)
        place.call(old.first, 5)
        wait_for(lambda: door.num_inside == 2)
        old.drop()
        loop.leave()
        other = Door()
        batch = batch_in(place, other, 5)
        place.call(batch.first, 5)
        wait_for(lambda: other.num_inside == 2)
        other.open(loop)
        assert values_of(batch) == list(range(100, 105))
    assert (door.num_inside, other.most_inside) == (0, 2)
    assert old.settled == {}


def test_a_coroutine_that_will_not_be_cancelled_keeps_its_place_until_it_ends():
    door, inside = Door(), []

    async def stubborn(value):
        try:
            await door(value)
        except asyncio.CancelledError:
            inside.append(value)
            await other(value)

    other = Door()
    with event_loop() as loop:
        place = Concurrently(loop, 1)
        old, batch = batch_in(place, stubborn), batch_in(place, same)
        place.call(old.first, 1)
        wait_for(lambda: door.num_inside)
        old.drop()
        loop.leave()
        place.call(batch.first, 1)
        wait_for(lambda: other.num_inside)
        in_loop(loop)
        assert not batch.is_settled
        other.open(loop)
        assert values_of(batch) == [100]


def test_what_is_passed_on_right_after_its_batch_was_dropped_is_not_begun():
    seen = []

    async def fetch(value):
        seen.append(value)

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        old = batch_in(place, fetch)
        part = old.first
        old.drop()
        part.todo.append(0)  # by a thread that looked before
        place.call(part, 1)
        assert make(place, same) == [100]
    assert seen == []


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_whatever_a_coroutine_raises_is_its_samples_failure_and_the_loop_goes_on(kind):
    async def fail(value):
        await asyncio.sleep(0)
        raise kind("user")

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        (failure,) = make(place, fail)
        assert (type(failure.error), failure.stage, failure.slot) == (kind, "fetch", 0)
        with pytest.raises(kind, match="user"):
            loop.wait_for(fail(1))
        assert make(place, same) == [100]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_task_of_the_users_own_does_not_end_the_loop(kind):
    """asyncio lets these through, out of the loop."""
    tasks = []

    async def background():
        raise kind("user")

    async def fetch(value):
        tasks.append(asyncio.ensure_future(background()))
        await asyncio.wait(tasks)
        return value

    with event_loop() as loop:
        assert make(Concurrently(loop, 1), fetch) == [100]
        assert type(tasks.pop().exception()) is kind


def test_user_code_cannot_stop_the_loop():
    async def fetch(value):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return value

    with event_loop() as loop:
        assert make(Concurrently(loop, 1), fetch, 3) == [100, 101, 102]


def test_modes_that_cannot_be_entered_fail_the_sample():
    def enter():
        raise OSError("no device")

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        batch = batch_in(place, same, 2, 0, enter)
        place.call(batch.first, 2)
        failure, _ = values_of(batch)
        assert (failure.stage, str(failure.error)) == ("fetch", "no device")
        assert make(place, same, 2) == [100, 101]


def test_what_a_coroutine_sets_in_its_context_no_other_sees():
    variable = contextvars.ContextVar("variable", default="unset")

    async def fetch(value):
        before = variable.get()
        variable.set(value)
        await asyncio.sleep(0)
        return before

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        assert make(place, fetch, 3) == ["unset"] * 3
        token = variable.set("the caller's")  # whose thread it is, too, is chance
        try:
            assert make(place, fetch, 3) == ["unset"] * 3
        finally:
            variable.reset(token)


def test_the_modes_of_a_chain_are_there_at_its_first_sample():
    variable = contextvars.ContextVar("variable", default="unset")

    async def fetch(value):
        return variable.get()

    with event_loop() as loop:
        place = Concurrently(loop, 1)
        for epoch in ("one", "other"):
            batch = batch_in(place, fetch, 2, 0, lambda epoch=epoch: variable.set(epoch))
            place.call(batch.first, 2)
            assert values_of(batch) == [epoch, epoch]
