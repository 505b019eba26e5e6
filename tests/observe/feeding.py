"""Feeding: a small loader with stages, and its batches."""

import time
from typing import Any

from torchstage import Stage, StageLoader


class Numbers:
    def __init__(self, num_samples: int = 40) -> None:
        self.num_samples = num_samples

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> int:
        return index


def decode(value: int) -> int:
    time.sleep(0.002)
    return value


def as_it_is(samples: list[Any]) -> list[Any]:
    return samples


def loader_of(num_samples: int = 40, *stages: Any, **arguments: Any) -> StageLoader[Any]:
    """Batches of four, by two threads; with ``decode`` if no stages are given."""
    known = {"batch_size": 4, "num_workers": 2, "collate_fn": as_it_is, "isolation": "shared"}
    return StageLoader(Numbers(num_samples), stages=stages or [Stage(decode)], **{**known, **arguments})


def take_all(loader: StageLoader[Any]) -> list[Any]:
    with loader:
        return list(loader)
