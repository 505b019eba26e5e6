"""Lightning's epochs: a sampler is told which one it is, also after a resume, where iter() comes first."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from parity.compare import assert_same
from torch.utils.data import DataLoader, DistributedSampler

from torchstage import StageLoader

from .fed import Augmented, numbers_of
from .training import QUIET, Recorder, new_trainer

pytestmark = [*QUIET]


class Shuffled(DistributedSampler[Any]):
    """One rank of one, with an order for each epoch."""

    def __init__(self, dataset: Any, seed: int = 3) -> None:
        super().__init__(dataset, num_replicas=1, rank=0, seed=seed)


def new_loader(loader_class: Any = StageLoader, **arguments: Any) -> Any:
    dataset = Augmented(10)
    return loader_class(dataset, batch_size=4, sampler=Shuffled(dataset), **arguments)


def expected(epoch: int) -> list[torch.Tensor]:
    """An epoch's batches, without Lightning."""
    loader = new_loader(num_workers=1)
    loader.sampler.set_epoch(epoch)
    return list(loader)


@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_has_the_order_and_the_draws_of_its_number(persistent: bool) -> None:
    model = Recorder()
    new_trainer(max_epochs=3).fit(model, new_loader(num_workers=2, persistent_workers=persistent))
    for epoch in range(3):
        assert_same(model.seen_in("fit", epoch), expected(epoch), f"epoch {epoch}")


def test_the_rebuilt_loader_of_another_run_has_the_same_draws() -> None:
    for _ in range(2):
        model = Recorder()
        new_trainer(max_epochs=1, use_distributed_sampler=False).fit(model, new_loader(num_workers=2))
        assert_same(model.seen_in("fit"), expected(0))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_resumed_run_goes_on_with_the_next_epoch(persistent: bool, tmp_path: Path) -> None:
    path = tmp_path / "first.ckpt"
    first = new_trainer(max_epochs=2)
    first.fit(Recorder(), new_loader(num_workers=2))
    first.save_checkpoint(path)

    model = Recorder()
    loader = new_loader(num_workers=2, persistent_workers=persistent)
    new_trainer(max_epochs=4).fit(model, loader, ckpt_path=path)
    assert {epoch for _, epoch, _ in model.seen} == {2, 3}
    for epoch in (2, 3):
        assert_same(model.seen_in("fit", epoch), expected(epoch), f"epoch {epoch}")


def test_a_resumed_run_has_the_order_of_dataloader(tmp_path: Path) -> None:
    orders = {}
    for loader_class, num_workers in ((DataLoader, 0), (StageLoader, 2)):
        path = tmp_path / f"{loader_class.__name__}.ckpt"
        first = new_trainer(max_epochs=1)
        first.fit(Recorder(), new_loader(loader_class, num_workers=num_workers))
        first.save_checkpoint(path)
        model = Recorder()
        new_trainer(max_epochs=3).fit(model, new_loader(loader_class, num_workers=num_workers), ckpt_path=path)
        orders[loader_class] = [numbers_of(batch) for batch in model.seen_in("fit")]
    assert orders[StageLoader] == orders[DataLoader]
    assert len(orders[StageLoader]) == 6
