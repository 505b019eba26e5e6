"""Two trainers: a script for torchrun's environment: what two ranks train with, whole, and cut and gone on with.

In: a folder. Out: rank_0.json and rank_1.json there.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from torchstage.integrations.transformers import StageTrainerMixin

LENGTH, BATCH_SIZE = 22, 4


class Noisy(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"sample": torch.tensor([float(index), float(torch.randint(1000, ()))])}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(sample.tolist())
        return {"loss": self.weight**2}


class StageTrainer(StageTrainerMixin, Trainer):
    pass


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def trained(folder: Path, cut: int | None = None, resume: bool = False) -> list[Any]:
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH_SIZE,
        num_train_epochs=2,
        dataloader_num_workers=2,
        dataloader_pin_memory=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        seed=5,
    )
    model = Model()
    trainer = StageTrainer(model=model, args=arguments, train_dataset=Noisy())
    if cut is not None:
        trainer.add_callback(StopAt(cut))
    trainer.train(resume_from_checkpoint=resume or None)
    return model.seen


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    seen = {
        "whole": trained(folder / "whole"),
        "first": trained(folder / "cut", cut=4),  # in the second epoch: each has three batches
        "resumed": trained(folder / "cut", resume=True),
    }
    rank = torch.distributed.get_rank()
    (folder / f"rank_{rank}.json").write_text(json.dumps({"seen": seen}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
