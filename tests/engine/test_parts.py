"""Parts: samples of a batch on their way from one segment to the next, and home, where the batch is finished."""

import gc
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

from torchstage.engine.pipeline import Pool
from torchstage.engine.ticket import Batch, Nobody


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
