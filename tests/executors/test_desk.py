"""Desk: code in a process that keeps what it made neither harms others nor is harmed."""

import errno
import gc
import os

import numpy as np
import pytest
import torch
from lending import laid, sent, through

from torchstage.executors import memory as memories
from torchstage.executors.desk import MIN_SLOT_BYTES, Desk
from torchstage.executors.slots import Slots

LARGE = 2 * MIN_SLOT_BYTES


@pytest.fixture
def slots():
    slots = Slots(3)
    yield slots
    slots.close()


@pytest.fixture
def desks():
    desks = [Desk(), Desk()]
    yield desks
    for desk in desks:
        desk.close()


def room(desk, number, num_bytes=LARGE):
    return desk.empty((num_bytes,), torch.uint8).fill_(number)


def test_what_lies_in_the_slot_is_not_copied_into_it(slots, desks):
    slot = slots.take()
    parcel = laid(desks[0], slot, lambda: {"all": room(desks[0], 1), "half": room(desks[0], 2)[LARGE // 2 :].numpy()})
    assert parcel.num_slot_bytes == 2 * LARGE
    value = slot.open(parcel)
    assert value["all"].eq(1).all()
    assert (value["half"] == 2).all()
    assert value["half"].nbytes == LARGE // 2


def test_room_is_aligned_and_of_the_shape_and_dtype_asked_for(slots, desks):
    slot = slots.take()
    desks[0].take(slot.number, os.dup(slot.fd))
    for shape, dtype in [((3, 5, 1001), torch.float32), ((LARGE + 1,), torch.bool), ((77, 333), torch.complex128)]:
        tensor = desks[0].empty(shape, dtype)
        assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size(shape), dtype, True)
        assert tensor.data_ptr() % 64 == 0
    for shape in [(), (0,), (3, 0), (5,)]:
        assert desks[0].empty(shape, torch.int64).shape == torch.Size(shape)
    slot.drop()


def test_samples_are_stacked_right_into_the_slot(slots, desks):
    samples = [torch.full((3, 64, 64), float(number)) for number in range(8)]

    def collated():
        return torch.stack(samples, out=desks[0].empty((8, 3, 64, 64), torch.float32))

    slot = slots.take()
    parcel = laid(desks[0], slot, collated)
    assert parcel.num_slot_bytes == 8 * 3 * 64 * 64 * 4
    assert torch.equal(slot.open(parcel), torch.stack(samples))


KEEPS = {
    "tensor": lambda t: t,
    "row": lambda t: t[1:],
    "array": lambda t: torch.as_tensor(t.numpy()),
    "storage": lambda t: torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()),
}


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
def test_a_dataset_that_keeps_its_batch_neither_changes_another_nor_sees_it_changed(slots, desks, keep):
    """1. A job's code keeps the batch. 2. The user changes his. 3. The code changes its own. 4. The slot is used
    again, by another process."""
    kept = []

    def make():
        tensor = room(desks[0], 1)
        kept.append(keep(tensor))
        return [tensor, torch.arange(9)]

    slot = slots.take()
    parcel = laid(desks[0], slot, make)
    own = (
        torch.as_tensor(kept[0])
        if not isinstance(kept[0], torch.UntypedStorage)
        else torch.tensor([], dtype=torch.uint8).set_(kept[0])
    )
    own.fill_(5)
    batch = slot.open(parcel)
    assert batch[0].eq(1).all()
    batch[0].fill_(2)
    for number in range(10, 20):
        held = [through(slots, desk, lambda desk=desk, number=number: room(desk, number)) for desk in desks]
        assert all(each.eq(number).all() for each in held)
    assert own.eq(5).all()
    assert batch[0].eq(2).all()


def test_a_batch_that_a_dataset_makes_once_and_returns_each_time(slots, desks):
    cached = []

    def make():
        if not cached:
            cached.append(room(desks[0], 9))
        return cached[0]

    held = []
    for number in range(12):
        held.append(through(slots, desks[0], make))
        assert through(slots, desks[1], lambda number=number: room(desks[1], number)).eq(number).all()
        held[-1][0] = number
        assert cached[0].eq(9).all()
    for number, batch in enumerate(held):
        assert batch[0] == number
        assert batch[1:].eq(9).all()


def test_code_that_keeps_what_it_is_given_is_given_memory_of_its_own_more_and_more_often(slots, desks):
    kept = []
    addresses = set()
    num_dropped = 0
    for number in range(40):
        slot = slots.take()
        identity = os.fstat(slot.fd).st_ino
        addresses.add(identity)

        def make(number=number):
            kept.append(room(desks[0], number))
            return kept[-1]

        parcel = laid(desks[0], slot, make)
        num_dropped += parcel.is_kept
        slot.open(parcel)
    assert num_dropped == 6  # at 0, 2, 5, 10, 19, 36
    assert all(tensor.eq(number).all() for number, tensor in enumerate(kept))


def test_code_that_no_longer_keeps_it_gets_the_slot_again(slots, desks):
    kept = [None]

    def make(number):
        tensor = room(desks[0], number)
        kept[0] = tensor if number < 3 else None
        return tensor

    for number in range(12):
        slot = slots.take()
        parcel = laid(desks[0], slot, lambda number=number: make(number))
        assert parcel.is_kept == (number in (0, 2))
        slot.open(parcel)
    desks[0].take(-1, None)


def test_a_parcel_that_is_not_sealed_is_copied(slots, desks):
    slot = slots.take()
    desks[0].take(slot.number, os.dup(slot.fd))
    value = room(desks[0], 3)
    parcel = desks[0].pack(value)
    assert parcel.is_kept
    batch = slot.open(sent(parcel))
    assert slots.take() is not slot
    value.fill_(4)
    assert batch.eq(3).all()
    del value
    assert not desks[0].sealed(parcel).is_kept


def test_a_job_that_failed_may_have_left_something(slots, desks):
    """Even where the slot was not dropped, this process does not write over what its own code keeps."""
    kept = []
    slot = slots.take()
    desks[0].take(slot.number, os.dup(slot.fd))
    kept.append(room(desks[0], 1))
    slot.give_back()
    again = slots.take()
    assert again is slot
    parcel = laid(desks[0], again, lambda: room(desks[0], 2))
    assert again.open(parcel).eq(2).all()
    assert kept[0].eq(1).all()
    assert slots.take() is not slot


def test_slots_of_the_same_number_are_told_apart(slots, desks):
    one, other = Slots(1), Slots(1)
    first, second = one.take(), other.take()
    assert first.number == second.number
    values = [slot.open(laid(desks[0], slot, lambda n=n: room(desks[0], n))) for n, slot in enumerate([first, second])]
    assert values[0].eq(0).all()
    assert values[1].eq(1).all()
    one.close()
    other.close()


def test_file_descriptors_do_not_pile_up(slots, desks):
    def count():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    through(slots, desks[0], lambda: room(desks[0], 1))
    before = count()
    for number in range(200):
        through(slots, desks[0], lambda number=number: room(desks[0], number))
    assert count() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        desks[0].take(0, 10_000)
    desks[0].close()
    desks[0].close()
    assert count() < before


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.ENOSPC])
def test_no_memory_is_an_error_with_the_way_out(slots, desks, monkeypatch, code):
    def none_left(*args):
        raise OSError(code, os.strerror(code))

    slot = slots.take()
    desks[0].take(slot.number, os.dup(slot.fd))
    monkeypatch.setattr(memories, "_reserve", none_left)
    with pytest.raises(MemoryError, match=r"There is no memory for the 32,768 bytes .* Use a smaller batch_size"):
        desks[0].empty((LARGE,), torch.uint8)
    with pytest.raises(MemoryError, match="There is no memory"):
        desks[0].pack(torch.zeros(LARGE))
    slot.drop()


def test_a_limit_on_the_size_of_files_means_ordinary_memory(slots, desks, monkeypatch):
    def too_large(*args):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(memories, "_reserve", too_large)
    slot = slots.take()
    parcel = laid(desks[0], slot, lambda: [room(desks[0], 3), np.ones(LARGE)])
    assert parcel.num_slot_bytes == 0
    value = slot.open(parcel)
    assert value[0].eq(3).all()
    assert (value[1] == 1).all()


def test_a_slot_is_not_read_before_its_pages_are_there(slots, desks):
    """Pages are made to exist before anybody touches them: touching them without memory would kill the process."""
    slot = slots.take()
    desks[0].take(slot.number, os.dup(slot.fd))
    room(desks[0], 1, 3 << 20)
    status = os.fstat(slot.fd)
    assert status.st_size >= status.st_blocks * 512 >= 3 << 20
    slot.drop()
    gc.collect()
