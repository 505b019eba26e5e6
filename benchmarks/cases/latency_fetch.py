"""Latency fetch: files behind 20 ms of latency in, batches out: how close to what the latency allows, and at what cost.

What it allows is requests in flight over the time of one request, as a bare client measures it just before. All loaders
fetch by the same client (`torchstage.remote`, connections kept), so that they are compared and not their clients. The
server is nginx on the same cores; its CPU time is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.adapters import NUM_BUFFERED_BATCHES, stage_loader
from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.cases.nginx import Nginx
from benchmarks.loaders import Entry, dataloader
from benchmarks.probes import Metrics, close, train_through
from torchstage import StagedDataset, remote

LATENCY_SECONDS = 0.020
NUM_BYTES = 20_000  # a small photograph
NUM_IN_FLIGHT = 64  # StageLoader's own default for `async def` stages
NUM_FILES, NUM_FILES_QUICK = 2560, 1280  # an epoch, 0.8 s or more; its last wait is 20 ms
NUM_EPOCHS = 1  # after one that is not timed
BATCH_SIZE = 32


class Urls(StagedDataset):
    """As a user writes it: the wait in `fetch`, the work in `decode`."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __len__(self) -> int:
        return len(self.urls)

    async def fetch(self, index: int) -> bytes:
        return await remote.fetch_bytes(self.urls[index])

    def decode(self, data: bytes) -> int:
        return decode(data)


class BlockingUrls(Dataset[int]):
    """For worker processes, which wait for one request at a time."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> int:
        return decode(remote.read_bytes(self.urls[index]))


def decode(data: bytes) -> int:
    """The number of the file, so that a wrong, a missing and a misplaced sample are seen. No work: this case is about
    waiting."""
    assert len(data) == NUM_BYTES
    return int.from_bytes(data[:8], "big")


@dataclass(frozen=True, slots=True)
class SpdlEpochs:
    """SPDL's coroutines on its own event loop, then its threads."""

    urls: list[str]
    batch_size: int
    num_threads: int
    output_order: str

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        pipeline = (
            PipelineBuilder()
            .add_source(self.urls)
            .pipe(remote.fetch_bytes, concurrency=NUM_IN_FLIGHT, output_order=self.output_order)
            .pipe(decode, concurrency=self.num_threads, output_order=self.output_order)
            .aggregate(self.batch_size)
            .pipe(torch.tensor)
            .add_sink(NUM_BUFFERED_BATCHES)
            .build(num_threads=self.num_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()


def processes(urls: list[str], batch_size: int, num_workers: int) -> Iterable[Any]:
    return dataloader(num_workers).build(BlockingUrls(urls), batch_size)


def spdl(urls: list[str], batch_size: int, num_workers: int, *, output_order: str) -> Iterable[Any]:
    return SpdlEpochs(urls, batch_size, num_workers, output_order)


def ours(urls: list[str], batch_size: int, num_workers: int) -> Iterable[Any]:
    return stage_loader(Urls(urls), batch_size, num_workers)


def run(entry: Entry, quick: bool) -> Metrics:
    num_files = NUM_FILES_QUICK if quick else NUM_FILES
    with Nginx(num_files, NUM_BYTES, LATENCY_SECONDS) as server:
        latency_seconds = server.latency_seconds()
        loader = entry.build(server.urls, BATCH_SIZE)
        checked = Checked(loader, num_files, in_order=entry.options.get("output_order") != "completion")
        server_before = server.cpu_seconds()
        metrics = train_through(checked, NUM_EPOCHS, len, warm_up=True)  # connections begin in the warm-up
        close(loader)
        server_cpu_seconds = (server.cpu_seconds() - server_before) / (NUM_EPOCHS + 1)  # epochs are alike
    cpu_seconds, seconds = metrics["cpu_seconds"] - NUM_EPOCHS * server_cpu_seconds, metrics["seconds"]
    return metrics | {
        "share_of_the_allowed": metrics["samples_per_second"] * latency_seconds / NUM_IN_FLIGHT,
        "cpu_seconds": cpu_seconds,
        "cpu_cores": cpu_seconds / seconds,
        "cpu_ms_per_sample": 1e3 * cpu_seconds / metrics["num_samples"],
        "latency_ms": 1e3 * latency_seconds,
        "server_cpu_cores": NUM_EPOCHS * server_cpu_seconds / seconds,
    }


@dataclass(frozen=True, slots=True)
class Checked:
    """A loader whose epochs are checked at their end: all samples, in order where order is kept."""

    loader: Iterable[Any]
    num_files: int
    in_order: bool

    def __iter__(self) -> Iterator[Any]:
        came: list[int] = []
        for batch in self.loader:
            came += batch.tolist()
            yield batch
        assert (came if self.in_order else sorted(came)) == list(range(self.num_files)), "other samples, or their order"


DATALOADER = Entry("dataloader-8", "DataLoader, 8 workers", "torch", processes, 8)
SPDL = tuple(
    Entry(
        f"spdl-{order}-2",
        f"SPDL, `async`, {order} order, {NUM_IN_FLIGHT} in flight, 2 threads",
        "spdl",
        spdl,
        2,
        {"output_order": order},
        ("spdl.pipeline",),
    )
    for order in ("input", "completion")
)
OURS = Entry("stageloader-2", f"**StageLoader**, `async`, {NUM_IN_FLIGHT} in flight, 2 threads", "torchstage", ours, 2)


def _of_ours(metric: str) -> Any:
    return lambda round_: round_[OURS.key][metric]


def _speed(round_: Round) -> float:
    fastest = max(round_[entry.key]["samples_per_second"] for entry in SPDL if entry.key in round_)
    return round_[OURS.key]["samples_per_second"] / fastest


CASE = Case(
    name="latency_fetch",
    title="Fetching behind a latency",
    question=(
        f"{NUM_FILES} files of {NUM_BYTES // 1000} KB from nginx on the same machine, {1e3 * LATENCY_SECONDS:.0f} ms "
        f"before each answer, batch {BATCH_SIZE}, one epoch after one that is not timed. Allowed by the "
        f"latency: {NUM_IN_FLIGHT} in flight, divided by the time of one request alone."
    ),
    entries=(DATALOADER, *SPDL, OURS),
    run=run,
    imports=("obstore.store",),
    columns=(
        Column("samples_per_second", "samples/s", 0),
        Column("samples_per_second_after_first", "samples/s after the first batch", 0),
        Column("share_of_the_allowed", "of what 64 in flight allow", 2),
        Column("cpu_cores", "CPU cores", 2),
        Column("cpu_ms_per_sample", "CPU ms a sample", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
        Column("latency_ms", "latency, ms", 1),
        Column("server_cpu_cores", "server's CPU cores", 2),
    ),
    goals=(
        Goal(
            f"StageLoader with {NUM_IN_FLIGHT} in flight, samples/s against what the latency allows",
            _of_ours("share_of_the_allowed"),
            at_least=0.9,
        ),
        Goal("the same, CPU cores", _of_ours("cpu_cores"), at_most=1.0),
        Goal("the same, samples/s against SPDL's faster order", _speed, at_least=1.0),
    ),
    headline=Headline(
        unit="samples/s",
        ours=cells("samples_per_second", OURS),
        dataloader=cells("samples_per_second", DATALOADER),
        peers=cells("samples_per_second", *SPDL),
        why=(
            "A worker process waits for one request at a time; an event loop for as many as it is given. What limits "
            "it then is the CPU time that the loader takes for each sample."
        ),
    ),
    minutes=0.7,
)
