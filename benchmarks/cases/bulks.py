"""Bulks: clips that are read four at a time and decoded one by one, as each library's documentation lays it out.

SPDL and Grain follow SPDL's guide for those who come from Grain: a source of bulks, which is taken apart, then
decoding, batches, collate. DataLoader and StageLoader take one dataset, whose `fetch_many` reads the clips of a batch
in bulks. Grain's `FlatMap` reads a bulk once for each of its clips: the library is built so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.cases import clips
from benchmarks.cases.clips import BULK
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics, close, train_through
from torchstage import StagedDataset

NUM_FETCHERS = 4  # as in SPDL's guide
NUM_BUFFERED_BATCHES = 4  # as there
NUM_EPOCHS = 3  # after one to warm up


class Clips(StagedDataset):
    """The real ones: bytes from files, and the decoder."""

    def __init__(self, num_clips: int) -> None:
        self.files = clips.paths(num_clips)

    def __len__(self) -> int:
        return len(self.files)

    def fetch_many(self, indices: Sequence[int]) -> list[Any]:
        return [clip for bulk in in_bulks(indices) for clip in self.read_bulk(bulk)]

    def read_bulk(self, indices: Sequence[int]) -> list[Any]:
        return clips.read([self.files[index] for index in indices])

    def decode(self, clip: Any) -> Any:
        return clips.decode(clip)


class Waits(Clips):
    """The same times, slept instead of worked: so 32 workers have their say on a machine of 2 cores."""

    def __init__(self, num_clips: int, num_times: int = 1) -> None:
        super().__init__(num_clips)
        bulk_seconds, clip_seconds = clips.measured_seconds(num_clips)
        self.bulk_seconds, self.clip_seconds = bulk_seconds * num_times, clip_seconds * num_times
        self.sample = torch.zeros(1)

    def __len__(self) -> int:
        return len(self.clip_seconds)

    def read_bulk(self, indices: Sequence[int]) -> list[Any]:
        time.sleep(self.bulk_seconds[indices[0] // BULK])
        return list(indices)

    def decode(self, clip: Any) -> Any:
        time.sleep(self.clip_seconds[clip])
        return self.sample


def in_bulks(indices: Sequence[int]) -> list[Sequence[int]]:
    return [indices[begin : begin + BULK] for begin in range(0, len(indices), BULK)]


def stage_loader(dataset: Clips, batch_size: int, num_workers: int) -> Iterable[Any]:
    from torchstage import StageLoader

    return StageLoader(dataset, batch_size, num_workers=num_workers, persistent_workers=True)


def torch_dataloader(dataset: Clips, batch_size: int, num_workers: int) -> Iterable[Any]:
    return DataLoader(dataset, batch_size, num_workers=num_workers, persistent_workers=True)


@dataclass(frozen=True, slots=True)
class SpdlEpochs:
    """A pipeline for each epoch, as `spdl.dataloader.DataLoader` makes one in its own `__iter__`."""

    dataset: Clips
    batch_size: int
    num_threads: int
    output_order: str

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        order: Any = self.output_order
        pipeline = (
            PipelineBuilder()
            .add_source(in_bulks(range(len(self.dataset))))
            .pipe(self.dataset.read_bulk, concurrency=NUM_FETCHERS, output_order=order)
            .disaggregate()
            .pipe(self.dataset.decode, concurrency=self.num_threads, output_order=order)
            .aggregate(self.batch_size)
            .pipe(torch.utils.data.default_collate)
            .add_sink(NUM_BUFFERED_BATCHES)
            .build(num_threads=NUM_FETCHERS + self.num_threads + 1)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def spdl_pipeline(dataset: Clips, batch_size: int, num_workers: int, *, output_order: str) -> Iterable[Any]:
    return SpdlEpochs(dataset, batch_size, num_workers, output_order)


def grain_dataset(dataset: Clips, batch_size: int, num_workers: int) -> Iterable[Any]:
    import grain.python as grain
    from grain.experimental import FlatMapMapDataset, FlatMapTransform

    class ExpandBulk(FlatMapTransform):
        max_fan_out = BULK

        def flat_map(self, element: Any) -> Any:
            return element

    source = grain.MapDataset.source(in_bulks(range(len(dataset)))).map(dataset.read_bulk)
    options = grain.ReadOptions(num_threads=num_workers, prefetch_buffer_size=num_workers)
    decoded = FlatMapMapDataset(source, ExpandBulk()).map(dataset.decode).to_iter_dataset(options)
    return decoded.batch(batch_size, batch_fn=torch.utils.data.default_collate)


def entries(num_workers: int) -> tuple[Entry, ...]:
    """StageLoader, SPDL in completion and in input order, Grain, DataLoader."""
    n, threads = num_workers, f"{num_workers} threads"
    spdl: Callable[[str], Entry] = lambda order: Entry(  # noqa: E731
        f"spdl-{order}-{n}", f"SPDL, {order} order, {threads} decode", "spdl", spdl_pipeline, n,
        {"output_order": order}, ("spdl.pipeline",),
    )  # fmt: skip
    return (
        Entry(f"stageloader-{n}", f"**StageLoader**, {threads}", "torchstage", stage_loader, n, {}, ("torchstage",)),
        spdl("completion"),
        spdl("input"),
        Entry(f"grain-{n}", f"Grain, {threads}", "grain", grain_dataset, n, {}, ("grain.python", "grain.experimental")),
        Entry(f"dataloader-{n}", f"DataLoader, {n} processes", "torch", torch_dataloader, n),
    )


def measure(
    loader: Iterable[Any], num_clips: int, count_samples: Callable[[Any], int], num_epochs: int = NUM_EPOCHS
) -> Metrics:
    """One epoch to warm up, with the memory watched from before it, then those that are timed."""
    metrics = train_through(loader, num_epochs, count_samples, warm_up=True)
    close(loader)
    found = metrics["num_samples"]
    assert found == num_epochs * num_clips, f"{found} clips came of {num_epochs * num_clips}"
    return metrics | {
        "clips_per_second": metrics["samples_per_second"],
        "clips_per_second_after_first": metrics["samples_per_second_after_first"],
        "clips_per_cpu_second": found / metrics["cpu_seconds"],
    }
