"""Collate: samples in, a batch out; and where samples do not fit together, which one, in which field, and how.

Guarantees: the batch is what the user's ``collate_fn`` makes of the same list, in values, types and strides; only its
errors are added to.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data as torch_data
import torch.utils.data._utils.collate as torch_collate

from torchstage.buffers import MIN_BYTES, Ring
from torchstage.errors import add_note, file_of

_functions: dict[Any, Any] = vars(torch_collate)["default_collate_fn_map"]
_collate: Callable[..., Any] = vars(torch_collate)["collate"]
_collate_tensors: Callable[..., Any] = vars(torch_collate)["collate_tensor_fn"]
_default_collate: Callable[[Any], Any] = vars(torch_data)["default_collate"]  # torch leaves it untyped

MAX_LINES = 8  # of a diagnosis: the first few odd samples tell the story


def explained(
    collate_fn: Callable[[Any], Any], ring: Ring | None, dataset: Any = None
) -> Callable[[list[Any], Sequence[Any]], Any]:
    """``collate_fn`` that is told the dataset indices too: an error of torch's own ``default_collate`` gets a note, and
    what it makes of many tensors lies in the ring's memory, if there is one. ``dataset``: may tell a sample's file."""
    if collate_fn is not _default_collate:
        return lambda samples, indices: collate_fn(samples)
    function = collate_fn if ring is None else partial(_collate_into, ring)

    def collate(samples: list[Any], indices: Sequence[Any]) -> Any:
        try:
            return function(samples)
        except Exception as error:
            try:
                lines = diagnose(samples, [_named(dataset, index) for index in indices])
            except Exception:  # of samples stranger than it knows: the error itself matters more
                lines = []
            if lines:
                add_note(error, "torchstage: the samples of this batch do not fit together:\n  " + "\n  ".join(lines))
            raise

    return collate


def _collate_into(ring: Ring, samples: list[Any]) -> Any:
    """torch's own ``collate``, with our function for plain tensors where the user has put none of his own."""
    functions = dict(_functions)
    if functions.get(torch.Tensor) is _collate_tensors:
        functions[torch.Tensor] = partial(_stack_into, ring)
    return _collate(samples, collate_fn_map=functions)


def _stack_into(ring: Ring, tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """``torch.stack`` of large plain tensors into the ring's memory; of any others, and errors, as torch does it."""
    first = tensors[0]
    if first.numel() * first.element_size() * len(tensors) < MIN_BYTES or not all(
        type(tensor) is torch.Tensor
        and tensor.shape == first.shape
        and tensor.dtype == first.dtype
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and not tensor.is_quantized
        and not tensor.requires_grad
        for tensor in tensors
    ):
        return _collate_tensors(tensors, collate_fn_map=collate_fn_map)
    if _is_channels_last_too(first):  # torch chooses the strides of the stack by rules of its own
        return _collate_tensors(tensors, collate_fn_map=collate_fn_map)
    return torch.stack(list(tensors), 0, out=ring.empty((len(tensors), *first.shape), first.dtype))


def _is_channels_last_too(tensor: torch.Tensor) -> bool:
    formats = {3: torch.channels_last, 4: torch.channels_last_3d}
    memory_format = formats.get(tensor.dim())
    return memory_format is not None and tensor.unsqueeze(0).is_contiguous(memory_format=memory_format)


def _named(dataset: Any, index: Any) -> str:
    """What a user calls the sample."""
    try:
        file = file_of(dataset, index)
    except Exception:  # a property of the user's
        file = None
    return f"dataset index {index!r}" + (f" ({file})" if file else "")


def diagnose(samples: Sequence[Any], names: Sequence[str]) -> list[str]:
    """A line for each field that differs from what most samples of the batch have: which sample, field, shapes."""
    lines = list(_differences("sample", list(samples), list(names))) if samples else []
    return lines[:MAX_LINES] + ([f"... and {len(lines) - MAX_LINES} more"] if len(lines) > MAX_LINES else [])


def _differences(field: str, values: list[Any], names: list[str]) -> Iterator[str]:
    kinds = [_kind(value) for value in values]
    usual, num_usual = Counter(kinds).most_common(1)[0]
    for kind, name in zip(kinds, names, strict=True):
        if kind != usual:
            yield f"{field} of {name} is {kind}; {num_usual} of {len(values)} samples have {usual}"
    alike = [(value, name) for value, kind, name in zip(values, kinds, names, strict=True) if kind == usual]
    first = alike[0][0]
    keys: Any = ()
    if isinstance(first, Mapping):
        keys = cast("Mapping[Any, Any]", first).keys()
    elif isinstance(first, Sequence) and not isinstance(first, str | bytes):
        keys = range(len(cast("Sequence[Any]", first)))
    for key in keys:
        yield from _differences(f"{field}[{key!r}]", [value[key] for value, _ in alike], [name for _, name in alike])


def _kind(value: Any) -> str:
    """What must be the same for values to be collated: shape of a tensor, keys of a mapping, length of a sequence."""
    name: str = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray):
        shape: Any = cast("Any", value).shape
        return f"{name} of shape {tuple(shape)}"
    if isinstance(value, Mapping):
        return f"{name} with keys [{', '.join(sorted(map(repr, cast('Mapping[Any, Any]', value))))}]"
    if isinstance(value, bool | int | float):
        return "a number"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"{name} of length {len(cast('Sequence[Any]', value))}"
    return name
