"""String index: a list of a million Python strings in, the memory that eight workers add out.

Reading a string counts a reference to it, which writes to its page: a forked worker process then owns a copy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader, stageloader
from benchmarks.probes import Metrics, close, train_through

NUM_STRINGS = 1_000_000
NUM_SAMPLES, NUM_SAMPLES_QUICK = 100_000, 40_000
BATCH_SIZE = 256
NUM_WORKERS = 8
OURS, THEIRS = stageloader(NUM_WORKERS), dataloader(NUM_WORKERS)


class StringIndex(Dataset[Tensor]):
    """A path a sample, far apart from the last one; a sample is the path's length."""

    def __init__(self, num_samples: int) -> None:
        self.paths = [f"s3://bucket/train/class-{n % 1000:04}/image-{n:08}.jpg" for n in range(NUM_STRINGS)]
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index * 7919 % NUM_STRINGS]  # a prime: neighbours lie on different pages
        return torch.tensor([len(path)])


def run(entry: Entry, quick: bool) -> Metrics:
    dataset = StringIndex(NUM_SAMPLES_QUICK if quick else NUM_SAMPLES)
    loader = entry.build(dataset, BATCH_SIZE, shuffle=True)
    metrics = train_through(loader, num_epochs=1, count_samples=len)
    close(loader)
    return metrics


def _memory(round_: Round) -> float:
    ours, theirs = round_[OURS.key], round_[THEIRS.key]
    return ours["added_pss_mib"] / theirs["added_pss_mib"]


CASE = Case(
    name="string_index",
    title="An index of a million Python strings",
    question=(
        f"{NUM_WORKERS} workers, {NUM_SAMPLES:,} samples an epoch; a sample reads its string and returns a "
        "small tensor. The memory is that of the whole process tree."
    ),
    entries=(THEIRS, OURS),
    run=run,
    columns=(Column("added_pss_mib", "added PSS, MiB", 0), Column("samples_per_second", "samples/s", 0)),
    goals=(Goal("StageLoader's added PSS against DataLoader's, 8 workers each", _memory, at_most=0.25),),
    headline=Headline(
        unit="added PSS, MiB, 8 workers",
        ours=cells("added_pss_mib", OURS),
        dataloader=cells("added_pss_mib", THEIRS),
        peers=(),
        less_is_better=True,
        why="Threads read the one index; a forked process copies each page on which it counts a reference.",
    ),
    minutes=0.2,
)
