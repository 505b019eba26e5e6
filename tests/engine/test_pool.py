"""Pool: threads that start when told to, come to a batch as they are needed, and end when it is abandoned."""

import math
import threading
import time
from types import SimpleNamespace

import pytest
from fakes import PATIENCE_SECONDS, Gate, batch_of, chain_of, do_nothing, pool_of

from torchstage.engine import pool as pools
from torchstage.engine.channel import Channel
from torchstage.engine.pool import VISIT_SECONDS, Pool, join
from torchstage.engine.segment import alive
from torchstage.engine.stats import Tally


def soon() -> float:
    return time.monotonic() + PATIENCE_SECONDS


def test_a_new_pool_has_no_thread():
    num_threads = threading.active_count()
    pool = Pool(4, "torchstage-test")
    assert pool.workers == []
    assert threading.active_count() == num_threads


def test_threads_start_as_many_as_are_asked_for_and_bear_the_pools_name():
    with pool_of(4, start=False) as pool:
        pool.start(1, do_nothing)
        assert [worker.thread.name for worker in pool.workers] == ["torchstage-test-0"]
        pool.start(3, do_nothing)
        pool.start(2, do_nothing)
        assert [worker.number for worker in pool.workers] == [0, 1, 2]
        pool.start(100, do_nothing)
        assert len(pool.workers) == 4
        assert all(worker.thread.daemon for worker in pool.workers)  # the interpreter ends without them


def test_set_up_runs_in_one_thread_after_another():
    inside, most, seen = 0, 0, []

    def set_up(number):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        seen.append(number)
        time.sleep(0)
        inside -= 1

    with pool_of(4, start=False) as pool:
        pool.start(4, set_up)
    assert (most, seen) == (1, [0, 1, 2, 3])


def test_an_error_in_set_up_is_raised_at_once_and_leaves_a_pool_that_can_be_ended():
    def set_up(number):
        if number == 1:
            raise SystemExit("set-up")

    with pool_of(4, start=False) as pool:
        with pytest.raises(SystemExit, match="set-up"):
            pool.start(4, set_up)
        assert len(pool.workers) == 2


@pytest.mark.parametrize(
    ("sample_seconds", "size", "num_called"),
    [
        (None, 8, 4),  # nothing is known: let everyone come
        (None, 2, 2),  # there is nothing for a third to do
        (1.0, 8, 4),
        (1.0, 3, 3),
        (VISIT_SECONDS / 64, 64, 1),  # in all, just what one visit is worth
        (VISIT_SECONDS / 33, 64, 2),
        (VISIT_SECONDS / 10, 64, 4),
        (1e-9, 1, 1),
    ],
)
def test_as_many_threads_are_called_as_find_something_to_do(sample_seconds, size, num_called):
    pool = Pool(4, "torchstage-test")
    pool.workers = [None] * 4  # as if they had started
    pool.meter.sample_seconds = sample_seconds
    pool.call_threads_to(batch_of(size))
    assert pool.channels[0]._queue.qsize() == num_called
    pool.workers = []


def test_abandon_lets_a_thread_finish_the_sample_that_it_is_in_and_no_other():
    """Whether or not the run was abandoned too: at the end of the program nobody knows the runs."""
    gate, begun = Gate(), []
    with pool_of(1) as pool:
        batch, next_one = (batch_of(2, chain_of(lambda index: (begun.append(index), gate()))) for _ in range(2))
        for each in (batch, next_one):
            pool.call_threads_to(each)
        gate.wait_until_inside()
        pool.abandon()
        gate.open()
        assert pool.join(soon()) == []
    assert begun == [100]
    assert not batch.done


def test_abandon_is_idempotent():
    with pool_of(2) as pool:
        pool.abandon()
        pool.abandon()
        assert pool.join(soon()) == []
        assert pool.channels[0]._queue.qsize() == 0


@pytest.mark.parametrize("has_lanes", [False, True])
def test_abandon_after_one_that_ctrl_c_broke_off_ends_the_threads_all_the_same(has_lanes, monkeypatch):
    def interrupt(channel, num_threads):
        raise KeyboardInterrupt

    pool = Pool(3, "torchstage-test", has_lanes)
    pool.start(3, do_nothing)
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "close", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.abandon()
    assert pool.is_closed
    pool.abandon()
    assert pool.join(soon()) == []


def test_abandon_takes_no_lock():
    """A finalizer calls it, at any line of any thread: also of one that holds the parking's lock."""
    with pool_of(4) as pool, pool.parking._lock:
        pool.abandon()


def test_abandon_before_the_start_is_no_trouble():
    pool = Pool(2, "torchstage-test")
    pool.abandon()
    assert pool.join(soon()) == []


def test_abandon_ends_parked_threads(monkeypatch):
    monkeypatch.setattr(pools, "usable_cores", lambda: 1)
    with pool_of(4) as pool:
        pool.parking.next_look = math.inf  # the limit stays as the test sets it
        pool.parking.limit = 1
        deadline = soon()
        while pool.parking.running > 1:  # they wake for the batch, and park instead of waiting for the next
            assert time.monotonic() < deadline
            pool.call_threads_to(batch_of(4))
            time.sleep(0.001)
        pool.abandon()
        assert pool.join(soon()) == []


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of another thread here")
def test_computing_threads_are_parked_while_batches_still_come(monkeypatch):
    """The clocks say that each thread uses a whole core, and there is one core."""
    clock = iter(range(10**9))
    monkeypatch.setattr(pools, "usable_cores", lambda: 1)
    monkeypatch.setattr("torchstage.engine.parking.cpu_seconds", lambda _: float(next(clock)))
    monkeypatch.setattr("torchstage.engine.parking.PERIOD_SECONDS", 0.0)
    with pool_of(4) as pool:
        deadline = soon()
        while pool.parking.running > 1:
            assert time.monotonic() < deadline
            batch = batch_of(8)
            pool.call_threads_to(batch)
            while not batch.done:
                assert time.monotonic() < deadline
                time.sleep(0)
        assert (pool.parking.limit, pool.parking.running) == (1, 1)


def test_join_names_the_threads_that_are_still_in_user_code():
    gate = Gate()
    with pool_of(2) as pool:
        pool.call_threads_to(batch_of(1, chain_of(gate)))
        gate.wait_until_inside()
        pool.abandon()
        deadline = soon()
        while len(pool.join(time.monotonic())) > 1:
            assert time.monotonic() < deadline
        (stuck,) = pool.join(time.monotonic() - 1.0)
        assert stuck.place() == "stage 'fetch', dataset index 100 (batch 0)"
        gate.open()


def test_a_thread_that_joins_its_own_pool_does_not_wait_for_itself():
    """User code may drop or close the very iterator that it works for."""
    answers = []

    def sample(index):
        pool.abandon()
        answers.append([worker.number for worker in pool.join(soon())])

    with pool_of(1) as pool:
        pool.call_threads_to(batch_of(1, chain_of(sample)))
        assert pool.join(soon()) == []
    assert answers == [[0]]


def test_a_ledger_sums_up_what_the_threads_did():
    with pool_of(3) as pool:
        batches = [batch_of(5) for _ in range(4)]
        for batch in batches:
            pool.call_threads_to(batch)
        deadline = soon()
        while not all(batch.done for batch in batches):
            assert time.monotonic() < deadline
            time.sleep(0)
        pool.abandon()
        assert pool.join(soon()) == []
        total = pool.ledger.total()
    assert sum(work.num_samples for (of_batches, _), work in total.works.items() if not of_batches) == 20


def test_a_forked_child_forgets_threads_that_stayed_behind():
    """What the child's hook does, told without a fork: no lock is touched, nothing is waited for."""
    pool = Pool(2, "torchstage-test")
    pool.workers = [SimpleNamespace(tally=Tally())] * 2  # threads of another process
    with pool.parking._lock:
        pool.forget()
    assert (pool.is_closed, pool.workers) == (True, [])
    pool.abandon()
    assert pool.join(soon()) == []


def test_at_the_end_of_the_program_a_stuck_thread_is_named_and_left_behind(monkeypatch, capsys):
    monkeypatch.setattr(pools, "EXIT_WAIT_SECONDS", 0.05)
    gate = Gate()
    with pool_of(2) as pool:
        pool.call_threads_to(batch_of(1, chain_of(gate)))
        gate.wait_until_inside()
        pools._end_all_threads()
        words = capsys.readouterr().err
        gate.open()
    assert words.count("\n") == 1
    assert "is still in stage 'fetch', dataset index 100 (batch 0), 0.05 s after the end of the program" in words
    assert "torchstage-test-" in words


def test_at_the_end_of_the_program_idle_threads_end_in_silence(capsys):
    with pool_of(4) as pool:
        pools._end_all_threads()
        assert pool.join(time.monotonic()) == []
    assert capsys.readouterr() == ("", "")
    assert not alive


def test_join_of_nothing_returns_at_once():
    assert join([], time.monotonic() + 1e9) == []
