"""Data: what the loaders of these tests are given. Processes import this module: nothing here may be a test's own."""

import ctypes
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

LENGTH = 64
PARSE_STEPS = 20_000  # about a millisecond


class Made(Dataset[Any]):
    """Each sample is what a function of this module makes of its index."""

    def __init__(self, function: Callable[[int], Any], length: int = LENGTH) -> None:
        self.function = function
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def with_pid(index: int) -> tuple[int, int]:
    return index, os.getpid()


def slowly(index: int) -> int:
    time.sleep(0.005)
    return index


def big(index: int) -> torch.Tensor:
    """12.5 MB: four make a batch of 50."""
    return torch.full((3_125_000,), float(index))


def filtered_picture(index: int) -> float:
    """Uses the thread pools of torch, and of OpenCV where it is installed."""
    value = float(torch.ones(256, 256).mul(index).mm(torch.eye(256)).mean())
    try:
        import cv2
    except ModuleNotFoundError:
        return value
    warped = cv2.warpAffine(np.full((256, 256), index, np.uint8), np.float32([[1, 0, 0], [0, 1, 0]]), (256, 256))
    return float(warped.mean())


class BlockedFromFour(Dataset[int]):
    """As a socket that nobody answers, in every process but the one that made it: nobody could end that wait."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            threading.Event().wait(0.05 if os.getpid() == self.home else None)
        return index


def num_threads_of_torch(index: int) -> int:
    torch.ones(64, 64).mm(torch.ones(64, 64))
    return torch.get_num_threads()


# What kills a process ------------------------------------------------------------------------------------------


def dies_of(kind: str) -> None:
    if kind == "abort":
        os.abort()
    elif kind == "segfault":
        ctypes.string_at(0)
    elif kind == "out of memory":  # as the kernel does it
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "exit":
        os._exit(3)


class Deadly(Dataset[int]):
    """Kills its process at some indices; writes down each time that it was asked for one."""

    def __init__(self, deaths: dict[int, str], folder: Path, length: int = LENGTH) -> None:
        self.deaths = deaths
        self.folder = folder
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        with (self.folder / f"{index}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        if index in self.deaths:
            dies_of(self.deaths[index])
        return index

    def pids_of(self, index: int) -> list[str]:
        """Of the processes that were asked for this sample, in turn."""
        path = self.folder / f"{index}"
        return path.read_text().split() if path.exists() else []


# Handles -------------------------------------------------------------------------------------------------------


def write_rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["rows"] = np.repeat(np.arange(float(LENGTH)), 1000).reshape(LENGTH, 1000)


class Rows(Dataset[float]):
    """UR-068: a file of HDF5, opened in __init__. ``open_again`` opens one for this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = h5py.File(path)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> float:
        return float(self.file["rows"][index].sum())

    def open_again(self) -> None:
        self.file = h5py.File(self.path)


class RowsOpenedAgain(Rows):
    """The way out that the error tells: it travels without its file, which each process opens at its first use."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}

    def __getitem__(self, index: int) -> float:
        if self.file is None:
            self.open_again()
        return super().__getitem__(index)


class RowsOfAnInit(RowsOpenedAgain):
    """The other way out: worker_init_fn opens it."""

    __getitem__ = Rows.__getitem__


def open_rows_again(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.open_again()


# Python code ---------------------------------------------------------------------------------------------------


def nested(index: int) -> dict[str, Any]:
    return {"index": index, "boxes": [{"corner": (k, index), "name": f"{index}-{k}"} for k in range(3000)]}


class Pickled(Dataset[int]):
    """UR-020: files of nested dicts, which hold the GIL while they are read."""

    def __init__(self, folder: Path, length: int = LENGTH) -> None:
        self.paths = [folder / f"{number}.pickle" for number in range(length)]
        for number, path in enumerate(self.paths):
            path.write_bytes(pickle.dumps(nested(number)))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        sample = pickle.loads(self.paths[index].read_bytes())
        return sample["boxes"][-1]["corner"][1]


class PickledAndHeld(Pickled):
    """With something that no other process can be given."""

    def __init__(self, folder: Path, length: int = LENGTH) -> None:
        super().__init__(folder, length)
        self.lock = threading.Lock()


def waits_for_the_network(index: int) -> tuple[bytes, int]:
    time.sleep(0.002)
    return b"%d" % index, os.getpid()


def parsed(record: tuple[bytes, int]) -> tuple[int, int, int]:
    """UR-022: in Python."""
    data, pid = record
    number = 0
    for _ in range(PARSE_STEPS):
        number = (number * 31 + int(data)) % 1_000_003
    return number, pid, os.getpid()


def decoded(sample: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Without the GIL."""
    number, *pids = sample
    torch.ones(64, 64).mm(torch.ones(64, 64))
    return number, *pids, os.getpid()


# The device ----------------------------------------------------------------------------------------------------


class OnDevice(Dataset[torch.Tensor]):
    """UR-029: computed on the device where no other process could."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index), device="cuda").mul(2)
