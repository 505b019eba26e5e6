"""Lightning, epoch after epoch: with prefetch_epochs, what it trains with is the same, and nothing is made twice."""

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from torch.utils.data import Dataset, DistributedSampler

from torchstage import StageLoader
from torchstage.lightning import StageDataModule
from torchstage.samplers import ElasticSampler

from .training import QUIET, Recorder, new_trainer

pytestmark = [*QUIET]
LENGTH, NUM_EPOCHS = 10, 4
MADE: list[int] = []


class Noted(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        MADE.append(index)
        return torch.tensor([float(index), torch.rand(()).item()])


ORDERS: dict[str, Any] = {
    "in order": lambda dataset: {},
    "shuffled": lambda dataset: {"shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "distributed": lambda dataset: {"sampler": DistributedSampler(dataset, 1, 0)},
    "elastic": lambda dataset: {"sampler": ElasticSampler(dataset, 1, 0)},
}


def arguments_of(prefetch_epochs: bool) -> dict[str, Any]:
    kept = {"num_workers": 2, "persistent_workers": True, "worker_method": "thread"}
    return {"batch_size": 2, "prefetch_epochs": prefetch_epochs, **kept}


def trained_with(**fit: Any) -> tuple[list[Any], Counter[int]]:
    MADE.clear()
    torch.manual_seed(7)
    module = Recorder()
    new_trainer(max_epochs=NUM_EPOCHS).fit(module, **fit)
    return [(epoch, batch.tolist()) for stage, epoch, batch in module.seen if stage == "fit"], Counter(MADE)


@pytest.mark.parametrize("order", ORDERS)
def test_a_trainer_sees_the_same_batches_and_no_sample_is_made_twice(order: str) -> None:
    seen = []
    for prefetch_epochs in (True, False):
        dataset = Noted()
        with StageLoader(dataset, **arguments_of(prefetch_epochs), **ORDERS[order](dataset)) as loader:
            batches, made = trained_with(train_dataloaders=loader)
        seen.append(batches)
        assert max(made.values()) <= NUM_EPOCHS + prefetch_epochs
    assert seen[0] == seen[1]
    assert len(seen[0]) == NUM_EPOCHS * LENGTH // 2


def test_of_a_data_module_the_training_loaders_alone_begin_epochs_early() -> None:
    seen = []
    for prefetch_epochs in (True, False):
        data = StageDataModule(Noted(), Noted(), **arguments_of(prefetch_epochs))
        assert data.val_dataloader().prefetch_epochs is False
        batches, made = trained_with(datamodule=data)
        seen.append(batches)
        # A loader of the training data and one of the others, which is asked for a look before training, too.
        assert max(made.values()) <= 2 * NUM_EPOCHS + 1 + prefetch_epochs
    assert seen[0] == seen[1]
