"""Pool of lanes: each batch goes to the thread that its chain names, once, in the order of admission."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fakes import PATIENCE_SECONDS, Gate, attend, chain_of, do_nothing, next_of, rest_of

from torchstage.engine.pipeline import Exhausted, Pool, Run
from torchstage.engine.ticket import Chain


@contextmanager
def lanes(num_lanes: int, set_up: Callable[[int], Any] = do_nothing) -> Iterator[Pool]:
    pool = Pool(num_lanes, "torchstage-test", has_lanes=True)
    try:
        pool.start(num_lanes, set_up)
        yield pool
    finally:
        pool.abandon()
        assert pool.join(time.monotonic() + PATIENCE_SECONDS) == []


def chain_for(lane: int, sample: Callable[[Any], Any]) -> Chain:
    return replace(chain_of(sample), takes_whole=True, lane=lane)


def run_of_lanes(pool: Pool, turns: list[int | None], sample: Callable[[Any], Any], window: int = 4) -> Run:
    """A run whose items are 0, 1, ..., each for the lane that ``turns`` names; None lets nothing in."""
    admissions = [
        None if lane is None else ((number,), chain_for(lane, sample), None) for number, lane in enumerate(turns)
    ]
    run = Run(pool, iter(admissions), lambda batch: window)
    run.fill()
    return run


def my_name(index: int) -> tuple[int, str]:
    return index, threading.current_thread().name.removeprefix("torchstage-test-")


def test_each_batch_is_made_in_its_lane():
    with lanes(3) as pool:
        made = [batch.value for batch in rest_of(run_of_lanes(pool, [0, 2, 1, 1, 0], my_name))]
    assert made == [[(0, "0")], [(1, "2")], [(2, "1")], [(3, "1")], [(4, "0")]]


def test_a_lane_works_in_the_order_of_admission():
    begun: list[int] = []
    gate = Gate()

    def sample(index: int) -> int:
        if index == 0:
            gate()
        begun.append(index)
        return index

    with lanes(2) as pool:
        run = run_of_lanes(pool, [0, 1, 0, 0, 0], sample, window=5)
        gate.wait_until_inside()
        gate.open()
        assert [batch.value for batch in rest_of(run)] == [[0], [1], [2], [3], [4]]
    assert [index for index in begun if index != 1] == [0, 2, 3, 4]


@pytest.mark.parametrize("is_put", [False, True])
def test_ctrl_c_between_admission_and_call_changes_no_order(is_put, monkeypatch):
    """1. A batch of a lane is admitted, 2. Ctrl-C comes before or after it is put into the lane's channel, 3. the next
    batch of that lane is admitted. The lane must not be given that one first, nor the other one twice."""
    begun: list[int] = []
    with lanes(1) as pool:
        run = run_of_lanes(pool, [0] * 6, begun.append, window=2)
        call, calls = pool.call_threads_to, []

        def interrupted(batch: Any) -> None:
            calls.append(batch.number)
            if is_put or len(calls) > 1:
                call(batch)
            if len(calls) == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(pool, "call_threads_to", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next_of(run)
        assert [batch.number for batch in rest_of(run)] == [*range(6)]
    assert begun == [*range(6)]


def test_a_consumer_that_waits_calls_no_lane_twice():
    gate = Gate()
    with lanes(1) as pool:
        run = run_of_lanes(pool, [0, 0, 0], gate, window=3)
        gate.wait_until_inside()
        run._look_after()
        run._look_after()
        assert pool.channels[0]._queue.qsize() == 2
        gate.open()
        assert len(rest_of(run)) == 3


def test_a_source_that_has_nothing_this_time_is_asked_again_the_next():
    with lanes(2) as pool:
        run = run_of_lanes(pool, [0, 1, None, 0], my_name, window=2)
        assert len(run.in_flight) == 2
        assert next_of(run).number == 0
        assert len(run.in_flight) == 1
        assert [batch.value[0] for batch in rest_of(run)] == [(1, "1"), (3, "0")]


def test_in_flight_knows_how_many_are_a_lane_s():
    gate = Gate()
    with lanes(2) as pool:
        run = run_of_lanes(pool, [0, 1, 0], gate, window=3)
        assert [run.in_flight.num_of(lane) for lane in range(3)] == [2, 1, 0]
        gate.open()
        next_of(run)
        assert [run.in_flight.num_of(lane) for lane in range(3)] == [1, 1, 0]
        rest_of(run)


def test_lanes_are_never_parked():
    """However cheap their batches and however few the cores: the consumer waits for each of them in turn."""
    with lanes(8) as pool:
        run = run_of_lanes(pool, [*range(8)] * 200, lambda index: index, window=16)
        assert len(rest_of(run)) == 1600
        pool.let_loose(time.perf_counter())
        assert pool.parking.running == pool.parking.limit == 8


def test_what_set_up_returned_is_called_in_the_thread_at_its_end():
    ended: list[Any] = []
    with lanes(2, lambda number: lambda: ended.append(my_name(number))) as pool:
        rest_of(run_of_lanes(pool, [0, 1], my_name))
        assert ended == []
    assert sorted(ended) == [(0, "0"), (1, "1")]


def test_after_a_failed_set_up_there_is_nothing_to_tear_down():
    def set_up(number: int) -> Callable[[], None]:
        if number == 1:
            raise ValueError("set-up")
        return do_nothing

    with pytest.raises(ValueError, match="set-up"), lanes(2, set_up):
        pass


def test_abandon_ends_lanes_that_wait_and_lanes_that_work():
    gate = Gate()
    with lanes(3) as pool:
        run = run_of_lanes(pool, [0, 0], gate)
        gate.wait_until_inside()
        pool.abandon()
        run.abandon()
        gate.open()
    assert pool.has_ended
    with pytest.raises(Exhausted):
        Run(pool, iter(()), lambda batch: 1).next(None, attend)
