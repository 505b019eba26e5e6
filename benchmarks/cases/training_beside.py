"""Training beside: how fast a training loop of many small torch calls runs while a loader decodes images for it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.cases.image_folder import dataset as image_folder
from benchmarks.loaders import Entry, dataloader, grain, spdl, stageloader
from benchmarks.probes import Metrics, close, tree_cpu_seconds

NUM_IMAGES, NUM_IMAGES_QUICK = 384, 192
BATCH_SIZE = 16
NUM_STEPS = 30  # for each batch: more than the loader needs for the next one
NUM_CALLS = 210  # of torch, in each step
WAIT_SECONDS = 3e-3  # of each step, as for a device
DATALOADERS = (dataloader(2), dataloader(4))
OURS = (stageloader(2), stageloader(4))
PEERS = (spdl(2, "input"), grain(2))


def _step(weights: torch.Tensor) -> None:
    values = weights
    for _ in range(NUM_CALLS // 3):
        values = torch.relu(values @ weights).mul_(0.1)
    time.sleep(WAIT_SECONDS)


def _step_seconds(weights: torch.Tensor) -> float:
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        _step(weights)
    return (time.perf_counter() - start) / NUM_STEPS


def run(entry: Entry, quick: bool) -> Metrics:
    weights = torch.randn(16, 16)
    loader = entry.build(image_folder(NUM_IMAGES_QUICK if quick else NUM_IMAGES), BATCH_SIZE, shuffle=True)
    _step_seconds(weights)
    alone = (_step_seconds(weights) + _step_seconds(weights)) / 2
    beside, start, cpu = 0.0, time.perf_counter(), tree_cpu_seconds()
    num_batches = 0
    for _ in loader:
        beside += _step_seconds(weights)
        num_batches += 1
    seconds = time.perf_counter() - start
    cpu = tree_cpu_seconds() - cpu
    close(loader)
    after = (_step_seconds(weights) + _step_seconds(weights)) / 2
    return {
        "training_speed": (alone + after) / 2 / (beside / num_batches),
        "steps_per_second": num_batches * NUM_STEPS / seconds,
        "batch_ms": 1e3 * seconds / num_batches,
        "cpu_ms": 1e3 * cpu / num_batches,
    }


def _against_best(metric: str, *, more_is_better: bool) -> Callable[[Round], float]:
    def ratio(round_: Round) -> float:
        ours, theirs = ([round_[entry.key][metric] for entry in entries] for entries in (OURS, DATALOADERS))
        return max(ours) / max(theirs) if more_is_better else min(theirs) / min(ours)

    return ratio


CASE = Case(
    name="training_beside",
    title="A training loop beside the loader",
    question=(
        f"Batches of {BATCH_SIZE} images as in the image case, and for each batch {NUM_STEPS} steps of {NUM_CALLS} "
        f"small torch calls and a wait of {1e3 * WAIT_SECONDS:.0f} ms: longer than the loader needs. The loop's speed, "
        "against the same loop alone in that process, and the time from batch to batch."
    ),
    entries=(*DATALOADERS, *OURS, *PEERS),
    run=run,
    imports=("torchvision",),
    columns=(
        Column("training_speed", "training loop / alone", 2),
        Column("steps_per_second", "steps/s", 1),
        Column("batch_ms", "time a batch, ms", 1),
        Column("cpu_ms", "CPU a batch, ms", 1),
    ),
    goals=(
        Goal(
            "batches a second, StageLoader's best / DataLoader's best",
            _against_best("batch_ms", more_is_better=False),
            at_least=1.0,
        ),
        Goal(
            "speed of the training loop, StageLoader's best / DataLoader's best",
            _against_best("training_speed", more_is_better=True),
            at_least=0.95,
        ),
    ),
    headline=Headline(
        unit="training steps/s beside the loader",
        ours=cells("steps_per_second", *OURS),
        dataloader=cells("steps_per_second", *DATALOADERS),
        peers=cells("steps_per_second", *PEERS),
        digits=1,
        why=(
            "Threads share the GIL with the training loop: StageLoader's run at a lower priority, so the loop comes "
            "first. Processes share only the cores."
        ),
    ),
    minutes=0.7,
)
