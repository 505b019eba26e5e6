"""Batches that have time: one thread makes what nobody waits for yet, all of them what somebody waits for."""

import math
import threading
from contextlib import contextmanager

import pytest
from fakes import PATIENCE_SECONDS, Gate, chain_of, next_of, pool_of, rest_of, run_of, wait_for


@contextmanager
def eager_pool_of(num_threads):
    """No thread of it is parked, however cheap the samples are."""
    with pool_of(num_threads) as pool:
        pool.parking.next_look = math.inf
        yield pool


def make_all(run, pool):
    """Let all that is in flight be made, and forget how cheap it was: to cheap samples one thread comes in any case."""
    wait_for(lambda: all(batch.done for batch in run.in_flight) and pool.is_idle)
    pool.meter.forget()


@pytest.mark.parametrize("in_order", [True, False])
def test_while_the_first_half_is_made_one_thread_alone_comes_to_the_next(in_order):
    gate = Gate()

    def sample(index):
        return gate(index) if index >= 30 else index

    with eager_pool_of(3) as pool:
        run = run_of(pool, [[n * 10 + slot for slot in range(6)] for n in range(5)], chain_of(sample), 3, in_order)
        make_all(run, pool)
        next_of(run)  # lets the batch of 30 to 35 in
        gate.wait_until_inside()
        wait_for(lambda: pool.channels[0].is_empty())
        assert sum(worker.batch is not None for worker in pool.workers) == 1
        gate.open()
        assert sorted(batch.value[0] for batch in rest_of(run)) == [10, 20, 30, 40]


def test_all_threads_come_to_it_as_soon_as_the_caller_waits():
    together = threading.Barrier(3)  # samples of one batch that go on only if three threads are in it

    def sample(index):
        if index >= 30:
            together.wait(PATIENCE_SECONDS)
        return index

    with eager_pool_of(3) as pool:
        run = run_of(pool, [[0] * 3, [10] * 3, [20] * 3, [30] * 3], chain_of(sample), window=3)
        make_all(run, pool)
        assert [batch.value for batch in rest_of(run)] == [[0] * 3, [10] * 3, [20] * 3, [30] * 3]


def test_all_threads_come_to_it_before_they_come_to_a_later_one_that_has_no_time():
    gates = {number: Gate() for number in (3, 4)}
    begun = []

    def sample(index):
        begun.append(index)
        return gates[index](index) if index in gates else index

    with eager_pool_of(2) as pool:
        run = run_of(pool, [[number] * 4 for number in range(7)], chain_of(sample), window=3)
        make_all(run, pool)
        next_of(run)  # lets 3 in, to which one thread comes
        gates[3].wait_until_inside()
        next_of(run)  # lets 4 in, while 3 is not made: both threads come to 3 first
        wait_for(lambda: begun.count(3) == 2)
        assert 4 not in begun
        gates[3].open()
        gates[4].open()
        assert [batch.value for batch in rest_of(run)] == [[number] * 4 for number in range(2, 7)]


def test_with_two_batches_in_flight_none_has_time():
    gate = Gate()

    def sample(index):
        return gate(index) if index == 2 else index

    with eager_pool_of(2) as pool:
        run = run_of(pool, [[number] * 4 for number in range(3)], chain_of(sample), window=2)
        make_all(run, pool)
        next_of(run)
        wait_for(lambda: sum(worker.batch is not None for worker in pool.workers) == 2)
        gate.open()
        assert [batch.value for batch in rest_of(run)] == [[1] * 4, [2] * 4]
