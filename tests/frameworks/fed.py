"""Fed: what the frameworks are given: datasets, loader classes, and a value other than the default for each argument.

Of this module, so that other processes can import them.
"""

import inspect
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from torchstage import Stage, StageLoader


class Augmented(Dataset):
    """The item is its index and a draw from each of the three generators: torch's, Python's, numpy's."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), *draws()], dtype=torch.float64)


class Stream(IterableDataset):
    """Numbers, split among the workers, each with a draw from each of the three generators."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        begin, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(begin, self.length, step):
            yield torch.tensor([float(number), *draws()], dtype=torch.float64)


def draws() -> tuple[float, float, float]:
    return torch.rand((), dtype=torch.float64).item(), random.random(), np.random.rand()


def numbers_of(batch: torch.Tensor) -> list[int]:
    """The indices or numbers of a batch, without the draws."""
    return [int(number) for number in batch[:, 0]]


# Loaders ----------------------------------------------------------------------------------------------------


class Named(StageLoader):
    """A user's loader, with an argument of its own, kept under its name."""

    def __init__(self, dataset: Any, *, name: str = "", **others: Any) -> None:
        super().__init__(dataset, **others)
        self.name = name


class Plain(StageLoader):
    """A user's loader that changes nothing."""


CLASSES = (StageLoader, Plain, Named)


def collate(samples: Any) -> Any:
    return torch.stack(samples)


def init_worker(number: int) -> None:
    """Nothing to do."""


# How an order is chosen: each has tests of its own. A context means processes: Fabric's test looks at it.
ORDER = {"dataset", "sampler", "batch_sampler", "shuffle", "multiprocessing_context"}

EVERY: dict[str, Any] = {
    "batch_size": 3,
    "num_workers": 2,
    "collate_fn": collate,
    "pin_memory": True,
    "drop_last": True,
    "timeout": 60.0,
    "worker_init_fn": init_worker,
    "generator": torch.Generator(),
    "prefetch_factor": 3,
    "persistent_workers": True,
    "pin_memory_device": "cpu",
    "in_order": False,
    "stages": (Stage(torch.clone),),
    "worker_method": "multiprocessing",
    "lanes": 3,
    "device": "cpu",
    "prefetch_bytes": 1 << 20,
    "isolation": "serial",
    "seed": 11,
    "sample_rng": False,
    "prefetch_epochs": True,
    "snapshot_every_n_steps": 4,
    "on_error": "replace",
    "max_bad_samples": 7,
}

OF_ITERABLE = {**EVERY, "on_error": "raise"}  # worker processes that are torch's own refuse all others


def arguments_of(loader_class: type[StageLoader]) -> dict[str, Any]:
    """EVERY, and the arguments of the class itself."""
    return {**EVERY, "name": "mine"} if loader_class is Named else dict(EVERY)


def assert_kept(loader: Any, arguments: dict[str, Any], *but: str) -> None:
    """The loader has these arguments, also those that DataLoader knows nothing of."""
    got = {name: getattr(loader, name) for name in arguments if name not in but}
    assert got == {name: value for name, value in arguments.items() if name not in but}


def parameters() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(StageLoader).parameters)
