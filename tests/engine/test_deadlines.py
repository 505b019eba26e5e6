"""Deadlines: what is too long in a stage is given up once, in its place; who was stuck touches nothing any more.

The clock is the test's: a look is told what time it is, so that nothing waits for a deadline.
"""

import threading
import time
from time import perf_counter

import pytest
from fakes import (
    PATIENCE_SECONDS,
    batch_of,
    in_threads,
    next_of,
    pool_of,
    rest_of,
    wait_for,
)
from fakes_deadlines import SECONDS, Looking, Slow, outcome, stuck_in

from torchstage.engine.deadlines import StageTimeout
from torchstage.engine.stuck import GivenUp, Running, give_up

# One sample ------------------------------------------------------------------------------------------------


def test_a_sample_is_given_up_when_its_time_is_over_and_not_before():
    with stuck_in(2, 3, batches=[[1, 2], [3, 4], [5, 6]]) as (slow, _, run, looking):
        assert looking.after(SECONDS - 1) < perf_counter() + SECONDS
        assert looking.replaced == []
        looking.after(SECONDS + 1)
        assert [worker.thread for worker in looking.replaced] == [slow.threads[3]]
        batches = rest_of(run)
    assert [outcome(batch) for batch in batches] == [[1, 2], StageTimeout, [5, 6]]
    failure = batches[1].failure
    assert (failure.stage, failure.slot) == ("fetch", 0)
    assert str(failure.error) == (
        f"stage 'fetch', slot 0, batch 1: not done after 10 seconds, and given up, in thread {slow.threads[3].name}, "
        "which is here:\nits stack\n"
    )


def test_what_is_given_up_is_given_up_once():
    with stuck_in(1, 3, batches=[[1, 2], [3, 4]]) as (_, _, run, looking):
        batch = list(run.in_flight)[1]
        for _ in range(3):
            looking.after(SECONDS + 1)
        assert not looking.threads.give_up(batch, 0, 1.0)
        assert len(looking.replaced) == 1
        assert [outcome(batch) for batch in rest_of(run)] == [[1, 2], StageTimeout]


def test_the_last_sample_of_a_batch_is_given_up_and_somebody_finishes_the_batch():
    with stuck_in(1, 2, batches=[[1, 2]]) as (_, _, run, looking):
        looking.after(SECONDS + 1)
        assert outcome(next_of(run)) is StageTimeout


def test_samples_that_the_stuck_thread_alone_was_called_to_are_made_by_others():
    with stuck_in(1, 1, batches=[[1], [2, 3], [4, 5]]) as (_, _, run, looking):
        looking.after(SECONDS + 1)
        assert [outcome(batch) for batch in rest_of(run)] == [StageTimeout, [2, 3], [4, 5]]


def test_all_threads_may_be_stuck_at_once():
    with stuck_in(2, 1, 2, batches=[[1, 2], [3, 4]]) as (slow, _, run, looking):
        looking.after(SECONDS + 1)
        assert {worker.thread for worker in looking.replaced} == {slow.threads[1], slow.threads[2]}
        batches = rest_of(run)
    assert [outcome(batch) for batch in batches] == [StageTimeout, [3, 4]]
    assert batches[0].failure.slot == 0  # the lowest decides


# The thread that was stuck ---------------------------------------------------------------------------------


def test_who_comes_back_late_writes_nothing_takes_nothing_and_ends():
    slow = Slow(100)
    with pool_of(1) as pool:
        looking = Looking(pool, slow)
        batch = batch_of(3, slow.chain)
        pool.call_threads_to(batch)
        slow.gates[100].wait_until_inside()
        (old,) = pool.workers
        looking.after(SECONDS + 1)
        settled, works = dict(batch.settled), old.tally.works
        counted = {key: (work.num_samples, work.seconds) for key, work in works.items()}
        assert type(settled[0].error) is StageTimeout
        slow.let_go()
        old.thread.join(PATIENCE_SECONDS)
        assert not old.thread.is_alive()
        assert {key: (work.num_samples, work.seconds) for key, work in works.items()} == counted
        assert old.tally.is_over
        assert old.is_given_up
        wait_for(lambda: batch.done)
        assert outcome(batch) is StageTimeout
        (new,) = pool.workers
        assert new is not old
        assert (new.number, new.thread.name) == (old.number, f"{old.thread.name}.1")


def test_a_thread_that_is_not_late_any_more_goes_on_as_if_nothing_was():
    """It comes out between two looks."""
    with stuck_in(1, 3, batches=[[1, 2], [3, 4]]) as (slow, _, run, looking):
        slow.let_go()
        assert [outcome(batch) for batch in rest_of(run)] == [[1, 2], [3, 4]]
        looking.after(SECONDS + 1)
        assert looking.replaced == []


def test_whoever_is_first_has_the_sample():
    running = Running()
    entries = []

    def given_up_inside(value):
        entries.append(running.of(threading.get_ident()))
        assert give_up(entries[0])
        return value

    with pytest.raises(GivenUp):
        running.limited(given_up_inside, "fetch", SECONDS)(1)
    entries.clear()
    assert running.limited(lambda value: entries.append(running.of(threading.get_ident())), "fetch", SECONDS)(1) is None
    assert not give_up(entries[0])
    assert running.of(threading.get_ident()) is None


def test_an_error_of_a_thread_that_was_given_up_is_nobodys():
    running = Running()

    def raising(value):
        assert give_up(running.of(threading.get_ident()))
        raise LookupError("of the user's")

    with pytest.raises(GivenUp):
        running.limited(raising, "fetch", SECONDS)(1)


@pytest.mark.usefixtures("short_switch_interval")
def test_at_the_very_deadline_one_of_the_two_has_the_sample_and_knows_it():
    running, num_rounds = Running(), 300
    inside, results = threading.Barrier(2), []

    def thread(number):
        if number:

            def stage(value):
                inside.wait(PATIENCE_SECONDS)
                return value

            for value in range(num_rounds):
                try:
                    results.append(("thread", running.limited(stage, "fetch", SECONDS)(value)))
                except GivenUp:
                    results.append(("gone", value))
                inside.wait(PATIENCE_SECONDS)
        else:
            won = []
            for _ in range(num_rounds):
                entry = next(iter(wait_until(lambda: list(running._entries.values()))))
                while "by" in entry:  # of the round before
                    entry = next(iter(running._entries.values()))
                inside.wait(PATIENCE_SECONDS)
                won.append(give_up(entry))
                inside.wait(PATIENCE_SECONDS)
            return won
        return None

    def wait_until(found):
        while not (value := found()):
            time.sleep(0)
        return value

    won, _ = in_threads(2, thread)
    assert [who == "gone" for who, _ in results] == won
