"""Working: datasets and stages whose cost is of one kind, and a consumer that takes its time."""

import hashlib
import time
from typing import Any

from torchstage import StageLoader
from torchstage.stats import LoaderStats

BLOCK = bytes(1 << 20)  # hashing it takes 1 ms or so and leaves the GIL alone


class Waiting:
    """A sample is waited for: a disk, a network."""

    def __init__(self, num_samples: int, seconds: float) -> None:
        self.num_samples, self.seconds = num_samples, seconds

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        if self.seconds:
            time.sleep(self.seconds)
        return index


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def decode(value: int) -> int:
    """Work outside of the GIL."""
    for _ in range(3):
        hashlib.sha256(BLOCK).digest()
    return value


def tokenize(value: int) -> int:
    """Work in Python."""
    total = 0
    for number in range(60_000):
        total += number % 7
    return value + (total == 0)


def wait_a_little(value: int) -> int:
    time.sleep(0.004)
    return value


def trained(loader: StageLoader[Any], step_seconds: float) -> LoaderStats:
    """What the loader tells after an epoch of steps that take so long."""
    with loader:
        for _ in loader:
            if step_seconds:
                time.sleep(step_seconds)
        return loader.stats()
