"""Interrupted: a script that trains until Ctrl-C comes, in its eighth batch. Another thread of its own sends it.

In: a folder. Out: on_exception.ckpt there, and a line with the threads of the loader and the child processes that were
left when Lightning let the caller go.
"""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from frameworks.training import Recorder, new_trainer
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from torchstage.lightning import StageDataModule
from with_lightning.data import Noisy

AT = 8


def new_module() -> StageDataModule:
    return StageDataModule(Noisy(), batch_size=4, num_workers=2, seed=4)


class Interrupted(Recorder):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        if len(self.seen) == AT:
            sender = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
            sender.start()
            sender.join()
            threading.Event().wait(30)  # the interrupt comes here
        return loss


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    trainer = new_trainer(max_epochs=3, callbacks=[OnExceptionCheckpoint(folder)], enable_checkpointing=True)
    try:
        trainer.fit(Interrupted(), datamodule=new_module())
    finally:
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("torchstage-")]
        print("left:", threads, multiprocessing.active_children(), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
