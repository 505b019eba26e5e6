"""Collate: samples in, a batch out; and where samples do not fit together, which one, in which field, and how.

Guarantees: the batch is what the user's ``collate_fn`` makes of the same list; only its errors are added to.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data as torch_data

from torchstage.errors import add_note

_default_collate: Callable[[Any], Any] = vars(torch_data)["default_collate"]  # torch leaves it untyped

MAX_LINES = 8  # of a diagnosis: the first few odd samples tell the story


def explained(collate_fn: Callable[[Any], Any]) -> Callable[[list[Any], Sequence[Any]], Any]:
    """``collate_fn`` that is told the dataset indices too: an error of torch's own ``default_collate`` gets a note."""
    if collate_fn is not _default_collate:
        return lambda samples, indices: collate_fn(samples)

    def collate(samples: list[Any], indices: Sequence[Any]) -> Any:
        try:
            return collate_fn(samples)
        except Exception as error:
            try:
                lines = diagnose(samples, indices)
            except Exception:  # of samples stranger than it knows: the error itself matters more
                lines = []
            if lines:
                add_note(error, "torchstage: samples of this batch do not fit together:\n  " + "\n  ".join(lines))
            raise

    return collate


def diagnose(samples: Sequence[Any], indices: Sequence[Any]) -> list[str]:
    """A line for each field that differs from what most samples of the batch have: dataset index, field, shapes."""
    lines = list(_differences("sample", list(samples), list(indices))) if samples else []
    return lines[:MAX_LINES] + ([f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else [])


def _differences(field: str, values: list[Any], indices: list[Any]) -> Iterator[str]:
    kinds = [_kind(value) for value in values]
    usual, num_usual = Counter(kinds).most_common(1)[0]
    for kind, index in zip(kinds, indices, strict=True):
        if kind != usual:
            yield f"{field} of dataset index {index!r} is {kind}; {num_usual} of {len(values)} samples have {usual}"
    alike = [(value, index) for value, kind, index in zip(values, kinds, indices, strict=True) if kind == usual]
    first = alike[0][0]
    keys: Any = ()
    if isinstance(first, Mapping):
        keys = cast("Mapping[Any, Any]", first).keys()
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        keys = range(len(cast("Sequence[Any]", first)))
    for key in keys:
        yield from _differences(f"{field}[{key!r}]", [value[key] for value, _ in alike], [index for _, index in alike])


def _kind(value: Any) -> str:
    """What must be the same for values to be collated: shape of a tensor, keys of a mapping, length of a sequence."""
    name: str = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray):
        shape: Any = cast("Any", value).shape
        return f"{name} of shape {tuple(shape)}"
    if isinstance(value, Mapping):
        return f"{name} with keys {sorted(map(repr, cast('Mapping[Any, Any]', value)))}"
    if isinstance(value, bool | int | float):
        return "a number"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"{name} of length {len(cast('Sequence[Any]', value))}"
    return name
