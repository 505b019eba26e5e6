"""Datasets and functions that several parity tests use. Of this module, so that other processes can import them."""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, IterableDataset


class Indices(Dataset):
    """The item is its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return index


class Made(Indices):
    """The item is ``make(index)``."""

    def __init__(self, length: int, make: Callable[[Any], Any]) -> None:
        super().__init__(length)
        self.make = make

    def __getitem__(self, index: Any) -> Any:
        return self.make(index)


class Bulk(Indices):
    """Gives a whole batch at once, and says so: its items are negative where they came in bulk."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [-index for index in indices]


class Counting(IterableDataset):
    """Yields 0, 1, ... up to its length; each worker yields them all."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def as_given(samples: Any) -> Any:
    """Collate nothing."""
    return samples
