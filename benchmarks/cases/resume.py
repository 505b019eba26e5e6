"""Resume: a state far inside an epoch in, the wait for the first batch after it out."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, elastic_stageloader, stageloader, stateful_dataloader
from benchmarks.probes import Metrics, close

FAR = 10**8  # where a position is a number
NEAR, NEAR_QUICK = 10**7, 10**6  # where the sampler's order is replayed: as a list of Python integers it is 0.4 GB
BATCH_SIZE = 10_000
NUM_BATCHES_BEFORE = 8  # handed out before a state is taken, where the epoch can begin far inside
NUM_RESUMES = 1
ELASTIC, OURS, THEIRS = elastic_stageloader(2), stageloader(2), (stateful_dataloader(0),)


class Length(Dataset[int]):
    """Samples that cost nothing, fetched a batch at a time, so that 10**7 of them are soon passed."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


def first_index(samples: list[int]) -> int:
    return samples[0]


def run(entry: Entry, quick: bool) -> Metrics:
    is_far = entry.key == ELASTIC.key
    position = FAR if is_far else NEAR_QUICK if quick else NEAR
    dataset = Length(position + 100 * BATCH_SIZE)
    loader = entry.build(dataset, BATCH_SIZE, shuffle=True, collate_fn=first_index)
    num_batches = position // BATCH_SIZE
    if is_far:
        loader.sampler.start_at(position - NUM_BATCHES_BEFORE * BATCH_SIZE)
        num_batches = NUM_BATCHES_BEFORE
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    state = loader.state_dict()
    expected = next(iterator)
    del iterator
    close(loader)
    resumes, freshes = [], []
    for _ in range(NUM_RESUMES):
        freshes.append(_seconds(entry, dataset, None)[0])
        seconds, index = _seconds(entry, dataset, state)
        assert index == expected, (index, expected)
        resumes.append(seconds)
    return {
        "position_millions": position / 1e6,
        "resume_ms": 1e3 * median(resumes),
        "fresh_ms": 1e3 * median(freshes),
        "more_ms": 1e3 * (median(resumes) - median(freshes)),
    }


def _seconds(entry: Entry, dataset: Length, state: dict[str, Any] | None) -> tuple[float, int]:
    loader = entry.build(dataset, BATCH_SIZE, shuffle=True, collate_fn=first_index)
    start = time.perf_counter()
    if state is not None:
        loader.load_state_dict(state)
    iterator = iter(loader)
    index = next(iterator)
    seconds = time.perf_counter() - start
    del iterator
    close(loader)
    return seconds, index


def _of(entry: Entry, metric: str) -> Callable[[Round], float]:
    return lambda round_: round_[entry.key][metric]


CASE = Case(
    name="resume",
    title="Resume far inside an epoch",
    question=(
        f"Shuffled, batch {BATCH_SIZE} (fetched as a whole, at no cost), 2 threads or none: load_state_dict, iter "
        "and the first batch, which is checked; beside the first batch of a new epoch, which shuffles too. "
        "ElasticSampler computes its order by index; torch's RandomSampler and torchdata's make the list of it and "
        "pass over what was handed out."
    ),
    entries=(ELASTIC, OURS, *THEIRS),
    run=run,
    columns=(
        Column("position_millions", "position, million samples", 0),
        Column("resume_ms", "load and first batch, ms", 1),
        Column("fresh_ms", "first batch of a new epoch, ms", 1),
        Column("more_ms", "resume beyond that, ms", 1),
    ),
    goals=(
        Goal(
            "StageLoader with ElasticSampler, load and first batch after 10^8, ms",
            _of(ELASTIC, "resume_ms"),
            at_most=50.0,
        ),
        Goal(
            "StageLoader's replay against StatefulDataLoader's, same torch sampler's order",
            lambda round_: round_[OURS.key]["resume_ms"] / round_[THEIRS[0].key]["resume_ms"],
            at_most=1.0,
        ),
    ),
    headline=Headline(
        unit="ms to the first batch after 10^7 samples",
        ours=cells("resume_ms", OURS),
        dataloader=(),
        peers=cells("resume_ms", *THEIRS),
        less_is_better=True,
        why="DataLoader has no state. Here both list the order anew and pass over what was handed out.",
    ),
    minutes=0.4,
)
