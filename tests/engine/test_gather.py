"""Gather: a batch is announced when it can be read, and handed out in its turn."""

import queue

import pytest
from fakes import Bell, batch_of, chain_of

from torchstage.engine.gather import InFlight, announce, finish
from torchstage.engine.outcome import SKIPPED, Failure
from torchstage.engine.ticket import NO_CHAIN, Batch


def settled(batch: Batch) -> Batch:
    """The batch with every slot settled, each with its index."""
    for slot in range(batch.size):
        batch.settle(slot, batch.indices[slot])
    batch.todo.clear()
    return batch


class Recorded(Batch):
    """Remembers in which order it was written."""

    __slots__ = ("order",)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name != "order":
            self.order = [*getattr(self, "order", ()), name]


@pytest.mark.parametrize("step", [lambda values, indices: values, lambda values, indices: 1 / 0])
def test_whoever_sees_a_batch_done_can_read_it(step):
    batch = settled(Recorded(0, [100, 101], chain_of(str, ("collate", step)), Bell()))
    finish(batch)
    assert batch.done
    assert batch.order[-1] == "done"
    assert batch.order.count("done") == 2  # not done when it was made


def test_a_batch_is_the_list_of_its_samples_where_no_stage_makes_more_of_it():
    batch = settled(batch_of(2))
    finish(batch)
    assert batch.value == [100, 101]


def test_samples_are_finished_in_the_order_of_their_slots():
    batch = batch_of(3)
    for slot in (2, 0, 1):
        batch.settle(slot, f"sample {slot}")
    finish(batch)
    assert batch.value == ["sample 0", "sample 1", "sample 2"]


def test_stages_run_one_after_another_with_the_dataset_indices():
    collate = "collate", lambda values, indices: (sum(values), list(indices))
    pin = "pin_memory", lambda batch, indices: [batch, len(indices)]
    batch = settled(batch_of(2, chain_of(str, collate, pin)))
    finish(batch)
    assert batch.value == [(201, [100, 101]), 2]


def test_an_error_in_a_stage_names_it_and_runs_no_later_stage():
    def fail(values, indices):
        raise LookupError("here")

    def unreachable(values, indices):
        raise AssertionError("runs after an error")

    batch = settled(batch_of(2, chain_of(str, ("collate", fail), ("pin_memory", unreachable))))
    finish(batch)
    assert batch.failure is not None
    assert (batch.failure.stage, batch.failure.slot, str(batch.failure.error)) == ("collate", None, "here")
    assert batch.value is None


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_is_no_exception_but_was_raised_is_a_failure_too(kind):
    def fail(values, indices):
        raise kind("user")

    batch = settled(batch_of(1, chain_of(str, ("collate", fail))))
    finish(batch)
    assert batch.failure is not None
    assert type(batch.failure.error) is kind


def test_a_failed_sample_keeps_collate_from_running():
    calls = []
    batch = batch_of(3, chain_of(str, ("collate", lambda values, indices: calls.append(values))))
    batch.settle(0, "fine")
    failure = Failure(ValueError(), "fetch", 1)
    batch.fail(1, failure)
    finish(batch)
    assert batch.failure is failure
    assert calls == []
    assert SKIPPED not in batch.settled.values()


def test_samples_are_not_kept_beside_the_batch():
    batch = settled(batch_of(3, chain_of(str, ("collate", lambda values, indices: sum(values)))))
    finish(batch)
    assert batch.settled == {}


def in_flight_of(*batches: Batch, in_order: bool = True) -> InFlight:
    in_flight = InFlight(in_order)
    for batch in batches:
        batch.wake = in_flight.wake
        in_flight.add(batch)
    return in_flight


def three() -> tuple[Batch, Batch, Batch]:
    return batch_of(1, number=0), batch_of(1, number=1), batch_of(1, number=2)


def complete(*batches: Batch) -> None:
    for batch in batches:
        announce(batch, None)
        batch.wake.put(None)


def test_in_order_a_later_batch_waits_for_the_first():
    first, second, third = three()
    in_flight = in_flight_of(first, second, third)
    complete(second)
    assert in_flight.next_done() is None
    complete(first)
    assert in_flight.next_done() is first
    in_flight.hand_out(first)
    assert in_flight.next_done() is second
    in_flight.hand_out(second)
    assert in_flight.next_done() is None
    assert list(in_flight) == [third]


def test_out_of_order_whatever_is_done_goes_the_earliest_first():
    first, second, third = three()
    in_flight = in_flight_of(first, second, third, in_order=False)
    assert in_flight.next_done() is None
    complete(third)
    assert in_flight.next_done() is third
    complete(second)
    assert in_flight.next_done() is second
    in_flight.hand_out(second)
    assert in_flight.next_done() is third
    in_flight.hand_out(third)
    assert list(in_flight) == [first]


def test_an_announcement_that_nobody_waited_for_is_taken_back():
    first, second, third = three()
    in_flight = in_flight_of(first, second, third)
    complete(second, first)
    for batch in (first, second):
        in_flight.hand_out(batch)
    with pytest.raises(queue.Empty):
        in_flight.wake.get_nowait()


def test_a_batch_whose_announcement_was_lost_is_handed_out_all_the_same():
    first, *_ = three()
    in_flight = in_flight_of(first)
    announce(first, None)  # and nobody is woken: Ctrl-C came between the wait and the look
    assert in_flight.next_done() is first
    in_flight.hand_out(first)  # has no announcement to take back
    assert len(in_flight) == 0


def test_waiting_ends_with_an_announcement_of_anything():
    in_flight = InFlight(in_order=True)
    in_flight.wake.put(None)
    assert in_flight.wait(timeout_seconds=20.0)
    assert in_flight.wake.empty()


def test_waiting_ends_with_the_time():
    assert not InFlight(in_order=True).wait(timeout_seconds=0.001)


def test_a_batch_that_failed_at_the_door_needs_no_thread():
    batch = Batch(0, (), NO_CHAIN, batch_of(0).wake)
    announce(batch, Failure(OSError(), "sampler"))
    assert batch.done
    assert batch.failure is not None
