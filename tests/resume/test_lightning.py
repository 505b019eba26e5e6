"""Lightning saves a loader's state with its checkpoints and gives it back: no sample is lost or comes twice."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder, new_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DistributedSampler

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .runs import Drawing, plain, reseed

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
]

NUM_EPOCHS = 3


def shuffled(**arguments: Any) -> StageLoader[Any]:
    return StageLoader(Drawing(11), 3, shuffle=True, seed=3, **arguments)


def distributed(**arguments: Any) -> StageLoader[Any]:
    dataset = Drawing(11)
    return StageLoader(dataset, 3, sampler=DistributedSampler(dataset, 1, 0), seed=3, **arguments)


def elastic(**arguments: Any) -> StageLoader[Any]:
    dataset = Drawing(11)
    return StageLoader(dataset, 3, sampler=ElasticSampler(dataset, 1, 0), seed=3, **arguments)


class StoppedError(Exception):
    """The process was killed."""


class Killed(Recorder):
    """Is killed in the step after ``num_steps``; draws in each, from the generator that also gives the orders."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps = num_steps

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if len(self.seen) == self.num_steps:
            raise StoppedError
        return super().training_step(batch, batch_idx)

    def batches(self) -> list[tuple[int, Any]]:
        return [(epoch, plain(batch)) for _, epoch, batch in self.seen]


def fit(model: Killed, loader: Any, folder: Path, checkpoint: Path | None = None) -> Killed:
    saves = ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    trainer = new_trainer(max_epochs=NUM_EPOCHS, enable_checkpointing=True, callbacks=[saves])
    if model.num_steps >= NUM_EPOCHS * 4 or checkpoint is not None:
        trainer.fit(model, loader, ckpt_path=checkpoint)
    else:
        with pytest.raises(StoppedError):
            trainer.fit(model, loader)
    return model


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("make", [shuffled, distributed, elastic])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5, 7, 8])
def test_a_run_goes_on_after_any_step(make: Any, num_workers: int, num_steps: int, tmp_path: Path) -> None:
    reseed(1)
    expected = fit(Killed(100), make(num_workers=num_workers), tmp_path / "whole").batches()
    assert [epoch for epoch, _ in expected] == [0] * 4 + [1] * 4 + [2] * 4

    reseed(1)
    first = fit(Killed(num_steps), make(num_workers=num_workers), tmp_path / "first").batches()
    (path,) = (tmp_path / "first").glob(f"step={num_steps}.ckpt")
    reseed(2)
    rest = fit(Killed(100), make(num_workers=num_workers), tmp_path / "first", path).batches()
    assert [batch for _, batch in first + rest] == [batch for _, batch in expected]
    assert first + rest == expected
