"""Buffers: memory goes round, and never while anybody can see it."""

import gc
import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from torchstage import StageLoader
from torchstage.buffers import MAX_FREE, MIN_BYTES, Ring

SHAPE = (4, 512, 512)  # 4 MiB of float32


def address_of_a_freed_tensor(ring: Ring) -> int:
    return ring.empty(SHAPE, torch.float32).data_ptr()


def test_memory_is_used_again_once_its_tensor_is_gone():
    ring = Ring()
    assert address_of_a_freed_tensor(ring) == ring.empty(SHAPE, torch.float32).data_ptr()


@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor[0],
        lambda tensor: tensor.view(-1)[5:6],
        lambda tensor: tensor.numpy(),
        lambda tensor: tensor.numpy()[1:2],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: torch.from_numpy(tensor.numpy()),
        lambda tensor: tensor.detach(),
        lambda tensor: np.asarray(tensor),
        lambda tensor: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)),
        lambda tensor: memoryview(tensor.numpy()),
    ],
    ids=[
        "row",
        "view",
        "numpy",
        "part of numpy",
        "storage",
        "there and back",
        "detached",
        "array",
        "dlpack",
        "memoryview",
    ],
)
def test_memory_is_not_used_again_while_anything_refers_to_it(keep):
    ring = Ring()
    tensor = ring.empty(SHAPE, torch.float32)
    address, kept = tensor.data_ptr(), keep(tensor)
    del tensor
    gc.collect()
    others = [ring.empty(SHAPE, torch.float32) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    del kept
    gc.collect()
    assert ring.empty(SHAPE, torch.float32).data_ptr() == address


def test_a_tensor_outlives_the_ring():
    tensor = Ring().empty(SHAPE, torch.float32).fill_(7.0)
    gc.collect()
    assert tensor.eq(7.0).all()


def test_no_more_is_kept_than_goes_round():
    ring = Ring()
    tensors = [ring.empty(SHAPE, torch.float32) for _ in range(3 * MAX_FREE)]
    tensors.clear()
    assert len(ring._free) == MAX_FREE


def test_memory_of_another_size_is_left_alone():
    ring = Ring()
    small = address_of_a_freed_tensor(ring)
    assert ring.empty((8, *SHAPE), torch.float32).data_ptr() != small


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_keeps_the_batch_that_it_saw():
    """1. A child is forked while a batch is held. 2. The parent drops it and makes another in the same memory. 3. The
    child still reads the old one."""
    ring = Ring()
    tensor = ring.empty(SHAPE, torch.float32).fill_(1.0)
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.read(to_child[0], 1)
        os.write(to_parent[1], b"y" if float(tensor[0, 0, 0]) == 1.0 else b"n")
        os._exit(0)
    address = tensor.data_ptr()
    del tensor
    again = ring.empty(SHAPE, torch.float32).fill_(2.0)
    assert again.data_ptr() == address
    os.write(to_child[1], b"x")
    answer = os.read(to_parent[0], 1)
    os.waitpid(child, 0)
    for end in (*to_child, *to_parent):
        os.close(end)
    assert answer == b"y"


class Images:
    """Every field but the label is large enough to be collated into the ring; every batch has values of its own."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        picture = torch.full((3, 256, 256), float(index))
        return {"picture": picture, "array": np.full((3, 256, 256), index, np.float32), "label": index}


class Permuted(Images):
    """As many decoders give them: height, width, channels in memory."""

    def __getitem__(self, index):
        return torch.full((256, 256, 6), float(index)).permute(2, 0, 1)


class Single(Images):
    """One channel: contiguous and channels-last at once."""

    def __getitem__(self, index):
        return torch.full((1, 512, 512), float(index))


@pytest.mark.parametrize("dataset", [Images(), Permuted(), Single()], ids=["plain", "permuted", "one channel"])
def test_batches_are_torchs_in_values_types_and_strides(dataset):
    def leaves(batch):
        return list(batch.values()) if isinstance(batch, dict) else [batch]

    with StageLoader(dataset, batch_size=16, num_workers=2) as loader:
        for ours, torchs in zip(loader, DataLoader(dataset, batch_size=16), strict=True):
            assert type(ours) is type(torchs)
            for mine, theirs in zip(leaves(ours), leaves(torchs), strict=True):
                assert torch.equal(mine, theirs)
                assert (mine.dtype, mine.stride()) == (theirs.dtype, theirs.stride())


def test_a_batch_that_is_kept_is_never_overwritten():
    assert MIN_BYTES <= 16 * 3 * 256 * 256 * 4
    kept = []
    with StageLoader(Images(), batch_size=16, num_workers=2, persistent_workers=True) as loader:
        for _ in range(3):
            for batch in loader:
                kept.append((batch["picture"][3], batch["array"].numpy()[5], batch["label"]))
    for row, array, labels in kept:
        assert row.eq(float(labels[3])).all()
        assert (array == float(labels[5])).all()


def test_batches_go_round():
    addresses = set()
    with StageLoader(Images(), batch_size=8, num_workers=1) as loader:
        for batch in loader:
            addresses.add(batch["picture"].data_ptr())
    assert len(addresses) < 6
