"""Reports of iterable datasets that users filed elsewhere. Each test cites the report it answers."""

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import StageLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 16 lanes on few cores


class Items(IterableDataset):
    """0 to 999, each reader all of them."""

    def __len__(self) -> int:
        return 1000

    def __iter__(self) -> Iterator[int]:
        return iter(range(1000))


class Shared(Items):
    """0 to 999, shared among the readers as the documentation of torch says."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(1000)) if info is None else iter(range(info.id, 1000, info.num_workers))


@pytest.mark.parametrize("num_threads", [1, 4, 10])
def test_ur_045_only_the_global_tail_is_dropped(num_threads: int) -> None:
    """UR-045: batches are made and dropped worker by worker, so that up to all samples are lost."""
    loader = StageLoader(Items(), batch_size=128, drop_last=True, num_workers=num_threads, lanes=1)
    assert [len(batch) for batch in loader] == [128] * 7
    loader = StageLoader(Items(), batch_size=128, num_workers=num_threads, lanes=1)
    assert [len(batch) for batch in loader] == [128] * 7 + [104]


@pytest.mark.parametrize("num_threads", [1, 4, 16])
@pytest.mark.parametrize("dataset", [Items(), Shared()], ids=["ignores the info", "shards by it"])
def test_ur_046_each_item_comes_once(dataset: Any, num_threads: int) -> None:
    """UR-046: a dataset that does not shard itself gives each item once a worker; and where it has a length, that is
    wrong. One lane is one reader, whatever the number of threads."""
    loader = StageLoader(dataset, batch_size=32, num_workers=num_threads, lanes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        length = len(loader)
        batches = [*loader]
    assert torch.cat(batches).tolist() == [*range(1000)]
    assert len(batches) == length == 32


class Archive(IterableDataset):
    """Shards split among ranks, and those of a rank among its readers, as WebDataset does it."""

    def __init__(self, num_shards: int, rank: int, world_size: int) -> None:
        self.shards = [*range(num_shards)][rank::world_size]

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        return (100 * shard + number for shard in self.shards[info.id :: info.num_workers] for number in range(5))


@pytest.mark.parametrize("num_threads", [1, 2, 8])
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_ur_043_too_few_shards_hang_no_loader(num_shards: int, world_size: int, num_threads: int) -> None:
    """UR-043: with fewer shards than ranks and workers some get no data, and wait for ever. Here an epoch without data
    is an epoch without batches; and with one lane, threads have no part in how shards are split. (That all ranks get
    the same number of batches is for whoever knows the shards to see to; a loader of any dataset cannot.)"""
    whole, split = [], []
    for rank in range(world_size):
        dataset = Archive(num_shards, rank, world_size)
        loader = StageLoader(dataset, batch_size=2, num_workers=num_threads, lanes=1)
        whole.append([batch.tolist() for batch in loader])
        split += [number for batch in StageLoader(dataset, 2, num_workers=num_threads) for number in batch.tolist()]
    everything = [100 * shard + number for shard in range(num_shards) for number in range(5)]
    assert sorted(split) == everything
    assert sorted(number for batches in whole for batch in batches for number in batch) == everything
    num_samples = [5 * len(range(rank, num_shards, world_size)) for rank in range(world_size)]
    assert [len(batches) for batches in whole] == [math.ceil(number / 2) for number in num_samples]
