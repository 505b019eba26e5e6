"""Two ranks: a script that trains with gloo on the CPU; Lightning starts it once more, for the second rank.

In: a folder. Out: rank_0.json and rank_1.json there, with what each rank saw, by the names of the functions below.
"""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed
from lightning.fabric import Fabric
from lightning.pytorch import LightningDataModule
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

from frameworks.fed import Augmented, Named, Plain, Stream, arguments_of
from frameworks.training import STAGES, Recorder, loader_used, new_trainer, run
from torchstage import StageLoader

LENGTH = 13  # odd: the ranks share out one sample twice
SEED = 5
TWO_RANKS: dict[str, Any] = {"strategy": "ddp", "devices": 2}
BOTH = {"DataLoader": DataLoader, "StageLoader": StageLoader}
PLACES = ("outside", "inside")


def seen_by(loader_class: Any, stage: str, where: str = "outside", **arguments: Any) -> list[Any]:
    """The batches of a stage, as plain lists, and those of a second epoch for fit."""
    given = {"dataset": Augmented(LENGTH), "batch_size": 2, "num_workers": 0 if loader_class is DataLoader else 2}
    model, _ = run(stage, lambda: loader_class(**{**given, **arguments}), where, **TWO_RANKS)
    return [batch.tolist() for batch in model.seen_in(stage)]


def lost(loader: Any, loader_class: Any, arguments: dict[str, Any]) -> list[str]:
    """What of the arguments the loader does not have any more."""
    names = [name for name, value in arguments.items() if getattr(loader, name) != value]
    return names if type(loader) is loader_class else [*names, "class"]


class Evens(Sampler[int]):
    """A sampler of the user's."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(0, LENGTH, 2))

    def __len__(self) -> int:
        return (LENGTH + 1) // 2


class Batches(BatchSampler):
    """A batch sampler of the user's."""


class Shared(LightningDataModule):
    """Makes its loaders in hooks, as most projects do."""

    def __init__(self, loader_class: Any, **arguments: Any) -> None:
        super().__init__()
        self.make: Callable[[Dataset[Any]], Any] = lambda dataset: loader_class(dataset, **arguments)

    def train_dataloader(self) -> Any:
        return self.make(Augmented(LENGTH))

    def val_dataloader(self) -> Any:
        return self.make(Augmented(LENGTH))


# What is looked at --------------------------------------------------------------------------------------------


def stages() -> Any:
    return {f"{name} {stage}": seen_by(loader, stage) for name, loader in BOTH.items() for stage in STAGES}


def shuffled() -> Any:
    """By place. Lightning shuffles whatever it trains with; that the loader was to do so must not be in its way."""
    return {where: seen_by(StageLoader, "fit", where, shuffle=True) for where in PLACES}


def samplers() -> Any:
    return {f"{name} fit": seen_by(loader, "fit", sampler=Evens()) for name, loader in BOTH.items()}


def batch_samplers() -> Any:
    def seen(loader_class: Any, stage: str, where: str) -> list[Any]:
        batches = Batches(RandomSampler(Augmented(LENGTH)), 2, False)
        return seen_by(loader_class, stage, where, batch_size=1, batch_sampler=batches)

    return {
        f"{name} {stage}": seen(loader, stage, where)
        for name, loader in BOTH.items()
        for stage, where in (("fit", "outside"), ("predict", "inside"))
    }


def iterables() -> Any:
    return seen_by(StageLoader, "fit", dataset=Stream(6))


def data_modules() -> Any:
    seen = {}
    for name, loader_class in BOTH.items():
        model = Recorder()
        module = Shared(loader_class, batch_size=2, num_workers=0 if loader_class is DataLoader else 2)
        new_trainer(**TWO_RANKS, num_sanity_val_steps=1).fit(model, module)
        seen[name] = [(stage, epoch, batch.tolist()) for stage, epoch, batch in model.seen]
    return seen


def not_shared_out() -> Any:
    model = Recorder()
    trainer = new_trainer(**TWO_RANKS, use_distributed_sampler=False, max_epochs=1)
    trainer.fit(model, StageLoader(Augmented(4), batch_size=2, num_workers=2))
    return [batch.tolist() for batch in model.seen_in("fit")]


def arguments() -> Any:
    """By class, place and stage: what was lost, whether it was rebuilt, the number of ranks, and the rank."""
    ways = [(StageLoader, where, stage) for where in PLACES for stage in ("fit", "predict")]
    ways += [(Plain, "outside", "fit"), (Named, "inside", "fit")]
    return {f"{way[0].__name__} {way[1]} {way[2]}": outcome_of(*way) for way in ways}


def outcome_of(loader_class: type[StageLoader[Any]], where: str, stage: str) -> Any:
    given, made = arguments_of(loader_class), []

    def make() -> Any:
        made.append(loader_class(Augmented(LENGTH), **given))
        return made[-1]

    _, trainer = run(stage, make, where, **TWO_RANKS)
    loader = loader_used(trainer, stage)
    if stage == "predict":  # its batch sampler stands for them
        del given["batch_size"], given["drop_last"]
    sampler = loader.batch_sampler.sampler
    loader.close()
    return lost(loader, loader_class, given), loader is not made[-1], sampler.num_replicas, sampler.rank


def fabric() -> Any:
    """Fabric, with loaders made before it is launched and after; the batches of two epochs."""
    found: dict[str, Any] = {}
    new = Fabric(accelerator="cpu", **TWO_RANKS)
    given = {**arguments_of(StageLoader), "multiprocessing_context": "spawn"}

    def outcome(loader: Any) -> Any:
        ours: Any = new.setup_dataloaders(loader)
        ours = ours._dataloader
        names = lost(ours, StageLoader, {**given, "multiprocessing_context": loader.multiprocessing_context})
        return names, ours is not loader, ours.sampler.num_replicas, ours.sampler.rank

    before = StageLoader(Augmented(LENGTH), **given)

    def launched(_: Any) -> None:
        found["outside"] = outcome(before)
        found["inside"] = outcome(StageLoader(Augmented(LENGTH), **given))
        for name, loader_class in BOTH.items():
            num_workers = 0 if loader_class is DataLoader else 2
            loader: Any = loader_class(Augmented(LENGTH), batch_size=2, shuffle=True, num_workers=num_workers)
            shared: Any = new.setup_dataloaders(loader)
            found[name] = [[batch.tolist() for batch in shared] for _ in range(2)]

    new.launch(launched)
    return found


LOOKS = (stages, shuffled, samplers, batch_samplers, iterables, data_modules, not_shared_out, arguments, fabric)


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    found = {}
    for look in LOOKS:
        torch.manual_seed(SEED)  # the order of a RandomSampler of the user's, alike on both ranks
        found[look.__name__] = look()
    rank = torch.distributed.get_rank()
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
