"""Parts: samples of a batch on their way from one segment to the next, and home, where the batch is finished."""

import gc
import threading
import time
import weakref

import pytest
from fakes import (
    PATIENCE_SECONDS,
    Elsewhere,
    Gate,
    chain_of_segments,
    do_nothing,
    next_of,
    pool_of,
    rest_of,
    run_of,
    segment_of,
    wait_for,
)

from torchstage.engine.outcome import Failure
from torchstage.engine.parking import Parking
from torchstage.engine.pipeline import Pool
from torchstage.engine.ticket import NO_PART, Batch, Chain, Leg, Nobody, Segment


def test_a_batch_that_begins_elsewhere_is_finished_by_the_pools_own_threads():
    elsewhere = Elsewhere()
    with pool_of(2) as pool:
        run = run_of(pool, [[1, 2], [3]], chain_of_segments(segment_of("fetch", str, elsewhere), home=pool))
        for _ in range(3):
            elsewhere.make_one()
        assert [batch.value for batch in rest_of(run)] == [["1", "2"], ["3"]]


def test_a_sample_goes_home_and_elsewhere_and_home_again():
    elsewhere = Elsewhere()
    with pool_of(1) as pool:
        fetch, decode, transform = (
            segment_of("fetch", lambda index: [index]),
            segment_of("decode", lambda value: [*value, "decoded"], elsewhere),
            segment_of("transform", tuple),
        )
        run = run_of(pool, [[7]], chain_of_segments(fetch, decode, transform, home=pool))
        wait_for(lambda: elsewhere.called)
        elsewhere.make_one()
        assert next_of(run).value == [(7, "decoded")]


class Value:
    """Something that can be referenced weakly."""


@pytest.fixture
def no_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_gc")
def test_a_run_that_goes_takes_its_batches_with_it():
    """The finalizer of an iterator knows the pool alone. Nothing waits for the garbage collector: it may be off."""
    value = Value()
    elsewhere = Elsewhere()
    with pool_of(2) as pool:
        chain = chain_of_segments(
            segment_of("fetch", lambda index, value=value: value), segment_of("decode", str, elsewhere), home=pool
        )
        run = run_of(pool, [[1, 2], [3, 4], [5]], chain)
        wait_for(lambda: len(elsewhere.called) == 5)
        elsewhere.called.clear()
        run_is, value_is = weakref.ref(run), weakref.ref(value)
        del run, chain, value
        assert run_is() is None
        pool.abandon()
        for worker in pool.workers:
            worker.thread.join(PATIENCE_SECONDS)
        assert value_is() is None


@pytest.mark.usefixtures("no_gc")
def test_a_pool_that_ended_keeps_nothing_of_what_it_was_called_to():
    """Pool, channel, part, batch, chain and home, which is the pool, would keep one another."""
    gate = Gate()
    pool = Pool(1, "torchstage-test")
    pool.start(1, do_nothing)
    chain = chain_of_segments(segment_of("fetch", gate), home=pool)
    batches = [Batch(number, (100,), chain, Nobody()) for number in range(3)]
    for batch in batches:
        pool.call_threads_to(batch)
    gate.wait_until_inside()
    pool.call(batches[1].first, 1)
    pool.abandon()
    gate.open()
    assert pool.join(time.monotonic() + PATIENCE_SECONDS) == []
    pool.call(batches[2].first, 1)  # by somebody who is late
    for batch in batches:
        batch.drop()
    pool_is = weakref.ref(pool)
    del pool, chain, batches, batch
    assert pool_is() is None


def test_parked_threads_of_a_stage_come_in_when_the_consumer_waits():
    """The two that run wait for the third: nobody but the consumer notices that nothing is finished."""
    together = threading.Barrier(3)
    with pool_of(1) as pool:
        annex = Pool(3, "torchstage-test-annex", is_annex=True)
        pool.annexes.append(annex)
        annex.parking = Parking(3, 4)
        annex.parking.limit = 2
        annex.start(3, do_nothing)
        chain = chain_of_segments(
            segment_of("fetch", str),
            segment_of("decode", lambda value: together.wait(PATIENCE_SECONDS), annex),
            home=pool,
        )
        run = run_of(pool, [[1, 2, 3]], chain)
        assert sorted(next_of(run).value) == [0, 1, 2]


def test_whatever_a_stage_with_its_own_threads_does_its_batch_is_finished_at_home():
    seen = set()

    def decode(value):
        seen.add(threading.current_thread().name)
        if value == 3:
            raise ValueError(value)
        return value

    def collate(values, indices):
        seen.add(threading.current_thread().name)
        return values

    with pool_of(1) as pool:
        annex = Pool(1, "torchstage-test-annex", is_annex=True)
        pool.annexes.append(annex)
        annex.start(1, do_nothing)
        segments = segment_of("fetch", lambda index: index), segment_of("decode", decode, annex)
        chain = Chain(segments, (("collate", collate),), do_nothing, home=pool)
        fine, failed, last = rest_of(run_of(pool, [[1, 2], [3, 4], [5]], chain))
        assert (fine.value, last.value) == ([1, 2], [5])
        assert (failed.failure.stage, failed.failure.slot, failed.failure.error.args) == ("decode", 0, (3,))
    assert seen == {"torchstage-test-0", "torchstage-test-annex-0"}


def whole(fetch, *then, home, items_of=list):
    """A chain whose first segment is given all indices of a batch."""
    first = Segment((Leg((("fetch", fetch),)),), None, items_of)
    return chain_of_segments(first, *then, home=home, takes_whole=True)


def test_a_whole_batch_goes_on_as_its_samples():
    begun = []
    with pool_of(2) as pool:
        decode = segment_of("decode", str, begin=begun.append)
        chain = whole(lambda indices: [index * 2 for index in indices], decode, home=pool)
        (batch,) = rest_of(run_of(pool, [[[7, 8, 9]]], chain))
        assert batch.value == ["14", "16", "18"]
        assert sorted(begun) == [7, 8, 9]
        assert (batch.indices, batch.size, batch.admitted_with) == ([7, 8, 9], 3, ([[7, 8, 9]], [[7, 8, 9]]))


def test_a_whole_batch_without_samples_is_finished():
    with pool_of(1) as pool:
        chain = whole(lambda indices: [], segment_of("decode", str, Elsewhere()), home=pool)
        (batch,) = rest_of(run_of(pool, [[[]]], chain))
        assert batch.value == []


def test_a_whole_batch_with_other_than_its_samples_fails():
    with pool_of(1) as pool:
        chain = whole(lambda indices: [1], segment_of("decode", str, Elsewhere()), home=pool)
        (batch,) = rest_of(run_of(pool, [[[7, 8]]], chain))
        assert "1 samples came for 2 indices" in str(batch.failure.error)


def test_a_sample_that_fails_elsewhere_spares_those_that_nobody_began():
    elsewhere = Elsewhere()
    batch = Batch(
        0, range(100, 104), chain_of_segments(segment_of("fetch", str, elsewhere), home=Elsewhere()), Nobody()
    )
    part = batch.first
    slot = part.todo.pop()
    part.fail(slot, Failure(ValueError(slot), "fetch", slot))
    assert part.todo == []
    assert batch.is_settled
    assert batch.chain.home.called == [(part, 0)]
    assert batch.first_failure().slot == 0


def test_a_batch_that_was_dropped_is_not_called_home():
    home = Elsewhere()
    batch = Batch(0, [7], chain_of_segments(segment_of("fetch", str, Elsewhere()), home=home), Nobody())
    part = batch.first
    slot = part.todo.pop()
    batch.drop()
    part.conclude(slot, "late")
    part.fail(slot, Failure(ValueError(slot), "fetch", slot))
    assert home.called == []


def test_a_thread_finds_nothing_of_a_batch_that_is_over():
    with pool_of(1) as pool:
        pool.call(NO_PART, 1)
        (batch,) = rest_of(run_of(pool, [[1]], chain_of_segments(segment_of("fetch", str), home=pool)))
        assert batch.value == ["1"]
        assert batch.first is NO_PART
    assert not NO_PART.todo


def test_samples_that_nobody_began_are_made_by_another_chain():
    """The rest of a batch of which one sample is being made goes elsewhere; all meet again in its finish."""
    gate, elsewhere = Gate(), Elsewhere()
    with pool_of(1) as pool:
        run = run_of(pool, [[1, 2, 3], [4]], chain_of_segments(segment_of("fetch", gate), home=pool))
        gate.wait_until_inside()
        other = chain_of_segments(segment_of("fetch", str, elsewhere), home=pool)
        run.rebind(lambda chain: other)
        run.call_threads()
        for _ in range(3):
            elsewhere.make_one()
        gate.open()
        assert [batch.value for batch in rest_of(run)] == [[1, "2", "3"], ["4"]]
