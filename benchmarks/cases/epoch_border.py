"""Epoch border: short epochs in, the wait for an epoch's first batch beside the waits inside an epoch out."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader, stageloader
from benchmarks.probes import Metrics, close

NUM_WORKERS = 4
BATCH_SIZE = 16
SAMPLE_SECONDS = 0.020
BATCH_SECONDS = BATCH_SIZE * SAMPLE_SECONDS / NUM_WORKERS  # what the loader needs for a batch, and the consumer too
NUM_BATCHES = 5
NUM_EPOCHS, NUM_EPOCHS_QUICK = 6, 4
KEPT = stageloader(NUM_WORKERS)
OURS = replace(
    KEPT,
    key=f"stageloader-early-{NUM_WORKERS}",
    label=f"**StageLoader**, `prefetch_epochs=True`, {NUM_WORKERS} threads",
    options={**KEPT.options, "prefetch_epochs": True},
)
ANEW = replace(
    KEPT,
    key=f"stageloader-anew-{NUM_WORKERS}",
    label=f"**StageLoader**, `persistent_workers=False`, {NUM_WORKERS} threads",
    options={**KEPT.options, "persistent_workers": False},
)
THEIRS = dataloader(NUM_WORKERS)


class Sleeping(Dataset[int]):
    def __len__(self) -> int:
        return NUM_BATCHES * BATCH_SIZE

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_SECONDS)
        return index


def run(entry: Entry, quick: bool) -> Metrics:
    loader = entry.build(Sleeping(), BATCH_SIZE)
    first, inside = list[float](), list[float]()
    num_epochs = NUM_EPOCHS_QUICK if quick else NUM_EPOCHS
    begin = 0.0
    for epoch in range(num_epochs):
        asked = time.perf_counter()
        for number, _ in enumerate(loader):
            wait = time.perf_counter() - asked
            if epoch:
                (inside if number else first).append(wait)
            elif not number:
                begin = time.perf_counter()  # the start of the threads or processes is not what is asked here
            time.sleep(BATCH_SECONDS)
            asked = time.perf_counter()
    seconds = time.perf_counter() - begin
    close(loader)
    return {
        "border_ms": 1e3 * median(first),
        "inside_ms": 1e3 * median(inside),
        "gap": (median(first) - median(inside)) / BATCH_SECONDS,
        "share_of_ideal": num_epochs * NUM_BATCHES * BATCH_SECONDS / seconds,
    }


def _against_theirs(round_: Round) -> float:
    return round_[OURS.key]["share_of_ideal"] / round_[THEIRS.key]["share_of_ideal"]


CASE = Case(
    name="epoch_border",
    title="From one epoch to the next",
    question=(
        f"{NUM_EPOCHS} epochs of {NUM_BATCHES} batches of {BATCH_SIZE}; a sample sleeps {1e3 * SAMPLE_SECONDS:.0f} ms, "
        f"so {NUM_WORKERS} threads make a batch in {1e3 * BATCH_SECONDS:.0f} ms, and the training step takes as long. "
        "Border: the wait for the first batch of the second and later epochs. Inside: the wait for any other. Gap: "
        "their difference, in batches. All keep their threads or processes between epochs, except where it says so."
    ),
    entries=(OURS, KEPT, ANEW, THEIRS),
    left_out_when_quick=(ANEW,),
    run=run,
    columns=(
        Column("border_ms", "border, ms", 1),
        Column("inside_ms", "inside, ms", 1),
        Column("gap", "gap, batches", 2),
        Column("share_of_ideal", "of the ideal", 3),
    ),
    goals=(
        Goal("StageLoader, prefetch_epochs=True, gap in batches", lambda round_: round_[OURS.key]["gap"], at_most=0.05),
        Goal("StageLoader, prefetch_epochs=True, speed against DataLoader", _against_theirs, at_least=1.0),
    ),
    headline=Headline(
        unit="share of the ideal speed, short epochs",
        ours=cells("share_of_ideal", OURS),
        dataloader=cells("share_of_ideal", THEIRS),
        peers=(),
        digits=2,
        why="With `prefetch_epochs=True` the next epoch's first batches are made while the last ones are handed out.",
    ),
    minutes=0.5,
)
