"""Datasets and stages whose traces are looked at, and what tests ask of a trace."""

import asyncio
import json
import os
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from torchstage import Stage, StageLoader
from torchstage.observe import Trace

CROSSING_US = 1e-6  # of two ends that are written with three digits


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset):
    """The numbers, dealt out to the readers."""

    def __init__(self, length: int = 24) -> None:
        self.length = length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.length, step))


def decode(value: int) -> int:
    return value


def double(value: int) -> int:
    return 2 * value


def pid_of(value: int) -> int:
    return os.getpid()


async def fetch_more(value: int) -> int:
    await asyncio.sleep(0)
    return value


def fail_at_five(value: int) -> int:
    if value == 5:
        raise ValueError("five")
    return value


def as_it_is(samples: Any) -> Any:
    return samples


def loader_of(dataset: Any = None, **arguments: Any) -> StageLoader:
    chosen = {"batch_size": 4, "num_workers": 2, "stages": [Stage(decode)], "collate_fn": as_it_is, **arguments}
    return StageLoader(Numbers() if dataset is None else dataset, **chosen)


class Seen:
    """A trace that was saved and read again."""

    def __init__(self, trace: Trace, folder: Path, name: str = "trace.json", **options: Any) -> None:
        self.path = trace.save(folder / name, **options)
        self.whole: dict[str, Any] = json.loads(self.path.read_text())
        self.events: list[dict[str, Any]] = self.whole["traceEvents"]

    def slices(self, *names: str) -> list[dict[str, Any]]:
        return [one for one in self.events if one["ph"] == "X" and (not names or one["name"] in names)]

    def counts(self, name: str) -> list[dict[str, int]]:
        return [one["args"] for one in self.events if one["ph"] == "C" and one["name"] == name]

    @property
    def thread_names(self) -> dict[tuple[int, int], str]:
        named = [one for one in self.events if one["ph"] == "M" and one["name"] == "thread_name"]
        return {(one["pid"], one["tid"]): one["args"]["name"] for one in named}

    def samples(self, stage: str) -> Counter[tuple[int, int]]:
        """How many slices each sample has of a stage: by batch and dataset index."""
        return Counter((one["args"]["batch"], one["args"]["index"]) for one in self.slices(stage))

    def check(self) -> None:
        """What a viewer relies on."""
        assert isinstance(self.whole["baseTimeNanoseconds"], int)
        assert self.whole["displayTimeUnit"] == "ms"
        names = self.thread_names
        for one in self.events:
            assert one["ph"] in "XMCi"
            assert isinstance(one["pid"], int)
            assert isinstance(one["tid"], int)
            assert isinstance(one["name"], str)
            if one["ph"] == "X":
                assert one["ts"] >= 0
                assert one["dur"] >= 0
                assert (one["pid"], one["tid"]) in names
            if one["ph"] == "C":
                assert all(isinstance(number, int) and number >= 0 for number in one["args"].values())
        times = [one["ts"] for one in self.events if one["ph"] != "M"]
        assert times == sorted(times)
        crossings(self.slices())


def crossings(slices: list[dict[str, Any]]) -> None:
    """On each track, a slice lies beside another or inside it."""
    tracks = defaultdict(list)
    for one in slices:
        tracks[one["pid"], one["tid"]].append((one["ts"], -one["dur"], one))
    for track in tracks.values():
        open_ends: list[float] = []
        for begin, minus, one in sorted(track, key=lambda known: known[:2]):
            end = begin - minus
            while open_ends and open_ends[-1] <= begin + CROSSING_US:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + CROSSING_US, one
            open_ends.append(end)


def batches_of(loader: StageLoader, num_batches: int | None = None) -> list[Any]:
    made = []
    for batch in loader:
        made.append(batch)
        if len(made) == num_batches:
            break
    return made


def only_once(batches: list[list[int]]) -> Counter[tuple[int, int]]:
    """What ``samples`` must say of these."""
    return Counter((number, index) for number, batch in enumerate(batches) for index in batch)


def main_thread() -> int:
    return threading.get_native_id()
