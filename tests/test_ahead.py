"""Ahead: copies to the device are begun before their batch is asked for, once each, and never too many."""

import threading

import pytest

from torchstage.ahead import Ahead
from torchstage.engine.gather import InFlight, finish
from torchstage.engine.outcome import Failure
from torchstage.engine.ticket import Batch, Nobody, simple_chain
from torchstage.transfer import NUM_DEVICE_BATCHES, Moved


class FakeRoute:
    """Remembers what was begun. A batch on the device is told by its name."""

    def __init__(self):
        self.begun = []
        self.error = None

    def begin(self, batch):
        if self.error is not None:
            raise self.error
        self.begun.append(batch)
        return Moved(batch, None, [])

    def end(self, moved):
        assert isinstance(moved, Moved), f"{moved!r} was never begun"
        if self.error is not None:
            raise self.error
        return f"{moved.batch} on the device"


class Epoch:
    """Batches "batch 0", "batch 1", ... in flight; the test says when each is finished and handed out."""

    def __init__(self, num_batches, in_order=True):
        self.route = FakeRoute()
        self.ahead = Ahead(self.route, in_order)
        self.in_flight = InFlight(in_order)
        self.batches = [self.batch(number) for number in range(num_batches)]
        for batch in self.batches:
            self.in_flight.add(batch)

    def batch(self, number):
        chain = simple_chain("fetch", str, (("collate", lambda values, indices: f"batch {number}"),), print)
        batch = Batch(number, [number], chain, Nobody())
        batch.after = self.ahead.begin
        return batch

    def finish(self, *numbers):
        for number in numbers:
            self.batches[number].settle(0, number)
            finish(self.batches[number])

    def fail(self, number):
        batch = self.batches[number]
        batch.fail(0, Failure(ValueError(number), "fetch", 0))
        finish(batch)

    def hand_out(self, number):
        batch = self.batches[number]
        self.in_flight.hand_out(batch)
        self.ahead.hand_out(batch, self.in_flight)
        return batch

    @property
    def num_on_device(self):
        """Besides those that were handed out."""
        return sum(isinstance(batch.value, Moved) for batch in self.in_flight)


def test_the_next_two_are_begun_by_who_finishes_them_in_whatever_order():
    epoch = Epoch(4)
    epoch.finish(3, 2, 1, 0)
    assert epoch.route.begun == ["batch 1", "batch 0"]


def test_handing_out_one_begins_the_one_that_became_due():
    epoch = Epoch(4)
    epoch.finish(0, 1, 2, 3)
    values = []
    for number in range(4):
        values.append(epoch.hand_out(number).value)
        assert epoch.num_on_device == min(NUM_DEVICE_BATCHES, 3 - number)
    assert values == [f"batch {number} on the device" for number in range(4)]
    assert epoch.route.begun == [f"batch {number}" for number in range(4)]


def test_what_became_due_right_before_it_was_announced_is_begun_by_who_finishes_it():
    """1. A thread asks whether batch 2 is due: not yet, 2. batch 0 is handed out; batch 2 is not done, so the consumer
    leaves it, 3. the thread announces it, and asks once more."""
    epoch = Epoch(3)
    epoch.finish(0, 1)
    begin, calls = epoch.ahead.begin, []

    def asked(batch):
        failure = begin(batch)
        calls.append(list(epoch.route.begun))
        if len(calls) == 1:
            epoch.hand_out(0)
        return failure

    epoch.batches[2].after = asked
    epoch.finish(2)
    assert calls == [["batch 0", "batch 1"], ["batch 0", "batch 1", "batch 2"]]


def test_samples_that_are_to_become_parts_of_other_batches_are_not_begun():
    """With on_error="skip": 1. the consumer has put batch 0 together, 2. a thread finishes the samples that batch 1 is
    to be made of, 3. the consumer hands out batch 0."""
    epoch = Epoch(2)
    raw = epoch.batches[1]
    raw.is_raw, raw.after = True, None
    epoch.finish(0, 1)
    epoch.hand_out(0)
    assert raw.value == "batch 1"
    assert epoch.route.begun == ["batch 0"]


@pytest.mark.parametrize("in_order", [True, False])
def test_who_finished_a_batch_does_not_touch_it_once_it_was_handed_out(in_order):
    """1. A thread announces the batch, 2. the consumer hands it out, 3. the thread asks once more whether it is due."""
    epoch = Epoch(1, in_order)
    (batch,) = epoch.batches
    epoch.finish(0)
    begin = epoch.ahead.begin
    assert epoch.hand_out(0).value == "batch 0 on the device"
    begin(batch)
    assert batch.value == "batch 0 on the device"
    assert epoch.route.begun == ["batch 0"]


def test_out_of_order_the_first_two_that_are_finished_are_begun():
    epoch = Epoch(4, in_order=False)
    epoch.finish(3, 1, 2)
    assert epoch.route.begun == ["batch 3", "batch 1"]
    epoch.hand_out(3)
    assert epoch.route.begun == ["batch 3", "batch 1", "batch 2"]


def test_out_of_order_batches_that_failed_leave_no_room_for_more():
    epoch = Epoch(8, in_order=False)
    for number in range(3):
        epoch.fail(number)
        assert isinstance(epoch.hand_out(number).failure, Failure)
    epoch.finish(3, 4, 5, 6, 7)
    assert epoch.num_on_device == NUM_DEVICE_BATCHES


def test_out_of_order_batches_that_are_made_again_take_no_room():
    epoch = Epoch(3, in_order=False)
    old = [epoch.batch(number) for number in range(3)]
    for batch in old[:2]:
        epoch.ahead.begin(batch)
        batch.drop()
    epoch.finish(0, 1, 2)
    epoch.hand_out(0)
    assert epoch.num_on_device == NUM_DEVICE_BATCHES


def test_a_dropped_batch_is_not_begun():
    epoch = Epoch(1)
    epoch.batches[0].drop()
    epoch.ahead.begin(epoch.batches[0])
    assert epoch.route.begun == []


def test_a_copy_that_cannot_be_begun_is_its_batchs_failure():
    epoch = Epoch(2)
    epoch.route.error = RuntimeError("out of memory")
    epoch.finish(0)
    epoch.route.error = None
    epoch.finish(1)
    failure = epoch.hand_out(0).failure
    assert (failure.stage, str(failure.error)) == ("transfer", "out of memory")
    assert epoch.hand_out(1).value == "batch 1 on the device"


def test_a_copy_that_cannot_end_is_its_batchs_failure():
    epoch = Epoch(1)
    epoch.finish(0)
    epoch.route.error = RuntimeError("lost device")
    assert epoch.hand_out(0).failure.stage == "transfer"


@pytest.mark.parametrize("num_begun_before", [0, 1])
def test_after_ctrl_c_while_it_is_handed_out_the_batch_is_there(num_begun_before):
    epoch = Epoch(2)
    if not num_begun_before:
        epoch.batches[0].after = None
    epoch.finish(0)
    assert len(epoch.route.begun) == num_begun_before
    epoch.route.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        epoch.hand_out(0)
    epoch.in_flight.put_back(epoch.batches[0])
    epoch.route.error = None
    assert epoch.hand_out(0).value == "batch 0 on the device"


def test_a_batch_is_begun_once_by_whoever_is_first():
    epoch = Epoch(2)
    batch = epoch.batches[1]
    batch.value = "batch 1"
    together = threading.Barrier(8)

    def begin():
        together.wait(20)
        epoch.ahead.begin(batch)

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert epoch.route.begun == ["batch 1"]
