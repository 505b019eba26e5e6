"""Lightning ranks: a script that trains with gloo on two ranks; Lightning starts it once more, for the second rank.

In: a folder. Out: rank_0.json and rank_1.json there, with the indices that each rank was given, by epoch and batch.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

LENGTH, BATCH_SIZE, NUM_EPOCHS, SEED = 15, 2, 2, 5  # the last global batch is partial: three samples of four


class Recorder(LightningModule):
    """Learns one number, and notes its batches by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[list[int]]] = [[] for _ in range(NUM_EPOCHS)]

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.seen[self.current_epoch].append(batch.tolist())
        return self.weight**2

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trained(loader_class: Any, **arguments: Any) -> Any:
    """The batches of this rank. The sampler is made before Lightning starts the ranks, where that is the first run."""
    sampler = ElasticSampler(range(LENGTH), seed=SEED)
    loader = loader_class(range(LENGTH), batch_size=BATCH_SIZE, sampler=sampler, **arguments)
    model = Recorder()
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = dict.fromkeys(quiet, False)
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=NUM_EPOCHS, **options)
    trainer.fit(model, loader)
    used: Any = trainer.train_dataloader
    return {"seen": model.seen, "keeps its sampler": used.sampler is sampler}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    found = {"DataLoader": trained(DataLoader), "StageLoader": trained(StageLoader, num_workers=2)}
    (folder / f"rank_{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    torch.distributed.barrier()  # who started the script may end both ranks when the first has ended


if __name__ == "__main__":
    main(Path(sys.argv[1]))
