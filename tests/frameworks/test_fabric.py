"""Fabric on one device: it wraps a loader, and tells its sampler the epoch. test_two_ranks.py has it on two."""

from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.fabric import Fabric
from lightning.pytorch import seed_everything
from parity.compare import assert_same
from torch.utils.data import DataLoader, DistributedSampler

from torchstage import StageLoader

from .fed import EVERY, Augmented, Stream, assert_kept, numbers_of


def set_up(loader: Any) -> Any:
    return Fabric(accelerator="cpu", devices=1).setup_dataloaders(loader)


def test_the_loader_stays_the_one_it_was() -> None:
    loader = StageLoader(Augmented(8), **EVERY)
    wrapped = set_up(loader)
    assert wrapped._dataloader is loader
    assert_kept(loader, EVERY)


def test_the_batches_are_those_of_dataloader() -> None:
    def batches(loader_class: Any) -> Any:
        order = torch.Generator().manual_seed(3)
        loader = set_up(loader_class(Augmented(10), 3, True, generator=order, num_workers=2))
        assert len(loader) == 4
        return [[numbers_of(batch) for batch in loader] for _ in range(2)]

    assert_same(batches(StageLoader), batches(DataLoader))


def test_lanes_draw_as_in_dataloader_where_fabric_seeds_the_workers() -> None:
    def batches(loader_class: Any) -> Any:
        seed_everything(7, workers=True, verbose=False)
        loader = loader_class(Stream(10), batch_size=2, num_workers=2)
        wrapped = set_up(loader)
        assert loader.worker_init_fn is not None
        return list(wrapped)

    assert_same(batches(StageLoader), batches(DataLoader))


def test_each_epoch_has_the_order_and_the_draws_of_its_number() -> None:
    def new_loader() -> StageLoader[Any]:
        dataset = Augmented(10)
        sampler: Any = DistributedSampler(dataset, num_replicas=1, rank=0, seed=3)
        return StageLoader(dataset, 4, sampler=sampler, num_workers=2)

    wrapped = set_up(new_loader())
    for epoch in range(3):
        alone: Any = new_loader()
        alone.sampler.set_epoch(epoch)
        assert_same(list(wrapped), list(alone), f"epoch {epoch}")
