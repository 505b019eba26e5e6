"""First batch: slow samples in, the waits for the first batch, a new epoch and an idle close out."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader, grain, nodes, spdl, stageloader
from benchmarks.probes import Metrics, close

COUNTS = (4, 8, 16)
BATCH_SIZE = 64
SAMPLE_SECONDS = 0.020
NUM_SLOW_BATCHES = 32  # more than any loader reads ahead: the end of the data plays no part
NUM_CHEAP_BATCHES = 8
NUM_EPOCHS, NUM_EPOCHS_QUICK = 3, 2
IDLE_SECONDS = 0.2  # long enough for all that is read ahead
OURS = stageloader(4).for_all_counts()
PEERS = (
    dataloader(4),
    spdl(4, "input"),
    spdl(4, "completion"),
    grain(4),
    nodes(4),
)


class Sleeping(Dataset[int]):
    def __init__(self, num_samples: int, seconds: float) -> None:
        self.num_samples = num_samples
        self.seconds = seconds

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return index


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    starts, closes = [], []
    for count in COUNTS:
        with_count = entry.with_workers(count)
        ideal_seconds = BATCH_SIZE * SAMPLE_SECONDS / count
        metrics[f"first_batch_{count}"] = _first_batch_seconds(with_count) / ideal_seconds
        starts.append(_new_epoch_seconds(with_count, NUM_EPOCHS_QUICK if quick else NUM_EPOCHS))
        closes.append(_idle_close_seconds(with_count))
    metrics["new_epoch_ms"] = 1e3 * max(starts)
    metrics["idle_close_ms"] = 1e3 * max(closes)
    return metrics


def _first_batch_seconds(entry: Entry) -> float:
    loader = entry.build(Sleeping(BATCH_SIZE * NUM_SLOW_BATCHES, SAMPLE_SECONDS), BATCH_SIZE)
    start = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - start
    close(loader)
    close(iterator)
    return seconds


def _new_epoch_seconds(entry: Entry, num_epochs: int) -> float:
    """From the end of an epoch to the first batch of the next, whose samples cost next to nothing."""
    loader = entry.build(Sleeping(BATCH_SIZE * NUM_CHEAP_BATCHES, 0.0), BATCH_SIZE)
    for _ in loader:
        pass
    waits = []
    for _ in range(num_epochs):
        ended = time.perf_counter()
        iterator = iter(loader)
        next(iterator)
        waits.append(time.perf_counter() - ended)
        for _ in iterator:
            pass
    close(loader)
    return median(waits)


def _idle_close_seconds(entry: Entry) -> float:
    """An epoch is under way, all that may be read ahead has been read, no sample is being made."""
    loader = entry.build(Sleeping(BATCH_SIZE * NUM_CHEAP_BATCHES, 0.0), BATCH_SIZE)
    iterator = iter(loader)
    next(iterator)
    time.sleep(IDLE_SECONDS)
    holders = [loader, iterator]
    del loader, iterator
    start = time.perf_counter()
    close(holders[0])
    holders.clear()  # the last references: this is what ends the loaders that have no `close`
    return time.perf_counter() - start


def _first(count: int) -> Callable[[Round], float]:
    return lambda round_: round_[OURS.key][f"first_batch_{count}"]


CASE = Case(
    name="first_batch",
    title="First batch, next epoch, close",
    question=(
        f"Batch {BATCH_SIZE}, each sample sleeps {1e3 * SAMPLE_SECONDS:.0f} ms: the wait for the first "
        "batch, divided by batch cost / threads. New epoch: from the end of one to the first batch of the "
        "next, with samples that cost nothing. Idle close: in the middle of an epoch, with nothing to do. "
        "Both are the worst of 4, 8 and 16 threads. Grain and torchdata.nodes do not wait for their threads at the end."
    ),
    entries=(OURS, *(peer.for_all_counts() for peer in PEERS)),
    left_out_when_quick=tuple(peer.for_all_counts() for peer in PEERS[2:]),
    run=run,
    columns=(
        *(Column(f"first_batch_{count}", f"first batch / ideal, {count} threads", 2) for count in COUNTS),
        Column("new_epoch_ms", "new epoch, ms", 1),
        Column("idle_close_ms", "idle close, ms", 1),
    ),
    goals=(
        *(Goal(f"StageLoader, first batch / ideal, {n} threads", _first(n), at_most=1.25) for n in COUNTS),
        Goal("StageLoader, new epoch, ms", lambda round_: round_[OURS.key]["new_epoch_ms"], at_most=5.0),
        Goal("StageLoader, idle close, ms", lambda round_: round_[OURS.key]["idle_close_ms"], at_most=50.0),
    ),
    headline=Headline(
        unit="first batch / ideal, 8 workers",
        ours=cells("first_batch_8", OURS),
        dataloader=cells("first_batch_8", PEERS[0].for_all_counts()),
        peers=cells("first_batch_8", *(peer.for_all_counts() for peer in PEERS[1:])),
        digits=2,
        less_is_better=True,
        why=(
            "All threads share the first batch, sample by sample, where a worker process makes its batch alone. Our "
            "first two samples are made one after the other, to see what the dataset opens and changes."
        ),
    ),
    minutes=0.9,
)
