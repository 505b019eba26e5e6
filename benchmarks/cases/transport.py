"""Transport: large batches that cost next to nothing to make in; the speed and the CPU time of bringing them here, out.

The samples lie ready in each process, made when the first is asked for. So nearly all of the time is the copy into a
batch and the way to the user, who looks at one number of each page.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.loaders import Entry, dataloader
from benchmarks.placed import PROCESS, placed
from benchmarks.probes import Metrics, close, memory_now_mib, train_through

BATCH_SIZE = 64
SHAPE = (3, 224, 224)
BATCH_BYTES = 4 * BATCH_SIZE * SHAPE[0] * SHAPE[1] * SHAPE[2]
NUM_BATCHES, NUM_BATCHES_QUICK = 48, 32  # of an epoch
NUM_EPOCHS = 2  # that are timed
WARM_UP_SECONDS = 2.5  # whole epochs, until the processes are up
NUMBERS_A_PAGE = 1024  # float32 in 4 KiB
MB, GB = 1e6, 1e9
THEIRS = (dataloader(1), dataloader(2))
OURS = (placed(PROCESS, 1), placed(PROCESS, 2))


class Ready(Dataset[Tensor]):
    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tensor:
        return samples()[index % BATCH_SIZE]


@functools.cache
def samples() -> list[Tensor]:
    return [torch.full(SHAPE, float(number)) for number in range(BATCH_SIZE)]


def by_hand(batch: list[Tensor]) -> dict[str, Any]:
    """A collate of the user's own: what it returns lies where torch puts it."""
    return {"images": torch.stack(batch), "count": len(batch)}


COLLATES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Tensor]]] = {
    "default": (default_collate, lambda batch: batch),
    "custom": (by_hand, lambda batch: batch["images"]),
}


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    num_batches = NUM_BATCHES_QUICK if quick else NUM_BATCHES
    for name, (collate_fn, images_of) in COLLATES.items():
        loader = entry.build(Ready(num_batches * BATCH_SIZE), BATCH_SIZE, collate_fn=collate_fn)
        baseline_mib = memory_now_mib()
        begin = time.perf_counter()
        while time.perf_counter() - begin < WARM_UP_SECONDS:
            for _ in loader:
                pass
        num_bytes = functools.partial(_bytes_of, images_of)
        found = train_through(loader, NUM_EPOCHS, num_bytes, baseline_mib=baseline_mib)
        close(loader)
        del loader  # its processes end here
        assert found["num_samples"] == NUM_EPOCHS * num_batches * BATCH_BYTES, f"{entry.key} lost bytes"
        metrics[f"mb_per_second_{name}"] = found["samples_per_second"] / MB
        metrics[f"mb_per_second_after_first_{name}"] = found["samples_per_second_after_first"] / MB
        metrics[f"cpu_seconds_per_gb_{name}"] = 1e-3 * found["cpu_ms_per_sample"] * GB
        if "added_pss_mib" in found:
            metrics[f"added_pss_mib_{name}"] = found["added_pss_mib"]
    return metrics


def _bytes_of(images_of: Callable[[Any], Tensor], batch: Any) -> int:
    """Of a batch. Wrong numbers are an error: whoever hands out memory too early must not look fast."""
    images = images_of(batch)
    seen = images.view(-1)[::NUMBERS_A_PAGE].sum().item()
    assert seen == _right(), f"the batch has other numbers: {seen}, not {_right()}"
    return images.nbytes


@functools.cache
def _right() -> float:
    return torch.stack(samples()).view(-1)[::NUMBERS_A_PAGE].sum().item()


def _best(metric: str, *, more_is_better: bool) -> Callable[[Round], float]:
    choose = max if more_is_better else min

    def ratio(round_: Round) -> float:
        ours, theirs = (choose(round_[e.key][metric] for e in entries) for entries in (OURS, THEIRS))
        return ours / theirs

    return ratio


CASE = Case(
    name="transport",
    title="Large batches out of a process",
    question=(
        f"Batches of {BATCH_SIZE} x {' x '.join(map(str, SHAPE))} float32, {BATCH_BYTES / MB:.0f} MB, of samples that "
        "lie ready in each process; with `default_collate`, and with a collate function of the user's own "
        f"(`torch.stack` into a dict). After {WARM_UP_SECONDS:.0f} s of whole epochs. CPU time is that of the whole "
        "process tree. The goals take the better of 1 and 2 processes, on either side."
    ),
    entries=(*THEIRS, *OURS),
    run=run,
    columns=(
        Column("mb_per_second_default", "MB/s, default collate", 0),
        Column("cpu_seconds_per_gb_default", "CPU s/GB, default collate", 2),
        Column("added_pss_mib_default", "added PSS, MiB, default collate", 0),
        Column("mb_per_second_custom", "MB/s, own collate", 0),
        Column("cpu_seconds_per_gb_custom", "CPU s/GB, own collate", 2),
    ),
    goals=(
        Goal(
            "StageLoader's best / DataLoader's best, MB/s, default collate",
            _best("mb_per_second_default", more_is_better=True),
            at_least=3.0,
        ),
        Goal(
            "the same, CPU s/GB",
            _best("cpu_seconds_per_gb_default", more_is_better=False),
            at_most=1 / 3,
        ),
        Goal(
            "the same, MB/s, own collate",
            _best("mb_per_second_custom", more_is_better=True),
            at_least=1.0,
        ),
    ),
    headline=Headline(
        unit="MB/s, large float batches out of processes",
        ours=cells("mb_per_second_default", *OURS),
        dataloader=cells("mb_per_second_default", *THEIRS),
        peers=(),
        why="Batches are collated straight into memory that both processes see and that is used again.",
    ),
    minutes=0.8,
)
