"""Executors: samples go through an executor of the user's, whatever it does with them."""

import gc
import threading
import time
import weakref
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from fakes import PATIENCE_SECONDS, Elsewhere, Gate, in_threads, next_of, pool_of, rest_of, run_of, segment_of, wait_for
from fakes_elsewhere import Home, batch_in, make, values_of

from torchstage.engine.executors import STAGE, ExecutorDiedError, InExecutor
from torchstage.engine.pipeline import Run
from torchstage.engine.ticket import Chain


class ByHand(Executor):
    """An executor that runs what it was given when the test says so."""

    def __init__(self):
        self.given = []

    def submit(self, function, *arguments):
        future = Future()
        self.given.append((future, function, arguments))
        return future

    def run_one(self, at=0):
        future, function, arguments = self.given.pop(at)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)


class AtOnce(Executor):
    """An executor that runs what it is given in ``submit``, and has called back before that returns."""

    def submit(self, function, *arguments):
        future = Future()
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        return future


class Refusing(Executor):
    """An executor that raises."""

    def __init__(self, error):
        self.error = error

    def submit(self, function, *arguments):
        raise self.error


def place_in(executor, concurrency=None, submit=None):
    def give(part, slot, value):
        ((_, function),) = part.segment.steps
        return executor.submit(function, value)

    return InExecutor(executor, submit or give, concurrency)


@contextmanager
def threads_of_the_users(num_threads):
    with ThreadPoolExecutor(num_threads) as executor:
        yield executor


def test_samples_come_back_in_their_slots_in_whatever_order_they_are_made():
    executor = ByHand()
    place = place_in(executor)
    batch = batch_in(place, str, 3)
    place.call(batch.first, 3)
    for at in (2, 0, 0):
        executor.run_one(at)
    assert values_of(batch) == ["100", "101", "102"]
    assert batch.chain.home.called[-1] == (batch.first, 0)


def test_no_more_samples_than_asked_for_are_with_it_at_once():
    executor = ByHand()
    place = place_in(executor, 2)
    batch = batch_in(place, str, 5)
    place.call(batch.first, 5)
    for num_left in (2, 2, 2, 2, 1):
        assert len(executor.given) == num_left
        executor.run_one()
    assert values_of(batch) == ["100", "101", "102", "103", "104"]
    assert len(place._room) == 2


@pytest.mark.parametrize("concurrency", [None, 1, 2])
def test_an_executor_may_run_a_sample_inside_submit(concurrency):
    place = place_in(AtOnce(), concurrency)
    assert make(place, str, 2000) == [str(index) for index in range(100, 2100)]


def test_samples_pass_through_two_such_executors():
    first, second = place_in(AtOnce(), 1), place_in(AtOnce(), 1)
    batch = batch_in(first, str, 500, 0, None, segment_of("decode", int, second))
    first.call(batch.first, 500)
    assert values_of(batch) == list(range(100, 600))


def test_nobody_is_left_waiting_where_many_threads_call_and_call_back():
    with threads_of_the_users(4) as executor:
        place = place_in(executor, 2)
        batches = [batch_in(place, str, 50, number) for number in range(8)]
        in_threads(8, lambda number: place.call(batches[number].first, 50))
        for batch in batches:
            assert values_of(batch) == [str(index) for index in range(100, 150)]
        wait_for(lambda: len(place._room) == 2 and not place._given)


def test_threads_of_the_pool_finish_what_an_executor_made():
    with threads_of_the_users(2) as executor, pool_of(2) as pool:
        place = place_in(executor)
        pool.annexes.append(place)
        chain = batch_in(place, str).chain
        run = run_of(pool, [[1, 2, 3], [4]], Chain(chain.segments, chain.finish, chain.enter, home=pool))
        assert [batch.value for batch in rest_of(run)] == [["1", "2", "3"], ["4"]]


def test_the_consumers_thread_gives_an_executor_nothing():
    """Ctrl-C in the middle of it would lose a sample, or the room for it; and ``submit`` may take its time."""
    givers = []

    class Slow(AtOnce):
        def submit(self, function, *arguments):
            givers.append(threading.current_thread())
            return super().submit(function, *arguments)

    with pool_of(1) as pool:
        place = place_in(Slow())
        chain = batch_in(place, str).chain
        run = run_of(pool, [[1, 2], [3]], Chain(chain.segments, chain.finish, chain.enter, home=pool), window=1)
        assert [batch.value for batch in rest_of(run)] == [["1", "2"], ["3"]]
        assert set(givers) == {pool.workers[0].thread}


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, RuntimeError])
def test_what_a_stage_raises_is_its_samples_failure(kind):
    def fail(value):
        raise kind("cannot schedule new futures after shutdown")  # the words that an executor uses itself

    place = place_in(AtOnce(), 1)
    (failure,) = make(place, fail)
    assert (type(failure.error), failure.stage, failure.slot) == (kind, "fetch", 0)
    assert make(place, str) == ["100"]


def test_an_error_that_says_its_stage_is_believed():
    def fail(value):
        error = BrokenExecutor("the user's own")
        setattr(error, STAGE, "decode")
        raise error

    (failure,) = make(place_in(AtOnce()), fail)
    assert (type(failure.error), failure.stage) == (BrokenExecutor, "decode")


class UnspeakableError(Exception):
    """An error that cannot be put into words."""

    def __str__(self):
        raise ValueError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("executor", [AtOnce(), Refusing(UnspeakableError())])
def test_an_error_that_cannot_be_put_into_words_loses_no_sample(executor):
    def fail(value):
        raise UnspeakableError

    (failure,) = make(place_in(executor, 1), fail)
    assert type(failure.error) is UnspeakableError


def test_an_executor_that_was_shut_down_says_so():
    with threads_of_the_users(1) as executor:
        pass
    place = place_in(executor, 1)
    first, second = make(place, str, 2)
    assert type(first.error) is ExecutorDiedError
    assert "its executor, a ThreadPoolExecutor, takes no more work" in str(first.error)
    assert type(first.error.__cause__) is RuntimeError
    assert len(place._room) == 1
    assert second is not None


def test_an_executor_that_lost_a_sample_says_so():
    executor = ByHand()
    place = place_in(executor)
    batch = batch_in(place, str)
    place.call(batch.first, 1)
    executor.given.pop()[0].set_exception(BrokenExecutor("a process died"))
    (failure,) = values_of(batch)
    assert type(failure.error) is ExecutorDiedError


def test_an_executor_that_returns_no_future_loses_no_sample():
    place = place_in(ByHand(), 1, lambda part, slot, value: value)
    (failure,) = make(place, str)
    assert type(failure.error) is AttributeError
    assert len(place._room) == 1


def test_an_error_of_what_comes_next_is_the_samples():
    class Broken(Elsewhere):
        def call(self, part, num_samples):
            raise OSError("no place")

    place = place_in(AtOnce(), 1)
    batch = batch_in(place, str, 1, 0, None, segment_of("decode", str, Broken()))
    place.call(batch.first, 1)
    (failure,) = values_of(batch)
    assert str(failure.error) == "no place"
    assert len(place._room) == 1


# Leaving --------------------------------------------------------------------------------------------------------


def test_what_belongs_to_a_dropped_batch_is_taken_back_and_the_next_goes_on():
    executor = ByHand()
    place = place_in(executor, 2)
    old, batch = batch_in(place, str, 5), batch_in(place, str, 3)
    place.call(old.first, 5)
    executor.given[0][0].set_running_or_notify_cancel()  # this one cannot be taken back
    old.drop()
    place.leave()
    place.call(batch.first, 3)
    running = executor.given.pop(0)
    while executor.given:
        executor.run_one()
    running[0].set_result("late")
    while executor.given:
        executor.run_one()
    assert values_of(batch) == ["100", "101", "102"]
    assert old.settled == {}
    assert len(place._room) == 2


def test_what_is_passed_on_right_after_its_batch_was_dropped_is_not_given():
    executor = ByHand()
    place = place_in(executor, 1)
    old = batch_in(place, str)
    part = old.first
    old.drop()
    part.todo.append(0)  # by a thread that looked before
    place.call(part, 1)
    assert executor.given == []
    assert len(place._room) == 1


def test_the_end_gives_the_executor_nothing_more():
    """What is cancelled is told at once, inside ``abandon``: in a finalizer, which may come while ``submit`` holds the
    executor's lock."""
    executor = ByHand()
    place = place_in(executor, 1)
    batch = batch_in(place, str, 3)
    place.call(batch.first, 3)
    ((future, _, _),) = executor.given
    place.abandon()
    assert future.cancelled()
    assert len(executor.given) == 1
    place.call(batch.first, 1)
    assert len(executor.given) == 1
    assert not place._waiting
    assert place.join(time.monotonic() + PATIENCE_SECONDS) == []


def test_the_end_waits_for_what_cannot_be_taken_back_until_the_deadline():
    gate = Gate()
    with threads_of_the_users(1) as executor:
        place = place_in(executor)
        place.call(batch_in(place, gate).first, 1)
        gate.wait_until_inside()
        place.abandon()
        assert place.join(time.monotonic()) == []
        assert len(place._given) == 1
        gate.open()
        place.join(time.monotonic() + PATIENCE_SECONDS)
        assert not place._given


def test_nothing_is_kept_of_samples_that_were_made_or_failed():
    class Value:
        """Something that can be referenced weakly."""

    values = []

    def fetch(index):
        values.append(weakref.ref(value := Value()))
        if index == 101:
            raise ValueError(index)
        return value

    gc.collect()
    gc.disable()
    try:
        with threads_of_the_users(1) as executor:
            place = place_in(executor)
            batch = batch_in(place, fetch, 2)
            place.call(batch.first, 2)
            values_of(batch)
            batch.drop()
            batch.chain.home.called.clear()
            del batch
            assert make(place, str) == ["100"]
            wait_for(lambda: [value() for value in values] == [None, None])
    finally:
        gc.enable()


# What is late ---------------------------------------------------------------------------------------------------


def test_what_is_late_is_told_by_its_stage_also_elsewhere():
    executor = ByHand()
    with pool_of(1) as pool:
        place = place_in(executor, 1)
        pool.annexes.append(place)
        segments = segment_of("fetch", str), segment_of("decode", str, place)
        chain = Chain(segments, batch_in(place, str).chain.finish, batch_in(place, str).chain.enter, home=pool)
        run = Run(pool, iter([([7, 8], chain, None)]), lambda batch: 1)
        run.fill()
        wait_for(lambda: executor.given and len(place._waiting) == 1)
        _, slot, stage, worker = run.late()
        assert (slot, stage, worker) == (0, "decode", None)
        executor.run_one()  # and the other is given
        assert run.late()[1:] == (1, "decode", None)
        executor.run_one()
        assert next_of(run).value == ["7", "8"]


def test_a_sample_that_waits_for_a_stage_is_late_there():
    place = Elsewhere()
    batch = batch_in(place, str, 1, 0, None, segment_of("decode", str, Elsewhere()))
    place.call(batch.first, 1)
    assert batch.stage_before(0) == "fetch"
    place.make_one()
    assert batch.stage_before(0) == "decode"
    assert isinstance(batch.chain.home, Home)
