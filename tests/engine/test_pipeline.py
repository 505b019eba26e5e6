"""Run: indices in at the door, batches out in their turn, never more of them in flight than may be."""

import sys
import threading
import time

import pytest
from fakes import PATIENCE_SECONDS, Gate, chain_of, do_nothing, next_of, pool_of, rest_of, run_of, wait_for

from torchstage.engine.pipeline import Closed, Exhausted, Run, TimedOut


class Source:
    """Gives these batches one after another; raises those that are exceptions."""

    def __init__(self, *batches):
        self.left = list(batches)

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        batch = self.left.pop(0)
        if isinstance(batch, BaseException):
            raise batch
        return batch, chain_of(), None


def outcome(batch):
    return batch.value if batch.failure is None else batch.failure.error


def test_batches_leave_in_the_order_in_which_they_came():
    with pool_of(3) as pool:
        run = run_of(pool, [[1, 2], [3], [4, 5, 6]], chain_of())
        assert [batch.value for batch in rest_of(run)] == [[1, 2], [3], [4, 5, 6]]


def test_batches_are_numbered_as_they_are_admitted():
    with pool_of(1) as pool:
        assert [batch.number for batch in rest_of(run_of(pool, [[1]] * 3, chain_of()))] == [0, 1, 2]


def test_the_end_is_the_end_however_often_one_asks():
    with pool_of(1) as pool:
        run = run_of(pool, [[1]], chain_of())
        next_of(run)
        for _ in range(2):
            with pytest.raises(Exhausted):
                next_of(run)


def test_an_empty_source_ends_at_once():
    with pool_of(1) as pool, pytest.raises(Exhausted):
        next_of(run_of(pool, [], chain_of()))


def test_the_source_is_asked_in_the_callers_thread_and_not_before_it_is_told_to():
    asked = []

    def source():
        for number in range(10):
            asked.append(threading.current_thread())
            yield [number], chain_of(), None

    with pool_of(2) as pool:
        run = Run(pool, source(), lambda batch: 3)
        assert asked == []
        run.fill()
        assert len(asked) == 3
        next_of(run)
        assert len(asked) == 4
        rest_of(run)
        assert set(asked) == {threading.current_thread()}


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("in_order", [True, False])
def test_never_more_batches_are_in_flight_than_the_window(window, in_order):
    in_flight = []  # how many there are with the one that is being admitted

    def source():
        for number in range(20):
            in_flight.append(len(run._in_flight) + 1)
            yield [number] * 3, chain_of(), None

    with pool_of(3) as pool:
        run = Run(pool, source(), lambda batch: window, in_order)
        run.fill()
        assert len(in_flight) == window
        assert len(rest_of(run)) == 20
    assert max(in_flight) == window


def test_the_window_may_depend_on_the_batch():
    sizes = [1, 1, 1, 8, 1, 1]
    with pool_of(1) as pool:
        run = Run(pool, Source(*([0] * size for size in sizes)), lambda batch: 1 if batch.size == 8 else 100)
        run.fill()
        assert [batch.size for batch in run._in_flight] == [1, 1, 1, 8]
        assert len(rest_of(run)) == 6


def test_an_error_of_the_source_is_handed_out_in_its_place_and_the_rest_follows():
    broken = LookupError("sampler")
    with pool_of(2) as pool:
        run = Run(pool, Source([1], [2], broken, [3], [4]), lambda batch: 2)
        run.fill()
        batches = rest_of(run)
    assert [outcome(batch) for batch in batches] == [[1], [2], broken, [3], [4]]
    assert batches[2].failure.stage == "sampler"
    assert batches[2].number == 2


@pytest.mark.parametrize("window", [1, 2, 10])
def test_a_source_that_raises_first_last_and_twice_loses_nothing(window):
    errors = [LookupError(number) for number in range(4)]
    story = [errors[0], [1], errors[1], errors[2], [2], errors[3]]
    with pool_of(2) as pool:
        run = Run(pool, Source(*story), lambda batch: window)
        run.fill()
        assert [outcome(batch) for batch in rest_of(run)] == story


def test_after_an_error_of_the_source_the_window_is_full_again():
    with pool_of(1) as pool:
        run = Run(pool, Source([0], LookupError(), *([number] for number in range(20))), lambda batch: 4)
        run.fill()
        for _ in range(6):
            next_of(run)
        assert len(run._in_flight) == 4


def test_an_interrupt_of_the_source_goes_to_the_caller_at_once():
    """KeyboardInterrupt is not the sampler's error but the user's wish."""
    with pool_of(1) as pool:
        run = Run(pool, Source(KeyboardInterrupt(), [1]), lambda batch: 2)
        with pytest.raises(KeyboardInterrupt):
            run.fill()
        run.fill()
        assert [batch.value for batch in rest_of(run)] == [[1]]


def test_out_of_order_a_slow_batch_keeps_no_other_waiting():
    gate = Gate()
    with pool_of(2) as pool:
        run = run_of(pool, [["slow"], [1], [2], [3]], chain_of(lambda x: gate(x) if x == "slow" else x), in_order=False)
        assert [next_of(run).value for _ in range(3)] == [[1], [2], [3]]
        gate.open()
        assert next_of(run).value == ["slow"]
        assert rest_of(run) == []


def test_in_order_a_slow_batch_keeps_the_others_waiting_and_no_thread():
    gate = Gate()
    with pool_of(2) as pool:
        run = run_of(pool, [["slow"], [1], [2], [3]], chain_of(lambda x: gate(x) if x == "slow" else x))
        deadline = time.monotonic() + PATIENCE_SECONDS
        while sum(batch.done for batch in run._in_flight) < 3:
            assert time.monotonic() < deadline
            with pytest.raises(TimedOut):  # while it waits, it calls back threads that were parked
                next_of(run, timeout_seconds=0.05)
        gate.open()
        assert [batch.value for batch in rest_of(run)] == [["slow"], [1], [2], [3]]


@pytest.mark.parametrize("in_order", [True, False])
def test_lost_announcements_lose_and_delay_nothing(in_order):
    """Each time the consumer is about to wait, all is done already and every announcement is stolen."""
    with pool_of(2) as pool:
        run = run_of(pool, [[number] for number in range(10)], chain_of(), in_order=in_order)

        def steal():
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not all(batch.done for batch in run._in_flight):
                assert time.monotonic() < deadline
                time.sleep(0)
            while not run._in_flight.wake.empty():
                run._in_flight.wake.get_nowait()
            return PATIENCE_SECONDS

        assert [run.next(PATIENCE_SECONDS, steal).value for _ in range(10)] == [[number] for number in range(10)]


def test_announcements_of_something_else_do_no_harm():
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[1]], chain_of(gate))
        num_calls = 0

        def ring():
            nonlocal num_calls
            num_calls += 1
            if num_calls < 5:
                run.wake(None)
            else:
                gate.open()
            return PATIENCE_SECONDS

        assert run.next(PATIENCE_SECONDS, ring).value == [1]
        assert num_calls >= 5


def test_attend_is_called_again_after_as_long_as_it_asked_for():
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[1]], chain_of(gate))
        calls = []

        def count():
            calls.append(True)
            if len(calls) == 4:
                gate.open()
            return 0.001

        assert run.next(None, count).value == [1]
        assert len(calls) >= 4


def test_what_was_done_since_one_attended_is_attended_to_before_it_is_handed_out():
    """Else a batch of the first samples would be handed out although their judge has just found them wrong."""
    with pool_of(1) as pool:
        gate = Gate()
        run = run_of(pool, [[1]], chain_of(gate))
        (batch,) = run.in_flight
        was_done = []

        def attend():
            was_done.append(batch.done)
            gate.open()
            wait_for(lambda: batch.done)  # it is finished right after the consumer looked
            return 0.05

        run.next(PATIENCE_SECONDS, attend)
        assert was_done == [False, True]


def test_time_runs_out_and_the_batch_can_still_be_had_later():
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[7], [8]], chain_of(gate))
        gate.wait_until_inside()
        for _ in range(2):
            with pytest.raises(TimedOut):
                next_of(run, timeout_seconds=0.005)
        batch, slot, stage, worker = run.late()
        assert (batch.number, slot, stage, worker) == (0, 0, "fetch", pool.workers[0])
        gate.open()
        assert [batch.value for batch in rest_of(run)] == [[7], [8]]
        assert run.late() is None


def test_what_is_late_is_told_also_where_the_last_stage_is():
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[7]], chain_of(str, ("collate", lambda values, indices: gate(values))))
        gate.wait_until_inside()
        _, slot, stage, worker = run.late()
        assert (slot, stage, worker) == (-1, "collate", pool.workers[0])
        gate.open()
        next_of(run)


def test_threads_that_start_later_come_to_what_is_in_flight():
    gates = [Gate(), Gate()]
    with pool_of(2, start=False) as pool:
        pool.start(1, do_nothing)
        run = run_of(pool, [[0, 1]], chain_of(lambda index: gates[index](index)))
        gates[0].wait_until_inside()
        pool.start(2, do_nothing)
        run.call_threads()
        gates[1].wait_until_inside()
        for gate in gates:
            gate.open()
        assert next_of(run).value == [0, 1]


def test_after_abandon_user_code_that_runs_is_let_finish_and_no_other_begins():
    gate, begun, collated = Gate(), [], []

    def sample(index):
        begun.append(index)
        return gate(index)

    with pool_of(1) as pool:
        run = run_of(
            pool,
            [[0, 1], [2, 3]],
            chain_of(sample, ("collate", lambda values, indices: collated.append(values))),
        )
        gate.wait_until_inside()
        run.abandon()
        pool.abandon()
        gate.open()
        assert pool.join(time.monotonic() + PATIENCE_SECONDS) == []
    assert (begun, collated) == ([0], [])


def test_a_consumer_that_waits_is_told_when_the_run_is_abandoned():
    """By another thread, or by a signal handler in its own, which is what happens here."""
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[0]], chain_of(gate))
        gate.wait_until_inside()

        def abandon():
            run.abandon()
            return PATIENCE_SECONDS

        with pytest.raises(Closed):
            run.next(None, abandon)
        gate.open()


def test_a_consumer_that_waits_is_told_when_its_pool_is_abandoned():
    """At the end of the program, where the consumer is a thread of another loader."""
    gate = Gate()
    with pool_of(1) as pool:
        run = run_of(pool, [[0]], chain_of(gate))
        gate.wait_until_inside()
        pool.abandon()
        try:
            with pytest.raises(Closed):
                next_of(run, timeout_seconds=0.2)
        finally:
            gate.open()


def test_on_trial_only_the_first_batch_is_worked_on_until_threads_are_called():
    begun = []
    with pool_of(2) as pool:
        chain = chain_of(begun.append)
        run = Run(pool, iter([([0, 1], chain, None), ([2], chain, None), ([3], chain, None)]), lambda batch: 3)
        run.is_on_trial = True
        run.fill()
        assert run.call_to_first(2)
        next_of(run)
        with pytest.raises(TimedOut):
            next_of(run, timeout_seconds=0.02)
        assert sorted(begun) == [0, 1]
        run.call_threads()
        rest_of(run)
        assert sorted(begun) == [0, 1, 2, 3]


def test_what_is_not_trusted_is_made_anew_once_no_thread_is_in_the_old():
    made, gate = [], Gate()

    def sample(index):
        made.append(index)
        return gate(index) if len(made) == 1 else index

    again = chain_of(lambda index: -index)
    with pool_of(1) as pool:
        run = run_of(pool, [[1, 2], [3]], chain_of(sample))
        gate.wait_until_inside()
        threading.Timer(0.05, gate.open).start()
        run.redo(lambda chain: again)
        assert gate.is_open
        assert [batch.value for batch in rest_of(run)] == [[-1, -2], [-3]]
    assert made == [1]


def test_a_pool_goes_on_with_the_next_run_while_the_abandoned_one_still_has_a_thread():
    gate = Gate()
    with pool_of(2) as pool:
        old = run_of(pool, [["old"]], chain_of(gate))
        gate.wait_until_inside()
        old.abandon()
        new = run_of(pool, [[1], [2]], chain_of())
        assert [batch.value for batch in rest_of(new)] == [[1], [2]]
        gate.open()


@pytest.mark.stress
@pytest.mark.parametrize("num_threads", [1, 3, 8])
@pytest.mark.parametrize("in_order", [True, False])
def test_many_small_batches_arrive_once_each(num_threads, in_order):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with pool_of(num_threads) as pool:
            story = [list(range(number, number + number % 5 + 1)) for number in range(400)]
            run = run_of(pool, story, chain_of(), window=6, in_order=in_order)
            values = [batch.value for batch in rest_of(run)]
        assert (values if in_order else sorted(values)) == story
    finally:
        sys.setswitchinterval(interval)


def test_more_first_batches_will_come_where_only_one_may_be_in_flight():
    """The consumer asks while the first batch is done, not handed out: the second sample is still to be looked at."""
    with pool_of(1) as pool:
        run = Run(pool, iter([([1], chain_of(), None), ([2], chain_of(), None)]), lambda batch: 1, is_elastic=True)
        run.is_on_trial = True
        run.fill()
        assert run.call_to_first(2)
        wait_for(lambda: all(batch.done for batch in run.in_flight))
        assert run.call_to_first(2)
        assert next_of(run).value == [1]
        assert run.call_to_first(2)
        assert next_of(run).value == [2]
        assert not run.call_to_first(2)
