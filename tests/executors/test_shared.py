"""Shared: a dataset lies in memory once, and each process may write to its own."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from lending import sent

from torchstage.executors import blocks, shared
from torchstage.executors.parcel import Bound
from torchstage.executors.slots import Shared


class Dataset:
    def __init__(self, num_samples):
        self.images = torch.arange(num_samples * 10).view(num_samples, 10)
        self.first = self.images[0]
        self.labels = np.arange(num_samples)
        self.fixed = np.arange(num_samples)
        self.fixed.flags.writeable = False
        self.names = [f"image {number}" for number in range(num_samples)]

    def is_same(self, other):
        return (
            torch.equal(self.images, other.images)
            and np.array_equal(self.labels, other.labels)
            and np.array_equal(self.fixed, other.fixed)
            and self.names == other.names
        )


def opened(packed):
    """As a process opens it."""
    return Shared.open(None if packed.fd is None else os.dup(packed.fd), sent(packed.parcel))


@pytest.fixture(params=["memfd", "none"])
def of(request, monkeypatch):
    if request.param == "none":
        monkeypatch.setattr(shared, "make_memfd", lambda name: None)
    return Shared.of


@pytest.mark.parametrize("num_samples", [1, 50, 100_000])
def test_a_dataset_arrives_as_it_is(of, num_samples):
    dataset = Dataset(num_samples)
    packed = of(dataset)
    copies = [opened(packed) for _ in range(3)]
    packed.close()
    packed.close()
    assert all(dataset.is_same(copy) for copy in copies)
    assert not copies[0].fixed.flags.writeable
    copies[0].first.fill_(-1)
    assert copies[0].images[0].eq(-1).all()


@pytest.mark.parametrize("num_samples", [50, 100_000])
def test_what_one_process_writes_nobody_else_sees(of, num_samples):
    dataset = Dataset(num_samples)
    packed = of(dataset)
    one, other = opened(packed), opened(packed)
    one.images.fill_(3)
    one.labels[:] = 4
    assert dataset.is_same(other)
    assert dataset.is_same(opened(packed))
    dataset.images[5] = 0
    assert not dataset.is_same(opened(packed))


def test_the_parcel_of_a_large_dataset_is_small():
    packed = Shared.of(Dataset(100_000))
    assert len(pickle.dumps(packed.parcel)) < 2000
    assert os.fstat(packed.fd).st_blocks * 512 > 8_000_000 + 2 * 800_000


def test_values_outlive_the_file():
    packed = Shared.of(Dataset(10_000))
    value = opened(packed)
    del packed
    gc.collect()
    assert Dataset(10_000).is_same(value)


def test_file_descriptors_do_not_pile_up():
    def count():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = count()
    for _ in range(100):
        opened(Shared.of(Dataset(1000)))
    assert Shared.of(7).fd is None
    with pytest.raises(TypeError, match="cannot pickle"):
        Shared.of([torch.zeros(100_000), threading.Lock()])
    gc.collect()
    assert count() == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        Shared.open(10_000, Shared.of(Dataset(1000)).parcel)


def test_without_file_descriptors_it_carries_everything(monkeypatch):
    def none_left(name):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(shared, "make_memfd", none_left)
    packed = Shared.of(Dataset(1000))
    assert packed.fd is None
    assert Dataset(1000).is_same(opened(packed))


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (np.zeros(1_000_001, np.uint8), 1_000_001),
        ([torch.zeros(1_000_001, dtype=torch.uint8)] * 3, 1_000_001),
        ([np.zeros(1000) for _ in range(200)], 1_600_000),
        ([bytes([n]) * 2000 for n in range(200)] * 2, 250_000),  # which each of three processes has as well
    ],
)
def test_what_is_larger_than_allowed_takes_no_memory(of, value, num_bytes, monkeypatch):
    monkeypatch.setattr(blocks.Layout, "lay", None)  # it is not come to
    with shared.bounded(Bound(1_000_000, 3)), pytest.raises(shared.TooLarge) as caught:
        of(value)
    assert caught.value.num_bytes >= num_bytes


def test_what_is_as_large_as_allowed_is_sent(of):
    value = np.arange(900_000, dtype=np.uint8)
    with shared.bounded(Bound(1_000_000, 3)):
        assert np.array_equal(opened(of(value)), value)
        assert np.array_equal(opened(of([value, value[5:]]))[1], value[5:])
    assert np.array_equal(opened(of(np.tile(value, 2))), np.tile(value, 2))


def test_a_file_that_is_mapped_again_takes_no_memory(tmp_path):
    np.arange(500_000, dtype=np.uint64).tofile(tmp_path / "tokens")
    value = np.memmap(tmp_path / "tokens", np.uint64, "r")
    with shared.bounded(Bound(100_000, 3)):
        assert np.array_equal(opened(Shared.of(value)), value)


def test_more_than_there_is_is_an_error_that_says_so_beforehand(of, monkeypatch):
    monkeypatch.setattr(shared, "available_bytes", lambda: 500_000)
    with pytest.raises(MemoryError, match=r"at least 1,000,000 bytes, and 500,000 are left.*worker_method='thread'"):
        of(np.zeros(1_000_000, np.uint8))


def test_what_is_left_of_memory_is_known_on_linux():
    assert shared.available_bytes() > 1 << 20
