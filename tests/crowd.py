"""Crowd: who is inside a dataset at once; and datasets that hold what cannot be copied for each thread.

A dataset's own counters would be each thread's own. What is told here goes through queues, which all threads share.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, Self

from torch.utils.data import Dataset

PATIENCE_SECONDS = 20.0

RECORD_BYTES = 8
NUM_RECORDS = 64
ALL = list(range(NUM_RECORDS))


class Crowd:
    """Who was inside, in the order in which they came and went. Nothing in it changes but queues."""

    def __init__(self) -> None:
        self._steps: SimpleQueue[tuple[int, str]] = SimpleQueue()  # +1: somebody came in, -1: went out
        self._arrivals: SimpleQueue[None] = SimpleQueue()
        self._departures: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> Self:
        self._steps.put((1, threading.current_thread().name))
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.put((-1, threading.current_thread().name))

    def meet(self) -> None:
        """Wait for another thread to call this too; once two have met, nobody waits any more."""
        self._arrivals.put(None)
        if self._arrivals.qsize() >= 2:
            self._departures.put(None)
        self._departures.get(timeout=PATIENCE_SECONDS)  # queue.Empty: no other thread came
        self._departures.put(None)

    def told(self) -> tuple[int, set[str]]:
        """How many were inside at most, and who was, since this was asked last."""
        num_inside = most = 0
        names: set[str] = set()
        while not self._steps.empty():
            step, name = self._steps.get()
            num_inside += step
            most = max(most, num_inside)
            names.add(name)
        return most, names

    def most(self) -> int:
        """How many were inside at once, at most, since this was asked last."""
        return self.told()[0]


def write_records(path: Path) -> Path:
    """A file of numbered records."""
    path.write_bytes(b"".join(b"%8d" % number for number in ALL))
    return path


def open_to_copy(path: Path) -> Any:
    """A file that can be opened again for each thread."""
    return path.open("rb")


def open_for_good(path: Path) -> Any:
    """A file that no other can stand for, since it may be written to."""
    return path.open("r+b")


class Records(Dataset[int]):
    """Reads record by record while a crowd looks on."""

    meets_from = NUM_RECORDS  # from this sample on, two threads have to come

    def __init__(self, path: Path) -> None:
        self.path = path
        self.crowd = Crowd()

    def __len__(self) -> int:
        return NUM_RECORDS

    def __getitem__(self, index: int) -> int:
        with self.crowd:
            if index >= self.meets_from:
                self.crowd.meet()
            return int(self.read(index))

    def read(self, index: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """End what it holds."""


def record_of(file: Any, index: int) -> bytes:
    """The record at its place in the file: two steps, which another thread may come between."""
    file.seek(index * RECORD_BYTES)
    return file.read(RECORD_BYTES)


class Opened(Records):
    """Opens its file when it is made."""

    def __init__(self, path: Path, open_file: Callable[[Path], Any]) -> None:
        super().__init__(path)
        self.file = open_file(path)

    def read(self, index: int) -> Any:
        return record_of(self.file, index)

    def close(self) -> None:
        self.file.close()


class Lazy(Records):
    """Opens its file for the first sample."""

    file: Any = None

    def read(self, index: int) -> Any:
        if self.file is None:
            self.file = open_to_copy(self.path)
        return record_of(self.file, index)


class LazyOfClass(Records):
    """Opens its file for the first sample, one for all of its kind: no copy of the dataset could have its own."""

    file: ClassVar[Any] = None

    def read(self, index: int) -> Any:
        if self.file is None:
            LazyOfClass.file = open_to_copy(self.path)
        return record_of(self.file, index)

    def close(self) -> None:
        LazyOfClass.file.close()
        LazyOfClass.file = None


class LazyByName(Records):
    """The same in a table of open files that belongs to the class."""

    files: ClassVar[dict[str, Any]] = {}

    def read(self, index: int) -> Any:
        if "file" not in self.files:
            self.files["file"] = open_to_copy(self.path)
        return record_of(self.files["file"], index)

    def close(self) -> None:
        self.files.pop("file").close()


class Reopening(Records):
    """Opens and closes its file for each sample, as it should."""

    def read(self, index: int) -> Any:
        with open_to_copy(self.path) as file:
            return record_of(file, index)
