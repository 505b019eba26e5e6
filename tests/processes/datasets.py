"""Datasets and functions of the tests of processes, which import them by name."""

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler, get_worker_info


class Numbers(Dataset[Any]):
    """Each sample is its index."""

    def __init__(self, num_samples: int = 20) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        return index


class OnlyHere(Numbers):
    """Can be pickled, and not made again."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise LookupError("no such place")


class Drawing(Numbers):
    """Each sample draws from everything that can be drawn from."""

    def __init__(self, num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.generator = np.random.default_rng(3)

    def __getitem__(self, index: int) -> Any:
        return {
            "index": index,
            "torch": torch.rand(2),
            "python": random.random(),
            "numpy": np.random.rand(),
            "own": self.generator.normal(),
        }


class AtOnce(Drawing):
    """Gives the samples of a batch all at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        shift = torch.rand(())
        return [{**self[index], "shift": shift} for index in indices]


class Failing(Numbers):
    """Some samples fail."""

    def __init__(self, bad: tuple[int, ...], error: BaseException, num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.bad, self.error = bad, error

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.error
        return index


class FailingOddly(Numbers):
    """One sample fails with what cannot be unpickled."""

    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise OddError("it", 5)
        return index


class OddError(Exception):
    """Takes other arguments than it has."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(f"{name} is odd")
        self.name, self.number = name, number


class FailingWithItsOwn(Numbers):
    """One sample fails with an error whose class is made there."""

    def __getitem__(self, index: int) -> Any:
        class OwnError(Exception):
            pass

        if index == 9:
            raise OwnError("of its own")
        return index


class Locked(Numbers):
    """Each sample is something that stays in its process."""

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "lock": threading.Lock()}


class Whereabouts(Numbers):
    """Each sample tells where it was made."""

    def __init__(self, num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.word = 0

    def __getitem__(self, index: int) -> Any:
        info: Any = get_worker_info()
        worker = -1 if info is None else info.id
        method = 0 if info is None else {"thread": 1, "multiprocessing": 2}.get(getattr(info, "worker_method", ""), 3)
        return torch.tensor([index, os.getpid(), worker, method, self.word])


class Deadly(Numbers):
    """Some samples end the process that makes them, the first so many times."""

    def __init__(self, folder: Path, bad: dict[int, int], num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.folder, self.bad = folder, bad

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            times = self.folder / str(index)
            num_died = len(times.read_text()) if times.exists() else 0
            if num_died < self.bad[index]:
                times.write_text("x" * (num_died + 1))
                os.abort()
        return index


class Repeating(Sampler[int]):
    """The same indices more than once."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 3, 3, 0, 1, 5, 3])

    def __len__(self) -> int:
        return 8


def with_draws(sample: Any) -> Any:
    return {**sample, "stage": torch.rand(()).item(), "of_python": random.random()}


def doubled(sample: Any) -> Any:
    return sample * 2


def jittered_batch(samples: list[Any]) -> Any:
    batch: Any = torch.utils.data.default_collate(samples)
    batch["of_batch"] = torch.rand(2)
    return batch


def on_a_device_that_is_not_there(index: int) -> torch.Tensor:
    return torch.empty(2, device="cuda")


def pid_of(sample: Any) -> Any:
    return os.getpid()


class Changing(Drawing):
    """Each sample leaves something behind, which the next ones do not show."""

    def __init__(self, num_samples: int = 20) -> None:
        super().__init__(num_samples)
        self.seen: dict[int, Any] = {}
        self.row = np.zeros(8)

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        self.row[:] = index
        self.seen[index] = index
        return {**sample, "row": torch.from_numpy(self.row.copy())}


class WithWords(Drawing):
    """Samples with parts of many kinds and sizes, some large enough for memory of their own."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        image = torch.randint(0, 255, (3, 64, 64), dtype=torch.uint8)
        return {**sample, "image": image, "word": "w" * (index % 4), "half": torch.rand(9000).half()}
