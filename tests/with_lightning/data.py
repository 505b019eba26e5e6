"""Data: what the tests of the DataModule train with, and what a trainer was given, as plain values.

Of this module, so that other processes can import it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from frameworks.training import Recorder, new_trainer
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

LENGTH, BATCH_SIZE, NUM_BATCHES, NUM_EPOCHS = 22, 4, 6, 3  # the last batch of an epoch has two samples


class Noisy(Dataset[torch.Tensor]):
    """The item is its index, and a draw."""

    def __init__(self, length: int = LENGTH, first: int = 0) -> None:
        self.length = length
        self.first = first

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.first + index, int(torch.randint(1000, ()))])


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index])


class Stream(IterableDataset[torch.Tensor]):
    """Numbers, of which each rank has every other, and each reader its part; it can be told where to go on."""

    def __init__(self, rank: int = 0, num_ranks: int = 1) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.start = self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        number, num_readers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = range(self.rank, LENGTH * self.num_ranks, self.num_ranks)[number::num_readers]
        self.at, self.start = self.start, 0
        while self.at < len(mine):
            self.at += 1
            yield torch.tensor([mine[self.at - 1]])

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class NoisyStream(Stream):
    """Each number with a draw."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in super().__iter__():
            yield torch.tensor([int(number), int(torch.randint(1000, ()))])


class Batches:
    """A batch sampler without a length."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(5)).tolist()
        for at in range(0, LENGTH, BATCH_SIZE):
            yield order[at : at + BATCH_SIZE]


class Plain(LightningDataModule):
    """As most projects have it."""

    def __init__(self, train: Any, evaluation: Any = None) -> None:
        super().__init__()
        self.train = train
        self.evaluation = evaluation

    def train_dataloader(self) -> Any:
        return self.train()

    def val_dataloader(self) -> Any:
        return DataLoader(Noisy(8), batch_size=4) if self.evaluation is None else self.evaluation()


class Estimating(Recorder):
    """Has Lightning make the loaders before it restores anything."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.num_steps = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


class SaveAt(Checkpoint):
    """Saves a checkpoint after each batch that is wanted, and at the end of each epoch."""

    def __init__(self, folder: Path, cuts: tuple[int, ...]) -> None:
        self.folder, self.cuts, self.num = folder, cuts, 0

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.num += 1
        if self.num in self.cuts:
            trainer.save_checkpoint(self.folder / f"{self.num}.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"epoch {self.num}.ckpt")


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: plain(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [plain(value) for value in batch]
    return None if batch is None else batch.tolist()


def trained(
    datamodule: LightningDataModule, model: Recorder | None = None, ckpt_path: Path | None = None, **options: Any
) -> tuple[list[tuple[int, Any]], Trainer]:
    """What training was given, each batch with its epoch; and the trainer."""
    model = model or Recorder()
    trainer = new_trainer(**{"max_epochs": NUM_EPOCHS, **options})
    trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=ckpt_path and True)
    return [(epoch, plain(batch)) for stage, epoch, batch in model.seen if stage == "fit"], trainer
