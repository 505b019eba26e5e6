"""Budget: the sizes of batches in, how many of them may be in flight within so many bytes out.

Guarantees: until one batch was measured, one; always at least one, so that a batch larger than the budget passes.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import numpy as np
import torch

MAX_DEPTH = 8  # of containers in a sample


class Budget:
    """The bytes that a loader's batches in flight may take together, by the largest seen so far."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.largest_batch = 0

    def measure(self, num_bytes: int) -> None:
        """Count a batch, with the samples that it was made of. From any thread: a lost update is made up for soon."""
        self.largest_batch = max(self.largest_batch, num_bytes)

    @property
    def num_batches(self) -> int:
        """How many batches may be in flight."""
        return max(1, self.num_bytes // self.largest_batch) if self.largest_batch else 1


def size_of(value: Any, depth: int = 0) -> int:
    """Bytes of the tensors, arrays, strings and bytes in a value and in the containers inside it."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() if value.layout is torch.strided else sys.getsizeof(value)
    if isinstance(value, np.ndarray):
        return cast(Any, value).nbytes
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, memoryview):
        return value.nbytes
    if depth >= MAX_DEPTH:
        return sys.getsizeof(value)
    if isinstance(value, Mapping):
        return sum(size_of(part, depth + 1) for part in cast(Mapping[Any, Any], value).values())
    if isinstance(value, Sequence):
        return sum(size_of(part, depth + 1) for part in cast(Sequence[Any], value))
    if is_dataclass(value):
        return sum(size_of(getattr(value, field.name, None), depth + 1) for field in fields(value))
    return _size_of_other(value, depth)


def _size_of_other(value: Any, depth: int) -> int:
    parts: Any = getattr(value, "__dict__", None)
    if isinstance(parts, dict) and not isinstance(value, type):
        return sum(size_of(part, depth + 1) for part in cast(dict[str, Any], parts).values())
    num_bytes: Any = getattr(value, "nbytes", None)
    return num_bytes if isinstance(num_bytes, int) else sys.getsizeof(value)
