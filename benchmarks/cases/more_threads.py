"""More threads than cores: the image folder with 2, 4, 8 and 16 threads in; images a second out.

All counts take turns inside one process, an epoch each, so that a busy minute of the machine hits all of
them.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from benchmarks.case import Case, Column, Goal, Round
from benchmarks.cases.image_folder import BATCH_SIZE, NUM_IMAGES, NUM_IMAGES_QUICK, dataset
from benchmarks.loaders import Entry, stageloader
from benchmarks.probes import Metrics, close, tree_cpu_seconds

COUNTS = (2, 4, 8, 16)
NUM_EPOCHS, NUM_EPOCHS_QUICK = 3, 1
OURS = stageloader(2).for_all_counts()


def run(entry: Entry, quick: bool) -> Metrics:
    images = dataset(NUM_IMAGES_QUICK if quick else NUM_IMAGES)
    loaders = {count: entry.with_workers(count).build(images, BATCH_SIZE, shuffle=True) for count in COUNTS}
    speeds: dict[int, list[float]] = {count: [] for count in COUNTS}
    cpu_ms: dict[int, list[float]] = {count: [] for count in COUNTS}
    for epoch in range(NUM_EPOCHS_QUICK if quick else NUM_EPOCHS):
        for turn in range(len(COUNTS)):
            count = COUNTS[(epoch + turn) % len(COUNTS)]
            seconds, cpu_seconds = _epoch(loaders[count])
            speeds[count].append(len(images) / seconds)
            cpu_ms[count].append(1e3 * cpu_seconds / len(images))
    for loader in loaders.values():
        close(loader)
    metrics: Metrics = {}
    for count in COUNTS:
        metrics[f"samples_per_second_{count}"] = median(speeds[count])
        metrics[f"cpu_ms_per_sample_{count}"] = median(cpu_ms[count])
        metrics[f"against_2_{count}"] = median(a / b for a, b in zip(speeds[count], speeds[2], strict=True))
    return metrics


def _epoch(loader: Any) -> tuple[float, float]:
    cpu_before, start = tree_cpu_seconds(), time.perf_counter()
    for _ in loader:
        pass
    return time.perf_counter() - start, tree_cpu_seconds() - cpu_before


def _worst(round_: Round) -> float:
    return min(round_[OURS.key][f"against_2_{count}"] for count in COUNTS[1:])


CASE = Case(
    name="more_threads",
    title="More threads than cores",
    question=(
        "The image folder again: does a generous number of threads cost anything? An epoch each, in turn, "
        "in one process."
    ),
    entries=(OURS,),
    run=run,
    imports=("torchvision",),
    columns=(
        *(Column(f"samples_per_second_{count}", f"images/s, {count} threads", 0) for count in COUNTS),
        *(Column(f"against_2_{count}", f"{count} threads against 2", 2) for count in COUNTS[1:]),
        *(Column(f"cpu_ms_per_sample_{count}", f"CPU ms an image, {count}", 2) for count in (2, 16)),
    ),
    goals=(Goal("StageLoader, the worst of 4, 8 and 16 threads against 2", _worst, at_least=0.95),),
    minutes=0.3,
)
