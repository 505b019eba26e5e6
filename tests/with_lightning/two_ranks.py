"""Two ranks: a script that trains with gloo on the CPU; Lightning starts it once more, for the second rank.

In: a folder, with checkpoints that one rank has saved. Out: rank_0.json and rank_1.json there, with what each rank saw;
and checkpoints.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed
from frameworks.training import Recorder
from torch.utils.data import DataLoader

from torchstage.lightning import StageDataModule
from with_lightning.data import Estimating, Noisy, Plain, SaveAt, Stream, trained

CUT = 4  # in the second of three epochs of three batches
TWO: dict[str, Any] = {"strategy": "ddp", "devices": 2}


def module_of_maps() -> StageDataModule:
    return StageDataModule(Noisy(), batch_size=4, num_workers=2)


def module_in_order() -> StageDataModule:
    """Whose order Lightning would shuffle, as it does whatever it trains with on several ranks."""
    return StageDataModule(Noisy(), batch_size=4, num_workers=2, shuffle=False)


def module_of_loaders() -> StageDataModule:
    """Whose order Lightning would share out among the ranks."""
    plain = Plain(lambda: DataLoader(Noisy(), batch_size=4, shuffle=True))
    return StageDataModule.wrap(plain, num_workers=2)


class ModuleOfStreams(StageDataModule):
    """Each rank has numbers of its own, and its own place in them."""

    def setup(self, stage: str) -> None:
        self.train_dataset = Stream(self.trainer.global_rank, self.trainer.world_size)


def module_of_streams() -> StageDataModule:
    return ModuleOfStreams(batch_size=4, lanes=1, num_workers=2)


MODULES = {
    "maps": module_of_maps,
    "in order": module_in_order,
    "loaders": module_of_loaders,
    "streams": module_of_streams,
}


def resumed(name: str, folder: Path) -> Any:
    make = MODULES[name]
    saving = {"callbacks": [SaveAt(folder / name, (CUT,))], "enable_checkpointing": True}
    whole, _ = trained(make(), **TWO, **saving)
    rest = {}
    for model in (Recorder, Estimating):
        for cut in (f"{CUT}", "epoch 3" if name != "streams" else "epoch 6"):
            rest[f"{model.__name__} {cut}"], _ = trained(make(), model(), folder / name / f"{cut}.ckpt", **TWO)
    return {"whole": whole, "rest": rest}


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    found: dict[str, Any] = {name: resumed(name, folder) for name in MODULES}
    found["from one rank"], _ = trained(module_of_maps(), None, folder / "one rank" / "8.ckpt", **TWO)
    found["from one rank, at an epoch's end"], _ = trained(
        module_of_maps(), None, folder / "one rank" / "6.ckpt", **TWO
    )
    (folder / f"rank_{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
    torch.distributed.barrier()  # who started the script may end both ranks when the first has ended


if __name__ == "__main__":
    main(Path(sys.argv[1]))
