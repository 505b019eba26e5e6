"""Training: a Lightning module that notes what it is given, and trainers that write and print nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer

# What Lightning says of any loader, DataLoader too.
QUIET = (
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*sampler has shuffling enabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),  # its use of torch 2.14
)
STAGES = ("fit", "validate", "test", "predict")
KEPT_AS = {"fit": "train_dataloader", "validate": "val_dataloaders", "test": "test_dataloaders"}


class Recorder(LightningModule):
    """Learns one number. ``seen``: of each batch the stage, the epoch and the batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[str, int, Any]] = []

    def _note(self, stage: str, batch: Any) -> torch.Tensor:
        self.seen.append((stage, self.trainer.current_epoch, batch))
        return self.weight**2

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._note("fit", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._note("validate", batch)

    def test_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self._note("test", batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self._note("predict", batch)
        return batch

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def seen_in(self, stage: str, epoch: int | None = None) -> list[Any]:
        """The batches of a stage, of all epochs or of one."""
        return [batch for name, at, batch in self.seen if name == stage and epoch in (None, at)]


class Hooked(Recorder):
    """The same, with hooks that make the loader: Lightning then knows with what arguments it was made."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def train_dataloader(self) -> Any:
        return self.make()

    def val_dataloader(self) -> Any:
        return self.make()

    def test_dataloader(self) -> Any:
        return self.make()

    def predict_dataloader(self) -> Any:
        return self.make()


def new_trainer(**options: Any) -> Trainer:
    """A trainer for two epochs on the CPU."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    return Trainer(**{**quiet, **options})


def run(stage: str, make: Callable[[], Any], where: str = "outside", **options: Any) -> tuple[Recorder, Trainer]:
    """Run a stage with the loader that ``make`` makes, ``outside`` or ``inside`` a hook."""
    trainer = new_trainer(**options)
    if where == "inside":
        model: Recorder = Hooked(make)
        getattr(trainer, stage)(model)
    else:
        model = Recorder()
        getattr(trainer, stage)(model, make())
    return model, trainer


def loader_used(trainer: Trainer, stage: str) -> Any:
    """The loader that the trainer took its batches from."""
    return getattr(trainer, KEPT_AS.get(stage, "predict_dataloaders"))
