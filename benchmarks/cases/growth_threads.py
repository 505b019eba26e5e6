"""Growth, threads: samples that wait in, 1 to 32 workers; samples a second, CPU time and memory out."""

from __future__ import annotations

import time

from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Headline, cells
from benchmarks.loaders import Entry, dataloader, grain, spdl, stageloader
from benchmarks.probes import Metrics, close, train_through

COUNTS, COUNTS_QUICK = (1, 2, 4, 8, 16, 32), (1, 4, 16)
SAMPLE_SECONDS = 0.005
BATCH_SIZE = 8
NUM_SAMPLES_A_WORKER = 64
DATALOADER = dataloader(1).for_all_counts()
OURS = stageloader(1).for_all_counts()
PEERS = (spdl(1, "input").for_all_counts(), spdl(1, "completion").for_all_counts(), grain(1).for_all_counts())


class Waiting(Dataset[int]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_SECONDS)
        return index


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    for count in COUNTS_QUICK if quick else COUNTS:
        num_samples = NUM_SAMPLES_A_WORKER * count
        loader = entry.with_workers(count).build(Waiting(num_samples), BATCH_SIZE)
        found = train_through(loader, 1, len, warm_up=True)
        close(loader)
        del loader  # its processes end here
        assert found["num_samples"] == num_samples, f"{entry.key} lost samples"
        metrics[f"efficiency_{count}"] = found["samples_per_second"] * SAMPLE_SECONDS / count
        metrics[f"samples_per_second_{count}"] = found["samples_per_second"]
        metrics[f"cpu_us_{count}"] = 1e3 * found["cpu_ms_per_sample"]
        if "added_pss_mib" in found:
            metrics[f"added_pss_mib_{count}"] = found["added_pss_mib"]
    return metrics


CASE = Case(
    name="growth_threads",
    title="Growth: the number of workers",
    question=(
        f"Samples that sleep {1e3 * SAMPLE_SECONDS:.0f} ms, batch {BATCH_SIZE}, {NUM_SAMPLES_A_WORKER} samples a "
        "worker; one epoch to warm up, with the memory watched, and one that is timed, for each number of workers. "
        "Efficiency: samples a second / what so many workers could do at most."
    ),
    entries=(DATALOADER, OURS, *PEERS),
    run=run,
    columns=(
        *(Column(f"efficiency_{count}", f"efficiency, {count}", 2) for count in COUNTS),
        *(Column(f"cpu_us_{count}", f"CPU us a sample, {count}", 0) for count in (1, 8, 32)),
        *(Column(f"added_pss_mib_{count}", f"added PSS, MiB, {count}", 0) for count in (1, 8, 32)),
    ),
    headline=Headline(
        unit="samples/s, 32 workers that wait",
        ours=cells("samples_per_second_32", OURS),
        dataloader=cells("samples_per_second_32", DATALOADER),
        peers=cells("samples_per_second_32", *PEERS),
        why="Samples wait and compute nothing: what is lost is the loader's own time, and workers that have no work.",
    ),
    minutes=0.6,
)
