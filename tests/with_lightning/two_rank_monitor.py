"""Two ranks and a monitor: a script that trains with gloo; Lightning starts it once more, for the second rank.

In: a folder. Out: metrics.csv there, by the first rank; the second rank's data is the slow one.
"""

import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed
from frameworks.training import Recorder, new_trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import Dataset

from torchstage.lightning import StageDataModule, StageStatsMonitor

SLOW_RANK = 1


class SlowOnOneRank(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.distributed.get_rank() == SLOW_RANK:
            time.sleep(0.05)
        return torch.tensor([index])


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    module = StageDataModule(SlowOnOneRank(), batch_size=2, num_workers=1, isolation="shared")
    trainer = new_trainer(
        logger=CSVLogger(folder, name="", version=""),
        callbacks=[StageStatsMonitor(slowest_rank=True)],
        log_every_n_steps=2,
        strategy="ddp",
        devices=2,
    )
    trainer.fit(Recorder(), datamodule=module)
    torch.distributed.barrier()  # who started the script may end both ranks when the first has ended


if __name__ == "__main__":
    main(Path(sys.argv[1]))
