"""Transfer: large batches for a CUDA device in, how much of their copies the training step hides out.

A kernel that only spins stands for the step, so that its time is known and takes nothing from the copy. On the stream
that computes, an event before and one after each step: what lies between two steps is what the device waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.case import Case, Column, Goal
from benchmarks.loaders import Entry
from benchmarks.probes import MIB, Metrics, close

BATCH_SIZE = 64
SAMPLE_BYTES = MIB
NUM_WORKERS = 4
STEP_SECONDS = 0.04  # long enough for four threads to collate and pin a batch of 64 MiB meanwhile
NUM_STEPS, NUM_STEPS_QUICK = 80, 30
NUM_WARM_UP_STEPS = 10
NUM_COPIES = 20  # timed alone
SPIN_CYCLES = 100_000_000


class Blobs(Dataset[torch.Tensor]):
    """A few samples in memory, again and again."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples
        self._blobs = [torch.full((SAMPLE_BYTES,), number, dtype=torch.uint8) for number in range(BATCH_SIZE)]

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._blobs[index % BATCH_SIZE]


@dataclass(frozen=True, slots=True)
class MovedInTheLoop:
    """What a training loop does by hand: each batch is sent off when it is taken."""

    loader: Any

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self.loader:
            yield batch.to("cuda", non_blocking=True)

    def close(self) -> None:
        close(self.loader)


def dataloader_by_hand(dataset: Any, batch_size: int, num_workers: int, *, pin_memory: bool) -> Iterable[Any]:
    return MovedInTheLoop(DataLoader(dataset, batch_size, num_workers=num_workers, pin_memory=pin_memory))


def stageloader_by_hand(dataset: Any, batch_size: int, num_workers: int) -> Iterable[Any]:
    from torchstage import StageLoader

    return MovedInTheLoop(StageLoader(dataset, batch_size, num_workers=num_workers, pin_memory=True))


def stageloader_with_device(dataset: Any, batch_size: int, num_workers: int) -> Iterable[Any]:
    from torchstage import StageLoader

    loader: Callable[..., Any] = StageLoader
    return loader(dataset, batch_size, num_workers=num_workers, device="cuda")


def run(entry: Entry, quick: bool) -> Metrics:
    num_steps = NUM_STEPS_QUICK if quick else NUM_STEPS
    cycles = _cycles_per_second()
    copy_seconds = _seconds_to_copy()
    loader = entry.build(Blobs(num_steps * BATCH_SIZE), BATCH_SIZE)
    begins, ends = _events(num_steps), _events(num_steps)
    num_seen = 0
    for number, batch in enumerate(loader):
        begins[number].record()
        torch.cuda._sleep(int(STEP_SECONDS * cycles))
        ends[number].record()
        num_seen += len(batch)
    torch.cuda.synchronize()
    close(loader)
    assert num_seen == num_steps * BATCH_SIZE, f"{entry.key} lost samples: {num_seen} of {num_steps * BATCH_SIZE}"
    waits = [ends[number - 1].elapsed_time(begins[number]) for number in range(NUM_WARM_UP_STEPS, num_steps)]
    waited_ms = sum(waits) / len(waits)
    return {
        "copy_hidden_percent": 100 * (1 - waited_ms / (1e3 * copy_seconds)),
        "waited_ms_per_step": waited_ms,
        "copy_ms": 1e3 * copy_seconds,
        "step_ms": begins[NUM_WARM_UP_STEPS].elapsed_time(ends[-1]) / (num_steps - NUM_WARM_UP_STEPS),
    }


def _events(number: int) -> list[torch.cuda.Event]:
    return [torch.cuda.Event(enable_timing=True) for _ in range(number)]


def _cycles_per_second() -> float:
    torch.cuda._sleep(SPIN_CYCLES)  # the first one loads the kernel, and wakes the device
    begin, end = _events(2)
    begin.record()
    torch.cuda._sleep(SPIN_CYCLES)
    end.record()
    end.synchronize()
    return SPIN_CYCLES / (begin.elapsed_time(end) / 1e3)


def _seconds_to_copy() -> float:
    """One batch from pinned memory, with nothing else going on."""
    source = torch.ones(BATCH_SIZE, SAMPLE_BYTES, dtype=torch.uint8).pin_memory()
    target = source.to("cuda")
    begin, end = _events(2)
    begin.record()
    for _ in range(NUM_COPIES):
        target.copy_(source, non_blocking=True)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / NUM_COPIES


def _entry(key: str, label: str, package: str, adapter: Callable[..., Any], **options: Any) -> Entry:
    imports = ("torchstage",) if package == "torchstage" else ()
    return Entry(key, label, package, adapter, NUM_WORKERS, options, imports, needs_cuda=True)


OURS = _entry("stageloader-device", '**StageLoader**, `device="cuda"`', "torchstage", stageloader_with_device)

CASE = Case(
    name="transfer",
    title="Transfer to the device",
    question=(
        f"Batches of {BATCH_SIZE * SAMPLE_BYTES // MIB} MiB, {NUM_WORKERS} workers, a step of "
        f"{1e3 * STEP_SECONDS:.0f} ms on the device. Hidden: the share of a copy's time that no step waits for."
    ),
    entries=(
        _entry(
            "dataloader-pageable",
            'DataLoader, `.to("cuda")` in the loop',
            "torch",
            dataloader_by_hand,
            pin_memory=False,
        ),
        _entry(
            "dataloader-pinned",
            'DataLoader, `pin_memory=True`, `.to("cuda", non_blocking=True)` in the loop',
            "torch",
            dataloader_by_hand,
            pin_memory=True,
        ),
        _entry("stageloader-pinned", "StageLoader, the same two", "torchstage", stageloader_by_hand),
        OURS,
    ),
    run=run,
    columns=(
        Column("copy_hidden_percent", "copy hidden, %", 1),
        Column("waited_ms_per_step", "the device waited, ms a step", 2),
        Column("copy_ms", "the copy alone, ms", 2),
        Column("step_ms", "a step in all, ms", 2),
    ),
    goals=(
        Goal(
            'StageLoader, `device="cuda"`: copy hidden, %',
            lambda round_: round_[OURS.key]["copy_hidden_percent"],
            at_least=95.0,
        ),
    ),
    minutes=0.7,
)
