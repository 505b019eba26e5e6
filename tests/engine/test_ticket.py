"""Ticket: a slot is settled once, a batch is finished once, and the lowest failure decides."""

import sys

import pytest
from fakes import batch_of, in_threads

from torchstage.engine.outcome import SKIPPED, Failure, Skipped, caught


def failure_at(slot: int) -> Failure:
    return Failure(ValueError(slot), "fetch", slot)


def test_the_lowest_slot_is_taken_first():
    batch = batch_of(4)
    assert [batch.todo.pop() for _ in range(4)] == [0, 1, 2, 3]


def test_a_slot_keeps_its_first_outcome():
    """A thread that comes back after a time-out gave its slot away changes nothing."""
    batch = batch_of(2)
    batch.settle(0, "in time")
    batch.settle(0, "late")
    assert batch.settled == {0: "in time"}


def test_a_failure_that_comes_late_does_not_replace_a_value():
    batch = batch_of(1)
    slot = batch.todo.pop()
    batch.settle(slot, "given by someone else")
    batch.fail(slot, failure_at(slot))
    assert batch.settled == {0: "given by someone else"}
    assert batch.first_failure() is None


def test_none_is_a_value():
    batch = batch_of(2)
    batch.settle(0, None)
    batch.settle(0, "late")
    assert not batch.claim_finish()
    batch.settle(1, None)
    assert batch.settled == {0: None, 1: None}
    assert batch.claim_finish()


def test_a_batch_is_not_finished_before_its_last_slot_is_settled():
    batch = batch_of(3)
    for slot in (2, 0):
        batch.settle(slot, slot)
        assert not batch.claim_finish()
    batch.settle(1, 1)
    assert batch.claim_finish()
    assert not batch.claim_finish()


def test_slots_behind_a_failure_are_skipped():
    batch = batch_of(5)
    batch.settle(batch.todo.pop(), "value")
    slot = batch.todo.pop()
    batch.fail(slot, failure_at(slot))
    assert batch.todo == []
    assert batch.settled[0] == "value"
    assert isinstance(batch.settled[1], Failure)
    assert [batch.settled[slot] for slot in (2, 3, 4)] == [SKIPPED] * 3
    assert isinstance(SKIPPED, Skipped)
    assert batch.claim_finish()


def test_the_lowest_failure_decides_whichever_came_first():
    batch = batch_of(4)
    first, second = batch.todo.pop(), batch.todo.pop()
    batch.fail(second, failure_at(second))
    assert not batch.claim_finish()  # slot 0 is still with a thread
    batch.fail(first, failure_at(first))
    decided = batch.first_failure()
    assert decided is not None
    assert decided.slot == 0


def test_a_batch_without_failure_has_no_first_one():
    batch = batch_of(1)
    batch.settle(0, ValueError("an exception may be a value"))
    assert batch.first_failure() is None


def test_a_dropped_batch_is_finished_by_nobody():
    batch = batch_of(3)
    slot = batch.todo.pop()
    batch.drop()
    batch.settle(slot, "its thread came back")
    assert batch.todo == []
    assert not batch.claim_finish()
    batch.settle(1, None)
    batch.settle(2, None)
    assert not batch.claim_finish()


def test_a_caught_error_points_at_the_users_line_and_not_at_the_engines():
    def user_code() -> None:
        raise KeyError("held")

    try:
        user_code()
    except KeyError as error:
        failure = caught(error, "fetch", 7)
    assert (failure.stage, failure.slot) == ("fetch", 7)
    trace = failure.error.__traceback__
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "user_code"
    assert trace.tb_next is None


def test_an_error_without_a_traceback_is_caught_too():
    assert caught(ValueError(), "fetch").error.__traceback__ is None


@pytest.mark.stress
@pytest.mark.parametrize("num_threads", [2, 8])
def test_exactly_one_of_many_threads_finishes_a_batch(num_threads):
    """Every thread settles slots and asks after each; the switch interval makes them collide."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            batch = batch_of(16)

            def work(number: int, batch=batch) -> tuple[int, list[int]]:
                num_claims, taken = 0, []
                while batch.todo:
                    try:
                        slot = batch.todo.pop()
                    except IndexError:
                        break
                    taken.append(slot)
                    batch.settle(slot, number)
                    num_claims += batch.claim_finish()
                return num_claims + batch.claim_finish(), taken

            results = in_threads(num_threads, work)
            assert sum(num_claims for num_claims, _ in results) == 1
            assert sorted(slot for _, taken in results for slot in taken) == list(range(16))
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.stress
def test_a_slot_that_many_threads_settle_at_once_has_one_outcome():
    """As where a late thread, its replacement and the deadline all write: one is first, and stays."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            batch = batch_of(1)

            def settle(number: int, batch=batch) -> int:
                if number % 2:
                    batch.fail(0, failure_at(number))
                else:
                    batch.settle(0, number)
                return batch.settled[0]

            outcomes = in_threads(6, settle)
            assert all(outcome is outcomes[0] for outcome in outcomes)
    finally:
        sys.setswitchinterval(interval)
