"""Ranks: the number of processes that train together does not change a sample's augmentation.

Simulated in one process: DistributedSampler takes the number of ranks, and the rank, as arguments.
"""

from typing import Any

import pytest
import torch
from torch.utils.data import DistributedSampler

from torchstage import StageLoader

from .fed import Augmented

LENGTH = 13  # odd: two ranks share out one sample twice


def augmented(rank: int, num_ranks: int, epoch: int, batch_size: int | None = 4, **arguments: Any) -> dict[int, Any]:
    """What one rank makes of each index in an epoch."""
    dataset = Augmented(LENGTH)
    sampler: Any = DistributedSampler(dataset, num_replicas=num_ranks, rank=rank, seed=5)
    sampler.set_epoch(epoch)
    loader = StageLoader(dataset, batch_size, sampler=sampler, **{"num_workers": 2, **arguments})
    samples = list(loader) if batch_size is None else [sample for batch in loader for sample in batch]
    assert len(samples) == len(sampler)
    return {int(sample[0]): sample[1:].tolist() for sample in samples}


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("epoch", [0, 4])
def test_a_sample_is_the_same_on_one_rank_and_on_several(num_ranks: int, epoch: int) -> None:
    alone = augmented(0, 1, epoch)
    assert set(alone) == set(range(LENGTH))
    together: dict[int, Any] = {}
    for rank in range(num_ranks):
        mine = augmented(rank, num_ranks, epoch)
        assert mine == {index: alone[index] for index in mine}
        together |= mine
    assert together == alone


@pytest.mark.parametrize(
    "arguments",
    [{"num_workers": 1}, {"num_workers": 4}, {"in_order": False}, {"batch_size": 3}, {"batch_size": None}],
    ids=str,
)
def test_nor_does_it_depend_on_threads_order_or_batches(arguments: dict[str, Any]) -> None:
    assert augmented(0, 2, 1, **arguments) == augmented(0, 2, 1)


def test_inline_with_the_samplers_seed_it_is_the_same() -> None:
    assert augmented(0, 2, 1, num_workers=0, seed=5) == augmented(0, 2, 1)


def test_another_epoch_is_another_augmentation() -> None:
    first, second = augmented(0, 1, 0), augmented(0, 1, 1)
    assert not any(first[index] == second[index] for index in first)


def test_a_seed_of_the_loaders_own_goes_before_the_samplers() -> None:
    ours, theirs = augmented(0, 1, 0, seed=6), augmented(0, 1, 0)
    assert not any(ours[index] == theirs[index] for index in ours)
    assert augmented(1, 2, 0, seed=6).items() <= ours.items()


def test_epochs_that_nobody_announces_differ() -> None:
    dataset = Augmented(LENGTH)
    sampler: Any = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
    loader = StageLoader(dataset, LENGTH, sampler=sampler, num_workers=2)
    (first,), (second,) = list(loader), list(loader)
    assert not bool((first[:, 1:] == second[:, 1:]).any())
    assert torch.equal(first[:, 0], second[:, 0])
