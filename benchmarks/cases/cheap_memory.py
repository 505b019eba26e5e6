"""Cheap samples: small tensors already in memory in, their speed against `num_workers=0` out.

Each loader takes turns with `DataLoader(num_workers=0)` in one process, an epoch each, and is compared pair
by pair; so DataLoader's own row shows the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader, stageloader
from benchmarks.probes import Metrics, close

NUM_SAMPLES = {"empty": 12_800, "matmul": 3_200}
NUM_PAIRS, NUM_PAIRS_QUICK = 3, 2
BATCH_SIZES = (64, 256)
SETTINGS = tuple((batch_size, step) for step in NUM_SAMPLES for batch_size in BATCH_SIZES)
WIDTH = 128
OURS = (stageloader(1), stageloader(2), stageloader(4))


class SmallPictures(Dataset[tuple[Tensor, int]]):
    """The shape of CIFAR-10: uint8, 3 x 32 x 32, with a label."""

    def __init__(self, num_samples: int) -> None:
        self.pictures = torch.randint(0, 256, (num_samples, 3, 32, 32), dtype=torch.uint8)
        self.labels = [index % 10 for index in range(num_samples)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pictures[index], self.labels[index]


def run(entry: Entry, quick: bool) -> Metrics:
    weights = torch.randn(3 * 32 * 32, WIDTH)
    steps: dict[str, Callable[[Any], object]] = {
        "empty": lambda batch: None,
        "matmul": lambda batch: batch[0].flatten(1).float() @ weights,
    }
    metrics: Metrics = {}
    for batch_size, step in SETTINGS:
        dataset = SmallPictures(NUM_SAMPLES[step])
        plain = dataloader(0).build(dataset, batch_size, shuffle=True)
        loader = entry.build(dataset, batch_size, shuffle=True)
        _epoch_seconds(loader, steps[step])  # threads and processes start here, and the caches warm
        speeds, ratios = [], []
        for pair in range(NUM_PAIRS_QUICK if quick else NUM_PAIRS):
            order = (plain, loader) if pair % 2 else (loader, plain)
            seconds = {id(each): _epoch_seconds(each, steps[step]) for each in order}
            speeds.append(len(dataset) / seconds[id(loader)])
            ratios.append(seconds[id(plain)] / seconds[id(loader)])
        close(loader)
        metrics[f"samples_per_second_{batch_size}_{step}"] = median(speeds)
        metrics[f"against_plain_{batch_size}_{step}"] = median(ratios)
    return metrics


def _epoch_seconds(loader: Any, step: Callable[[Any], object]) -> float:
    start = time.perf_counter()
    for batch in loader:
        step(batch)
    return time.perf_counter() - start


def _worst(entry: Entry) -> Callable[[Round], float]:
    return lambda round_: min(round_[entry.key][f"against_plain_{size}_{name}"] for size, name in SETTINGS)


CASE = Case(
    name="cheap_memory",
    title="Cheap samples in memory",
    question=(
        "uint8 tensors of 3 x 32 x 32 with a label, default collate; the training step is empty, or a matrix "
        f"product of batch x 3072 x {WIDTH}. Ratios are against `DataLoader(num_workers=0)` in the same "
        "process, epoch by epoch."
    ),
    entries=(dataloader(0), dataloader(2), *OURS),
    left_out_when_quick=(dataloader(2), stageloader(2)),
    run=run,
    columns=(
        *(Column(f"against_plain_{size}_{name}", f"ratio, batch {size}, {name}", 2) for size, name in SETTINGS),
        *(Column(f"samples_per_second_{size}_empty", f"samples/s, batch {size}, empty", 0) for size in BATCH_SIZES),
    ),
    goals=(
        *(Goal(f"{entry.label}: the worst of its four ratios", _worst(entry), at_least=1.0) for entry in OURS),
        Goal("(the noise: DataLoader without workers against itself)", _worst(dataloader(0)), at_least=1.0),
    ),
    headline=Headline(
        unit="samples/s, batch 256, no training step",
        ours=cells("samples_per_second_256_empty", *OURS),
        dataloader=cells("samples_per_second_256_empty", dataloader(0), dataloader(2)),
        peers=(),
        why=(
            "The samples lie in memory and cost next to nothing: a plain loop (`num_workers=0`) pays no hand-over. "
            "Use `num_workers=0` for such data, with either loader."
        ),
    ),
    minutes=0.4,
)
