"""Deadlines among other things: rooms, closing, bounds, annexes, and the consumer's own time-out."""

import threading
import time
from time import perf_counter

import pytest
from fakes import (
    PATIENCE_SECONDS,
    attend,
    chain_of_segments,
    do_nothing,
    pool_of,
    rest_of,
    run_of,
    segment_of,
    wait_for,
)
from fakes_deadlines import SECONDS, Looking, Slow, outcome, stuck_in

from torchstage.engine import deadlines
from torchstage.engine.deadlines import MOST_PER_THREAD, Deadlines, StageTimeout
from torchstage.engine.parking import Parking
from torchstage.engine.pipeline import TimedOut
from torchstage.engine.pool import Pool

# Rooms, closing, bounds ------------------------------------------------------------------------------------


def test_the_room_of_a_stuck_thread_is_another_ones():
    """One thread may run at a time; the one that does is stuck, and the other is parked."""
    slow = Slow(1)
    with pool_of(2) as pool:
        run = run_of(pool, [[1], [2], [3], [4]], slow.chain)
        slow.gates[1].wait_until_inside()
        pool.parking.allow(1)
        looking = Looking(pool, slow, run)
        looking.after(SECONDS + 1)
        assert [outcome(batch) for batch in rest_of(run)] == [StageTimeout, [2], [3], [4]]
        assert pool.parking.running <= 2
        slow.let_go()


def test_leaving_gives_room_to_one_that_is_parked():
    parking = Parking(2, 1)
    parking.join()
    parking.join()
    parking.allow(1)
    parked = threading.Thread(target=parking.wait_for_room)
    parked.start()
    wait_for(lambda: parking.running == 1)
    parking.leave()
    parked.join(PATIENCE_SECONDS)
    assert not parked.is_alive()
    assert parking.running == 1


def test_of_a_closed_pool_nobody_is_replaced():
    with stuck_in(1, 1, batches=[[1]]) as (_, pool, _, looking):
        pool.abandon()
        looking.after(SECONDS + 1)
        assert looking.replaced == []


def test_what_belongs_to_an_epoch_that_was_left_is_given_up_and_nothing_is_written():
    with stuck_in(1, 1, batches=[[1]]) as (slow, pool, run, looking):
        batch = next(iter(run.in_flight))
        run.abandon()
        looking.run = None
        looking.after(SECONDS + 1)
        assert len(looking.replaced) == 1
        assert (batch.settled, batch.done) == ({}, False)
        other = run_of(pool, [[5], [6]], slow.chain)
        assert [outcome(batch) for batch in rest_of(other)] == [[5], [6]]


def test_close_waits_for_who_was_given_up_and_names_him():
    with stuck_in(1, 1, batches=[[1]]) as (slow, pool, _, looking):
        looking.after(SECONDS + 1)
        pool.abandon()
        pool.join_working(time.monotonic() + PATIENCE_SECONDS)
        (stuck,) = pool.join(time.monotonic())
        assert stuck.thread is slow.threads[1]
        assert stuck.place() == "stage 'fetch', dataset index 1 (batch 0)"
        assert not pool.has_ended
        slow.let_go()
        assert pool.join(time.monotonic() + PATIENCE_SECONDS) == []
        assert pool.has_ended


def test_no_more_threads_get_stuck_than_there_may_be():
    samples = range(MOST_PER_THREAD + 1)
    with stuck_in(1, *samples, batches=[[index] for index in samples], window=100) as (slow, _, run, looking):
        for index in range(MOST_PER_THREAD):
            slow.gates[index].wait_until_inside()
            looking.after(SECONDS + 1)
        slow.gates[MOST_PER_THREAD].wait_until_inside()
        with pytest.raises(RuntimeError, match=f"{MOST_PER_THREAD} threads are stuck in user code"):
            looking.after(SECONDS + 1)
        slow.gates[0].open()
        wait_for(lambda: not slow.threads[0].is_alive())
        looking.after(SECONDS + 1)
        assert [outcome(batch) for batch in rest_of(run)] == [StageTimeout] * (MOST_PER_THREAD + 1)


def test_where_nobody_can_take_the_place_it_is_said_once_each_time_and_nothing_is_given_up():
    with stuck_in(1, 1, batches=[[1]]) as (slow, _, run, looking):
        looking.why_not = "Nobody can."
        with pytest.raises(StageTimeout, match=r"not done after 10 seconds\. Nobody can\. It is in thread"):
            looking.after(SECONDS + 1)
        assert looking.stuck.is_inside
        assert looking.after(SECONDS - 1) > perf_counter()  # the next time is due after as long
        with pytest.raises(StageTimeout):
            looking.after(SECONDS + 1)
        slow.let_go()
        assert [outcome(batch) for batch in rest_of(run)] == [[1]]
        assert not looking.stuck.is_inside


def test_a_thread_of_an_annex_is_replaced_in_the_annex():
    slow = Slow(1)
    with pool_of(1) as pool:
        annex = Pool(1, "torchstage-annex", is_annex=True)
        pool.annexes.append(annex)
        annex.start(1, do_nothing)
        chain = chain_of_segments(segment_of("fetch", slow.limited, annex), segment_of("then", float), home=pool)
        run = run_of(pool, [[0], [1], [2]], chain)
        slow.gates[1].wait_until_inside()
        looking = Looking(pool, slow, run)
        looking.after(SECONDS + 1)
        assert [outcome(batch) for batch in rest_of(run)] == [[0.0], StageTimeout, [2.0]]
        assert [worker.thread.name for worker in annex.workers] == ["torchstage-annex-0.1"]
        slow.let_go()


# The consumer ----------------------------------------------------------------------------------------------


def test_a_late_batch_that_is_tolerated_loses_the_lowest_sample_that_is_missing():
    """As with the loader's own time-out: here a stage may take for ever, and the consumer gives it up all the same."""
    slow = Slow(3)
    slow.limited = slow.running.limited(slow, "fetch", float("inf"))
    with pool_of(2) as pool:
        run = run_of(pool, [[1, 2], [3, 4], [5, 6]], slow.chain)
        looking = Looking(pool, slow, run)
        found = Deadlines(float("inf"), [looking.threads])
        outcomes = []
        while len(outcomes) < 3:
            try:
                batch = run.next(0.05, lambda: min(attend(), found.look()))
            except TimedOut:
                late, slot, stage, worker = run.late()
                assert (slot, stage, worker.thread) == (0, "fetch", slow.threads[3])
                assert found.give_up(late, slot, 0.05)
                continue
            outcomes.append(outcome(batch))
        assert outcomes == [[1, 2], StageTimeout, [5, 6]]
        slow.let_go()


def test_a_sample_that_nobody_is_at_is_not_given_up():
    with stuck_in(1, 1, batches=[[1], [2]]) as (slow, _, run, looking):
        waiting = list(run.in_flight)[1]
        assert not Deadlines(SECONDS, [looking.threads]).give_up(waiting, 0, 1.0)
        assert not Deadlines(SECONDS, [looking.threads]).give_up(waiting, -1, 1.0)
        slow.let_go()


def test_it_is_looked_when_something_may_be_due_and_not_before(monkeypatch):
    class Place:
        def __init__(self):
            self.looks = []

        def look(self, now):
            self.looks.append(now)
            return 1007.0

    now = 1000.0
    monkeypatch.setattr(deadlines, "perf_counter", lambda: now)
    place = Place()
    found = Deadlines(10.0, [place])
    assert found.look() == 7.0
    now = 1006.0
    assert found.look() == 1.0
    now = 1007.5
    assert found.look() > 0
    assert place.looks == [1000.0, 1007.5]


def test_who_waits_for_threads_that_never_come_out_can_be_told():
    """Before samples are made anew, all threads have to be out of the old ones: one may be stuck there."""
    with stuck_in(1, 1, batches=[[1]]) as (slow, _, run, looking):
        found = Deadlines(SECONDS, [looking.threads])
        assert not found.has_late
        assert looking.threads.has_late(perf_counter() + SECONDS + 1)

        def look():
            raise LookupError("nobody comes out")

        with pytest.raises(LookupError):
            run.redo(lambda chain: chain, look)
        slow.let_go()
