"""Heavy tail: sleeping samples with lognormal times in, the efficiency of 4, 8 and 16 threads out.

Efficiency is the ideal makespan (all times added up, divided by the threads) over the real one. A loader that
delivers in order may not let one slow sample hold the others up.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader, grain, nodes, spdl, stageloader
from benchmarks.probes import Metrics, close

COUNTS = (4, 8, 16)
SIGMA = 1.0
MEAN_SECONDS = 0.005
BATCH_SIZE = 16
NUM_SAMPLES_A_THREAD, NUM_SAMPLES_A_THREAD_QUICK = 128, 48
OURS = stageloader(4).for_all_counts()
UNORDERED = stageloader(4, in_order=False).for_all_counts()
SPDL = spdl(4, "completion").for_all_counts()
DATALOADER = dataloader(4).for_all_counts()
PEERS = (spdl(4, "input").for_all_counts(), SPDL, grain(4).for_all_counts(), nodes(4).for_all_counts())


class HeavyTail(Dataset[int]):
    """The same times in every process: the generator has a fixed seed."""

    def __init__(self, num_samples: int) -> None:
        random_ = random.Random(0)
        mu = math.log(MEAN_SECONDS) - SIGMA**2 / 2  # the mean of a lognormal is exp(mu + sigma^2 / 2)
        self.seconds = [random_.lognormvariate(mu, SIGMA) for _ in range(num_samples)]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds[index])
        return index


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    for count in COUNTS:
        dataset = HeavyTail(count * (NUM_SAMPLES_A_THREAD_QUICK if quick else NUM_SAMPLES_A_THREAD))
        loader = entry.with_workers(count).build(dataset, BATCH_SIZE)
        start = time.perf_counter()
        num_samples = sum(len(batch) for batch in loader)
        seconds = time.perf_counter() - start
        close(loader)
        assert num_samples == len(dataset), f"{entry.key} lost samples: {num_samples} of {len(dataset)}"
        metrics[f"makespan_seconds_{count}"] = seconds
        metrics[f"efficiency_{count}"] = sum(dataset.seconds) / count / seconds
    return metrics


def _against(peer: Entry, count: int) -> Callable[[Round], float]:
    return lambda round_: round_[OURS.key][f"efficiency_{count}"] / round_[peer.key][f"efficiency_{count}"]


CASE = Case(
    name="heavy_tail",
    title="Heavy tail",
    question=(
        f"Sleeping samples, lognormal with sigma {SIGMA:.0f} and a mean of {1e3 * MEAN_SECONDS:.0f} ms, "
        f"batch {BATCH_SIZE}. Efficiency: ideal makespan / makespan."
    ),
    entries=(
        DATALOADER,
        OURS,
        UNORDERED,
        *PEERS,
    ),
    run=run,
    columns=tuple(Column(f"efficiency_{count}", f"efficiency, {count} threads", 2) for count in COUNTS),
    goals=(
        *(Goal(f"in order against `in_order=False`, {n} threads", _against(UNORDERED, n), 0.95) for n in COUNTS),
        *(Goal(f"in order against SPDL in completion order, {n} threads", _against(SPDL, n), 1.0) for n in COUNTS),
    ),
    headline=Headline(
        unit="efficiency in order, 16 workers",
        ours=cells("efficiency_16", OURS),
        dataloader=cells("efficiency_16", DATALOADER),
        peers=cells("efficiency_16", *PEERS),
        digits=2,
        why=(
            "A sample that is finished early waits in its batch and holds no thread; elsewhere a slow sample holds up "
            "a worker, a batch, or all that come after it."
        ),
    ),
    minutes=0.7,
)
