"""Crossing: what it costs to send a batch, or a sample in the middle of its way, to a process and back, out.

    python -m benchmarks.crossing

CPU time of both sides, beside that of threads which do the same; the work itself is next to nothing. The constants of
``torchstage.placement.model.Costs`` come from here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.probes import tree_cpu_seconds
from torchstage import Stage, StageLoader

NUM_EPOCHS = 2  # that are timed, after one that is not


class Cheap(Dataset[Any]):
    """Each sample is its index, or the same tensor of so many numbers."""

    def __init__(self, num_samples: int, num_numbers: int) -> None:
        self.num_samples = num_samples
        self.sample = torch.zeros(num_numbers) if num_numbers else None

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Any:
        return index if self.sample is None else self.sample


def same(sample: Any) -> Any:
    return sample


def main() -> None:
    for batch_size in (8, 32, 128):
        for num_numbers in (0, 1_000, 50_000):
            num_batches = 300 if num_numbers < 50_000 else 60
            dataset = Cheap(num_batches * batch_size, num_numbers)
            told = [
                1e6 * cpu_seconds_of(dataset, batch_size, method) / num_batches
                for method in ("thread", "multiprocessing")
            ]
            print(
                f"batch of {batch_size}, {num_numbers} numbers each: threads {told[0]:.0f} us, processes {told[1]:.0f}"
            )
    for num_numbers in (0, 1_000, 50_000):
        num_samples = 4_000 if num_numbers < 50_000 else 1_000
        told = [
            1e6 * cpu_seconds_of(Cheap(num_samples, num_numbers), 32, "thread", (stage,)) / num_samples
            for stage in (Stage(same), Stage(same, executor="process"))
        ]
        print(f"sample of {num_numbers} numbers in mid-chain: threads {told[0]:.1f} us, processes {told[1]:.1f}")


def cpu_seconds_of(dataset: Any, batch_size: int, method: Any, stages: tuple[Stage, ...] = ()) -> float:
    """Of this process and the loader's, an epoch."""
    with StageLoader(
        dataset, batch_size, num_workers=2, persistent_workers=True, worker_method=method, stages=stages
    ) as loader:
        for _ in loader:
            pass
        begin = tree_cpu_seconds()
        for _ in range(NUM_EPOCHS):
            for _ in loader:
                pass
        return (tree_cpu_seconds() - begin) / NUM_EPOCHS


if __name__ == "__main__":
    main()
