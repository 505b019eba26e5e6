"""Slots: what a user holds is never written over, and memory goes round when nobody holds it."""

import gc
import os
import weakref
from typing import ClassVar

import numpy as np
import pytest
import torch
from lending import LARGE, filled, laid, lending, through

from torchstage.executors import memory as memories
from torchstage.executors import slots as slots_module
from torchstage.executors.desk import Desk
from torchstage.executors.slots import Slots


def num_free(slots):
    return len(slots._free)


KEEP = {
    "tensor": lambda t: t,
    "row": lambda t: t[5:6],
    "view": lambda t: t.view(2, -1)[1],
    "other dtype": lambda t: t.view(torch.int32),
    "detached": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "part of numpy": lambda t: t.numpy()[3:4],
    "array from buffer": lambda t: np.frombuffer(t.numpy(), np.uint8, 10, 3),
    "storage": lambda t: t.untyped_storage(),
    "memoryview": lambda t: memoryview(t.numpy())[2:9],
    "read-only memoryview": lambda t: memoryview(t.numpy()).toreadonly(),
    "tensor of numpy": lambda t: torch.from_numpy(t.numpy()),
    "tensor of memoryview": lambda t: torch.frombuffer(memoryview(t.numpy()), dtype=torch.uint8, count=9, offset=9),
    "dlpack": lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
    "set": lambda t: torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage(), 3, (4,), (1,)),
    "subclass": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "graph": lambda t: (torch.ones(1, requires_grad=True) * t.float()).grad_fn,
}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
def test_a_slot_is_not_used_again_while_anything_refers_to_it(keep):
    with lending(3) as (slots, desk):
        tensor = through(slots, desk, filled(desk, 1))
        address, kept = tensor.data_ptr(), keep(tensor)
        is_copy = type(kept).__name__ == "MulBackward0"  # it holds a copy: t.float()
        del tensor
        gc.collect()
        assert num_free(slots) == (1 if is_copy else 0)
        held = through(slots, desk, filled(desk, 2))
        assert (held.data_ptr() == address) == is_copy
        del kept, held
        gc.collect()
        assert num_free(slots) == (1 if is_copy else 2)
        held = [through(slots, desk, filled(desk, 3)) for _ in range(2)]
        assert address in [tensor.data_ptr() for tensor in held]


ARRAYS = {
    "array": lambda a: a,
    "part": lambda a: a[3:4],
    "reshaped": lambda a: a.reshape(2, -1).T,
    "tensor": lambda a: torch.from_numpy(a),
    "memoryview": lambda a: memoryview(a),
    "base": lambda a: a.base,
    "from buffer": lambda a: np.frombuffer(a, np.uint8, 3, 3),
}


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize("keep", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_a_slot_is_not_used_again_while_anything_refers_to_an_array_in_it(keep, is_writable):
    def make():
        array = np.ones(LARGE, np.uint8)
        array.flags.writeable = is_writable
        return array

    with lending(3) as (slots, desk):
        kept = keep(through(slots, desk, make))
        gc.collect()
        assert num_free(slots) == 0
        del kept
        gc.collect()
        assert num_free(slots) == 1


def test_each_of_many_tensors_keeps_the_slot():
    with lending(3) as (slots, desk):
        batch = through(slots, desk, lambda: {k: torch.full((LARGE,), k) for k in range(5)})
        for key in range(5):
            assert num_free(slots) == 0
            assert batch.pop(key).eq(key).all()
        assert num_free(slots) == 1


def test_labels_of_a_batch_keep_no_slot():
    with lending(3) as (slots, desk):
        labels = through(slots, desk, lambda: (desk.empty((LARGE,), torch.uint8), torch.arange(64), np.arange(64)))[1:]
        assert num_free(slots) == 1
        assert labels[0].tolist() == labels[1].tolist() == list(range(64))


def test_storages_are_as_large_as_their_tensors_and_aligned():
    """Else saving one tensor would save the whole batch, and more."""
    with lending(3) as (slots, desk):
        batch = through(slots, desk, lambda: [torch.ones(LARGE + k, dtype=torch.uint8) for k in range(5)])
        batch += through(slots, desk, lambda: [desk.empty((LARGE + k,), torch.uint8) for k in range(5)])
        for k, tensor in enumerate(batch):
            assert tensor.untyped_storage().nbytes() == LARGE + k % 5
            assert tensor.data_ptr() % 64 == 0
            assert (tensor.storage_offset(), tensor._base) == (0, None)


def test_a_batch_may_be_let_go_of_by_a_collection_while_a_slot_is_taken():
    """1. A thread takes a slot and holds the lock. 2. It collects garbage, and a batch comes back in its midst."""
    with lending(3) as (slots, desk):
        held = [through(slots, desk, filled(desk, 1))]
        held.append(held)
        del held
        with slots._lock:
            gc.collect()
        assert num_free(slots) == 1


class Resurrected:
    """Comes back to life when it is collected as garbage."""

    graves: ClassVar[list] = []

    def __init__(self, batch):
        self.batch = batch
        self.itself = self

    def __del__(self):
        self.graves.append((self.batch, int(self.batch.view(-1)[0])))


def test_a_slot_in_a_circle_of_garbage_is_kept_as_long_as_its_finalizers_may_read_it():
    """1. A batch is in a circle of garbage. 2. The collection calls what waits for weakly referred objects in the
    circle. 3. It calls ``__del__``, which brings the batch back to life."""
    with lending(3) as (slots, desk):
        batch = through(slots, desk, filled(desk, 7))
        Resurrected(batch)
        array = through(slots, desk, lambda: np.full(LARGE, 8, np.uint8))
        Resurrected(torch.from_numpy(array))
        del batch, array
        gc.collect()
        assert num_free(slots) == 0
        assert [value for _, value in Resurrected.graves] == [7, 8]
        Resurrected.graves.clear()
        gc.collect()
        assert num_free(slots) == 2


def test_batches_are_copied_where_no_slot_would_be_left():
    with lending(2) as (slots, desk):
        held = [through(slots, desk, filled(desk, number)) for number in range(20)]
        for number, tensor in enumerate(held):
            assert tensor.eq(number).all()
        assert num_free(slots) == 1
        held.clear()
        assert num_free(slots) == 2


def test_all_slots_may_be_away():
    with lending(2) as (slots, desk):
        first, second = slots.take(), slots.take()
        assert slots.take() is None
        parcel = laid(desk, None, filled(desk, 3))
        assert parcel.num_slot_bytes == 0
        second.give_back()
        assert slots.take() is second
        first.give_back()
        second.give_back()


def test_a_value_that_has_nothing_in_the_slot_frees_it_at_once():
    with lending(2) as (slots, desk):
        kept = through(slots, desk, lambda: [torch.arange(5), "word"])
        assert num_free(slots) == 1
        assert kept[0].tolist() == [0, 1, 2, 3, 4]


class Unwilling:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce__(self):
        return _unwilling, (self.tensor,)


def _unwilling(tensor):
    raise ArithmeticError("not here")


def test_a_value_that_cannot_be_made_there_frees_the_slot():
    with lending(2) as (slots, desk):
        with pytest.raises(ArithmeticError, match="not here"):
            through(slots, desk, lambda: Unwilling(torch.zeros(LARGE)))
        gc.collect()
        assert num_free(slots) == 1


def test_slots_grow_with_the_batches_and_maps_are_seldom_made_anew():
    with lending(2) as (slots, desk):
        addresses = []
        for number in range(60):
            tensor = through(slots, desk, filled(desk, number, LARGE * (number + 1)))
            assert tensor.eq(number).all()
            addresses.append(tensor.data_ptr())
            del tensor
        assert len(set(addresses)) <= 4  # 1, 2, 4 MiB


def test_a_slot_that_grows_while_it_is_filled_keeps_what_is_in_it():
    def make():
        parts = [
            desk.empty((size,), torch.uint8).fill_(number) for number, size in enumerate([LARGE, 3 << 20, 20 << 20])
        ]
        return parts[0][7:], parts[1].numpy(), parts[2], parts[0]

    with lending(2) as (slots, desk):
        for _ in range(3):
            tail, array, last, first = through(slots, desk, make)
            assert (tail.eq(0).all(), (array == 1).all(), last.eq(2).all()) == (True, True, True)
            first[7] = 9
            assert tail[0] == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_the_batch_that_it_saw():
    """1. A child is forked while a batch is held. 2. The parent drops it and gets others. 3. The child still reads the
    old one, and has no slots of its own."""
    with lending(2) as (slots, desk):
        tensor = through(slots, desk, filled(desk, 1))
        to_child, to_parent = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.read(to_child[0], 1)
            is_right = bool(tensor.eq(1).all()) and slots.take() is None
            del tensor
            os.write(to_parent[1], b"y" if is_right and num_free(slots) == 0 else b"n")
            os._exit(0)
        del tensor
        for number in range(5):
            assert through(slots, desk, filled(desk, number + 2)).eq(number + 2).all()
        os.write(to_child[1], b"x")
        answer = os.read(to_parent[0], 1)
        os.waitpid(child, 0)
        for end in (*to_child, *to_parent):
            os.close(end)
        assert answer == b"y"


def test_memory_outlives_the_slots():
    with lending(3) as (slots, desk):
        before = through(slots, desk, filled(desk, 4))
        slot = slots.take()
        parcel = laid(desk, slot, filled(desk, 5))
        slots.close()
        after = slot.open(parcel)
        assert slots.take() is None
    del slots, slot
    gc.collect()
    assert before.eq(4).all()
    assert after.eq(5).all()


def test_a_batch_keeps_no_other_slot():
    slots, desk = Slots(4), Desk()
    held = through(slots, desk, filled(desk, 1))
    free = slots.take()
    free.give_back()
    gone = weakref.ref(free)
    del slots, free
    assert gone() is None
    assert held.eq(1).all()
    desk.close()


def test_file_descriptors_do_not_pile_up():
    def count():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    desk = Desk()
    before = count()
    for _ in range(10_000):
        slots = Slots(2)
        slot = slots.take()
        slot.give_back()
        del slots, slot
    for number in range(300):
        slots = Slots(2)
        tensor = through(slots, desk, filled(desk, number % 200))
        slots.take().drop()
        del slots
        assert tensor.eq(number % 200).all()
    del tensor
    desk.close()
    assert count() == before


def test_a_slot_that_was_dropped_is_replaced():
    with lending(1) as (slots, desk):
        first = slots.take()
        laid(desk, first, filled(desk, 1))
        first.drop()
        second = slots.take()
        assert second is not first
        assert second.number == first.number
        assert second.open(laid(desk, second, filled(desk, 2))).eq(2).all()


def test_without_memfds_everything_is_carried(monkeypatch):
    monkeypatch.setattr(slots_module, "HAS_MEMFD", False)
    with lending(3) as (slots, desk):
        assert slots.take() is None
        assert through(slots, desk, filled(desk, 3)).eq(3).all()


def test_without_file_descriptors_everything_is_carried(monkeypatch):
    def none_left(name):
        raise OSError(24, "Too many open files")

    with lending(3) as (slots, desk):
        monkeypatch.setattr(slots_module, "make_memfd", none_left)
        assert slots.take() is None
        monkeypatch.setattr(slots_module, "make_memfd", memories.make_memfd)
        assert through(slots, desk, filled(desk, 3)).eq(3).all()
