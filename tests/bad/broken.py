"""Broken: datasets whose samples fail in ways that real ones do. Processes import this module.

Guarantees: none of them harms the process that made it.
"""

import ctypes
import os
import threading
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from torchstage import BadSample, SkipSample

LENGTH = 64
ROOM_BYTES = 64 << 20  # that a process may take beside what it has
TOO_MUCH_BYTES = 1 << 30


class Killing(Dataset[int]):
    """Some of its samples end the process that reads them: {index: way}."""

    def __init__(self, ways: dict[int, str], length: int = LENGTH) -> None:
        self.samples = [(f"photo-{number}.jpg", 0) for number in range(length)]
        self.ways = ways
        self.home = os.getpid()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        if index in self.ways:
            assert os.getpid() != self.home, "this is for other processes"
            fail_by(self.ways[index])
        return index


class KillingAtOnce(Killing):
    """Gives all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class KillingHereAndThere(Dataset[int]):
    """The first process dies at index 5, the second one at index 6, and no other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        first, second = self.folder / "first", self.folder / "second"
        if index == 5 and not first.exists():
            first.touch()
            os.abort()
        if index == 6 and first.exists() and not second.exists():
            second.touch()
            os.abort()
        return index


def fail_by(way: str) -> None:
    if way == "abort":
        os.abort()
    limit_memory()
    if way == "memory in C":  # which does not look whether it got any
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        ctypes.memset(libc.malloc(TOO_MUCH_BYTES), 1, TOO_MUCH_BYTES)
    elif way == "memory in Python":
        bytearray(TOO_MUCH_BYTES)
    raise AssertionError(f"this process outlived {way!r}")


def limit_memory() -> None:
    import resource

    num_pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (num_pages * resource.getpagesize() + ROOM_BYTES, hard))


def killing_twenty(value: int) -> int:
    if value == 20:
        os.abort()
    return value


def killing_all(value: int) -> int:
    os.abort()


def killing_collate(samples: list[Any]) -> Any:
    if 5 in samples:
        os.abort()
    return samples


GOOD, ERROR, FILTERED = 0, 1, 2  # moods


class Moody(Dataset[int]):
    """Which samples fail, and how, is the caller's to say."""

    def __init__(self, moods: list[int]) -> None:
        self.moods = moods

    def __len__(self) -> int:
        return len(self.moods)

    def __getitem__(self, index: int) -> int:
        if self.moods[index] == ERROR:
            raise ValueError(str(index))
        if self.moods[index] == FILTERED:
            raise SkipSample(str(index))
        return index


class MoodyAtOnce(Moody):
    """Gives all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


def below_zero(bad: BadSample) -> int:
    """For ``on_error``."""
    return -1 - bad.index


class HTTPLikeError(Exception):
    """Its constructor wants three arguments."""

    def __init__(self, url: str, code: int, message: str) -> None:
        super().__init__(message)
        self.url, self.code = url, code


class LockedError(Exception):
    """Cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Unreachable(Dataset[int]):
    """Its third sample cannot be had."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2:
            fail_as(self.way)
        return index


def fail_as(way: str) -> None:
    if way == "a lock":
        raise LockedError("locked: 2")
    if way == "arguments":
        raise HTTPLikeError("http://example/2", 404, "gone")
    try:
        raise OSError("the disk")
    except OSError as cause:
        raise HTTPLikeError("http://example/2", 404, "gone") from cause


def failing_http(value: int) -> int:
    if value == 2:
        raise HTTPLikeError("http://example/2", 404, "gone")
    return value


class Uneven(Dataset[Any]):
    """One sample of its batch cannot be stacked with the others."""

    def __init__(self, odd: str) -> None:
        self.samples = [(f"{number}.txt", 0) for number in range(64)]
        self.odd = odd

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        usual = {"seq": torch.zeros(9), "label": index}
        if index != 37:
            return usual
        odd: dict[str, Any] = {"shape": {"seq": torch.zeros(5)}, "no key": {}, "None": {"seq": None}}
        return {**odd[self.odd], "label": index}
