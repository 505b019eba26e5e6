"""Budget: the sizes of batches in, how many of them may be in flight within so many bytes out.

Guarantees: until one batch was measured, one; always at least one, so that a batch larger than the budget passes.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

MAX_DEPTH = 8  # of containers in a sample
MAX_ITEMS = 1024  # of one container that are looked at: more than most batches have samples
MAX_LOOKS = 20_000  # at objects, for one batch: 20 ms at most


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


def size_of(value: Any) -> int:
    """Bytes of the tensors, arrays, strings and bytes in a value and in the containers inside it. Of long containers,
    from some of their items. Never raises: what cannot be looked at counts little."""
    return int(_Scales().weigh(value, 0))


class _Scales:
    """Weighs one value. It is done for each batch: so it looks at a bounded number of objects, whatever comes."""

    def __init__(self) -> None:
        self._num_left = MAX_LOOKS

    def weigh(self, value: Any, depth: int) -> float:
        self._num_left -= 1
        try:
            return self._weigh(value, depth)
        except Exception:  # a user's object with a mind of its own, or a dict that another thread changes
            return _own_size(value)

    def _weigh(self, value: Any, depth: int) -> float:
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size() if value.layout is torch.strided else _own_size(value)
        if isinstance(value, np.ndarray):
            return cast(Any, value).nbytes
        if isinstance(value, str | bytes | bytearray):
            return len(value)
        if isinstance(value, memoryview):
            return value.nbytes
        if depth >= MAX_DEPTH or self._num_left <= 0:
            return _own_size(value)
        if isinstance(value, Mapping):
            found = cast(Mapping[Any, Any], value)
            return self._sum(list(islice(found.values(), MAX_ITEMS)), len(found), depth)
        if isinstance(value, list | tuple):
            items = cast("list[Any] | tuple[Any, ...]", value)
            return self._sum(items[:: math.ceil(len(items) / MAX_ITEMS) or 1], len(items), depth)
        if is_dataclass(value):
            parts = [getattr(value, field.name, None) for field in fields(value)]
            return self._sum(parts, len(parts), depth)
        parts: Any = getattr(value, "__dict__", None)
        if isinstance(parts, dict) and not isinstance(value, type):
            return self._weigh(parts, depth)
        num_bytes: Any = getattr(value, "nbytes", None)
        return num_bytes if isinstance(num_bytes, int) else _own_size(value)

    def _sum(self, some: Sequence[Any], num_items: int, depth: int) -> float:
        """The weight of that many items, of which these are some."""
        weights = sum(self.weigh(item, depth + 1) for item in some)
        return weights * num_items / len(some) if some else 0.0


def _own_size(value: Any) -> int:
    try:
        return sys.getsizeof(value)
    except Exception:
        return 0
