"""Growth, length: datasets of 10^3 to 10^8 indices in; the wait for the first batch, and the memory, out.

A sample costs nothing. What grows is the sampler: torch's RandomSampler makes a list of all indices, ElasticSampler and
Grain compute each when its turn comes.
"""

from __future__ import annotations

import gc
import time

import psutil

from benchmarks.case import Case, Column, Headline, cells
from benchmarks.cases.noop import Index, keep
from benchmarks.loaders import Entry, dataloader, elastic_stageloader, grain, spdl, stageloader
from benchmarks.probes import CAN_SEE_MEMORY, Metrics, close, memory_now_mib, tree_pss_mib

POWERS, POWERS_QUICK = (3, 4, 5, 6, 7, 8), (3, 5, 7)
ORDERS = {"sequential": False, "shuffled": True}
BATCH_SIZE, NUM_BATCHES = 64, 8
NUM_WORKERS = 2
BYTES_AN_INDEX = 60  # 8 of a tensor, 8 of a list, 32 of an int, while all three are there, and some room
OURS, ELASTIC, DATALOADER = stageloader(NUM_WORKERS), elastic_stageloader(NUM_WORKERS), dataloader(NUM_WORKERS)
PEERS = (spdl(NUM_WORKERS, "input"), grain(NUM_WORKERS))


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    for power in POWERS_QUICK if quick else POWERS:
        for order, shuffle in ORDERS.items():
            if shuffle and BYTES_AN_INDEX * 10**power > psutil.virtual_memory().available:
                continue  # the cell says "not measured"
            metrics |= {f"{name}_{power}_{order}": value for name, value in _begin(entry, 10**power, shuffle).items()}
    return metrics


def _begin(entry: Entry, length: int, shuffle: bool) -> Metrics:
    """The first batches of an epoch, which is then given up."""
    gc.collect()
    baseline_mib = memory_now_mib()
    loader = entry.build(Index(length), BATCH_SIZE, shuffle=shuffle, collate_fn=keep)
    start = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    found: Metrics = {"first_ms": 1e3 * (time.perf_counter() - start)}
    for _ in range(NUM_BATCHES):
        next(iterator)
    if CAN_SEE_MEMORY:
        found["added_pss_mib"] = tree_pss_mib() - baseline_mib
    close(loader)
    close(iterator)
    return found


CASE = Case(
    name="growth_length",
    title="Growth: the length of the dataset",
    question=(
        f"10^3 to 10^8 samples that cost nothing, batch {BATCH_SIZE}, {NUM_WORKERS} workers: from `iter()` to the "
        f"first batch, and the memory of the process tree that was added {NUM_BATCHES} batches later."
    ),
    entries=(DATALOADER, OURS, ELASTIC, *PEERS),
    run=run,
    columns=(
        *(Column(f"first_ms_{power}_shuffled", f"shuffled 10^{power}, first batch, ms", 1) for power in POWERS),
        *(Column(f"added_pss_mib_{power}_shuffled", f"shuffled 10^{power}, MiB", 0) for power in POWERS[-3:]),
        *(Column(f"first_ms_{power}_sequential", f"in turn 10^{power}, first batch, ms", 1) for power in (3, 8)),
        Column("added_pss_mib_8_sequential", "in turn 10^8, MiB", 0),
    ),
    headline=Headline(
        unit="ms to the first batch of 10^7 shuffled samples",
        ours=cells("first_ms_7_shuffled", OURS),
        dataloader=cells("first_ms_7_shuffled", DATALOADER),
        peers=cells("first_ms_7_shuffled", *PEERS),
        digits=1,
        less_is_better=True,
        why=(
            "RandomSampler lists all indices, whichever loader asks it; ElasticSampler computes them, as Grain does: "
            "its row in docs/benchmarks.md does not grow."
        ),
    ),
    minutes=0.9,
)
