"""Checkpoint callbacks of Lightning's own: whatever they save, and whenever, is gone on with exactly."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, OnExceptionCheckpoint

from torchstage.lightning import StageDataModule

from .data import NUM_BATCHES, NUM_EPOCHS, Estimating, Noisy, NoisyStream, trained

pytestmark = [
    *QUIET,
    # What Lightning says of a folder that it has saved in before.
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning"),
    # With OnExceptionCheckpoint it looks for a checkpoint by itself.
    pytest.mark.filterwarnings("ignore:.*fit.ckpt_path=None.* was called without a model:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*there is no last checkpoint available:UserWarning"),
]
MODELS = pytest.mark.parametrize("model", [Recorder, Estimating])
KINDS = pytest.mark.parametrize("kind", ["sized", "a stream"])
WHOLE = NUM_EPOCHS * NUM_BATCHES


def new_module(kind: str) -> StageDataModule:
    dataset, lanes = (Noisy(), None) if kind == "sized" else (NoisyStream(), 1)
    return StageDataModule(dataset, Noisy(8), batch_size=4, num_workers=2, lanes=lanes, seed=4)


def saving(folder: Path, **options: Any) -> ModelCheckpoint:
    return ModelCheckpoint(folder, filename="{step}", auto_insert_metric_name=False, **options)


VARIANTS: dict[str, dict[str, Any]] = {
    "every four steps": {"every_n_train_steps": 4, "save_top_k": -1},
    "every epoch": {"save_top_k": -1, "save_on_train_epoch_end": True},
    "every validation": {"save_top_k": -1, "save_on_train_epoch_end": False},
}
EXPECTED = {"every four steps": [4, 8, 12, 16], "every epoch": [6, 12, 18], "every validation": [3, 6, 9, 12, 15, 18]}


@MODELS
@KINDS
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_model_checkpoint_saves_is_gone_on_with(
    variant: str, kind: str, model: type[Recorder], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"val_check_interval": 0.5 if kind == "sized" else 3}
    checkpoint = saving(tmp_path, **VARIANTS[variant])
    whole, _ = trained(new_module(kind), model(), callbacks=[checkpoint], enable_checkpointing=True, **options)
    assert len(whole) == WHOLE
    paths = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem))
    assert [int(path.stem) for path in paths] == EXPECTED[variant]
    wrong = {}
    for path in paths:
        same = saving(tmp_path, **VARIANTS[variant])
        rest, _ = trained(new_module(kind), model(), path, callbacks=[same], enable_checkpointing=True, **options)
        if rest != whole[int(path.stem) :]:
            wrong[path.stem] = rest
    assert not wrong


class Stopping(Callback):
    """A run that somebody ends in the midst."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.at:
            raise RuntimeError("enough")


@MODELS
@KINDS
def test_the_last_one_is_found_by_its_name(kind: str, model: type[Recorder], tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        last = saving(tmp_path, every_n_train_steps=4, save_last=True)
        return {"callbacks": [last], "enable_checkpointing": True}

    whole, _ = trained(new_module(kind), model())
    stopped = options()
    stopped["callbacks"].append(Stopping(9))
    with pytest.raises(RuntimeError, match="enough"):
        trained(new_module(kind), model(), **stopped)
    last: Any = "last"
    rest, _ = trained(new_module(kind), model(), last, **options())
    assert rest == whole[8:]


class Failing(Recorder):
    """Fails once, in its batch of that number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if len(self.seen_in("fit")) == self.at:
            raise RuntimeError("broken")
        return loss


@MODELS
@KINDS
@pytest.mark.parametrize("at", [2, NUM_BATCHES])
def test_after_an_error_the_run_goes_on_behind_its_batch(
    at: int, kind: str, model: type[Recorder], tmp_path: Path
) -> None:
    whole, _ = trained(new_module(kind), model())
    with pytest.raises(RuntimeError, match="broken"):
        trained(new_module(kind), Failing(at), callbacks=[OnExceptionCheckpoint(tmp_path)], enable_checkpointing=True)
    rest, _ = trained(new_module(kind), model(), tmp_path / "on_exception.ckpt")
    assert rest == whole[at:]
