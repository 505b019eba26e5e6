"""Growth, batch: batches of 1 to 512 small samples in; CPU time a sample, and memory, out."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.case import Case, Column, Headline, cells
from benchmarks.loaders import Entry, dataloader, grain, spdl, stageloader
from benchmarks.probes import Metrics, close, train_through

SIZES, SIZES_QUICK = (1, 2, 8, 32, 128, 512), (1, 8, 128)
NUM_WORKERS = 2
SAMPLE_NUMBERS = 4096  # float32: 16 KiB
FEWEST_SAMPLES, MOST_SAMPLES = 2_048, 16_384
SAMPLES_A_SIZE = 1_024  # so many batches, between those bounds
DATALOADERS = (dataloader(0), dataloader(NUM_WORKERS))
OURS = stageloader(NUM_WORKERS)
PEERS = (spdl(NUM_WORKERS, "input"), grain(NUM_WORKERS))


class Same(Dataset[Tensor]):
    """One tensor, again and again."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.sample = torch.zeros(SAMPLE_NUMBERS)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tensor:
        return self.sample


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    for size in SIZES_QUICK if quick else SIZES:
        is_slow = entry.package == "spdl"  # nearly a millisecond a sample
        num_samples = FEWEST_SAMPLES if is_slow else min(max(SAMPLES_A_SIZE * size, FEWEST_SAMPLES), MOST_SAMPLES)
        loader = entry.build(Same(num_samples), size)
        found = train_through(loader, 1, len, warm_up=True)
        close(loader)
        del loader  # its processes end here
        assert found["num_samples"] == num_samples, f"{entry.key} lost samples"
        metrics[f"cpu_us_{size}"] = 1e3 * found["cpu_ms_per_sample"]
        metrics[f"samples_per_second_{size}"] = found["samples_per_second"]
        if "added_pss_mib" in found:
            metrics[f"added_pss_mib_{size}"] = found["added_pss_mib"]
    return metrics


CASE = Case(
    name="growth_batch",
    title="Growth: the batch size",
    question=(
        f"Samples of {4 * SAMPLE_NUMBERS // 1024} KiB that lie ready, default collate, {NUM_WORKERS} workers, one "
        "epoch to warm up, with the memory watched, and one that is timed, for each batch size."
    ),
    entries=(*DATALOADERS, OURS, *PEERS),
    run=run,
    columns=(
        *(Column(f"cpu_us_{size}", f"CPU us a sample, batch {size}", 1) for size in SIZES),
        *(Column(f"added_pss_mib_{size}", f"added PSS, MiB, batch {size}", 0) for size in (1, 32, 512)),
    ),
    headline=Headline(
        unit="CPU us a sample, batch 32",
        ours=cells("cpu_us_32", OURS),
        dataloader=cells("cpu_us_32", *DATALOADERS),
        peers=cells("cpu_us_32", *PEERS),
        digits=1,
        less_is_better=True,
        why="What a hand-over costs is paid once a batch, or once a sample, as the loader is built.",
    ),
    minutes=0.7,
)
