"""No-op: samples that are their own index in, CPU microseconds a sample beyond a plain loop out."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, cells
from benchmarks.loaders import Entry, dataloader, grain, nodes, spdl, stageloader, stateful_dataloader
from benchmarks.probes import Metrics, close, tree_cpu_seconds

BATCH_SIZE = 64
NUM_SAMPLES = {"torch": 200_000, "torchstage": 200_000, "spdl": 4_000, "grain": 20_000, "torchdata": 8_000}
NUM_PLAIN_SAMPLES = 200_000
QUICK_SHARE = 4
OURS = stageloader(4)
DATALOADERS = (dataloader(0), dataloader(2), dataloader(4))
PEERS = (
    stateful_dataloader(2),
    spdl(4, "input"),
    spdl(4, "completion"),
    grain(4),
    nodes(4),
    nodes(4, whole_batches=True),
)


class Index(Dataset[int]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        return index


def keep(samples: list[Any]) -> list[Any]:
    return samples


def run(entry: Entry, quick: bool) -> Metrics:
    num_samples = NUM_SAMPLES["torch" if entry in PEERS[:1] else entry.package] // (QUICK_SHARE if quick else 1)
    plain_us = _plain_loop_us()
    loader = entry.build(Index(num_samples), BATCH_SIZE, collate_fn=keep)
    cpu_before, start = tree_cpu_seconds(), time.perf_counter()
    num_seen = sum(len(batch) for batch in loader)
    seconds = time.perf_counter() - start
    close(loader)
    del loader  # ends the others, worker processes too: what they used is complete now
    cpu_seconds = tree_cpu_seconds() - cpu_before
    assert num_seen == num_samples, f"{entry.key} lost samples: {num_seen} of {num_samples}"
    return {
        "extra_cpu_us_per_sample": 1e6 * cpu_seconds / num_samples - plain_us,
        "plain_cpu_us_per_sample": plain_us,
        "wall_us_per_sample": 1e6 * seconds / num_samples,
    }


def _plain_loop_us() -> float:
    """The same calls without any loader: what the user's own code costs."""
    dataset = Index(NUM_PLAIN_SAMPLES)
    cpu_before = time.process_time()
    for first in range(0, NUM_PLAIN_SAMPLES, BATCH_SIZE):
        keep([dataset[index] for index in range(first, min(first + BATCH_SIZE, NUM_PLAIN_SAMPLES))])
    return 1e6 * (time.process_time() - cpu_before) / NUM_PLAIN_SAMPLES


CASE = Case(
    name="noop",
    title="No-op samples",
    question=(
        f"A sample is its index, a batch is the list of {BATCH_SIZE}: all that is left is the loader. CPU "
        "time of the whole process tree, start and end of the workers included, less that of a plain loop."
    ),
    entries=(
        *DATALOADERS,
        OURS,
        *PEERS,
    ),
    left_out_when_quick=(dataloader(4), spdl(4, "input"), nodes(4, whole_batches=True)),
    run=run,
    columns=(
        Column("extra_cpu_us_per_sample", "CPU us a sample beyond a plain loop", 2),
        Column("plain_cpu_us_per_sample", "plain loop, CPU us", 3),
        Column("wall_us_per_sample", "wall us a sample", 2),
    ),
    goals=(
        Goal(
            "StageLoader with 4 threads, CPU us a sample beyond a plain loop",
            lambda round_: round_[OURS.key]["extra_cpu_us_per_sample"],
            at_most=1.5,
        ),
    ),
    headline=Headline(
        unit="CPU us a sample",
        ours=cells("extra_cpu_us_per_sample", OURS),
        dataloader=cells("extra_cpu_us_per_sample", *DATALOADERS),
        peers=cells("extra_cpu_us_per_sample", *PEERS),
        digits=2,
        less_is_better=True,
        why=(
            "Without any work, DataLoader with `num_workers=0` is a plain loop, and nothing that hands samples over "
            "can be cheaper. What matters is that it is little beside a sample's own cost: an image takes milliseconds."
        ),
    ),
    minutes=0.6,
)
