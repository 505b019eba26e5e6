"""Tensor batches: a ``TensorDataset`` and a batch's indices in, the collated batch out, by one indexing of each tensor.

Guarantees: values, types, strides and errors are those of ``default_collate([dataset[i] for i in indices])``: whatever
is not plainly the same (other tensors than dense ones in the CPU's memory, other indices than ints from 0 on, a
``default_collate`` that was changed, any error) is left to just that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
import torch.utils.data._utils.collate as torch_collate
from torch.utils.data import TensorDataset

_functions: dict[Any, Any] = vars(torch_collate)["default_collate_fn_map"]
_collate_tensors: Callable[..., Any] = vars(torch_collate)["collate_tensor_fn"]
_default_collate: Callable[[Any], Any] = vars(torch_data)["default_collate"]  # torch leaves it untyped

KINDS = (list, tuple)
POSITIONS = {int, np.int64}  # the types of indices that mean the same alone and together
MAX_SAMPLE_BYTES = 16 << 10  # larger ones: the time goes into copying, and 256 of them are a batch for reused memory
NO_NAMES: Callable[[], bool] = bool  # a torch without named tensors


class TensorBatches:
    """``batches(indices)``: the list of tensors that ``default_collate`` makes of these samples."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset

    def __call__(self, indices: Sequence[Any]) -> Any:
        try:
            batch = self._at_once(indices)
        except Exception:  # one by one tells which index it is, or that it is none
            batch = None
        if batch is not None:
            return batch
        return _default_collate([self._dataset[index] for index in indices])

    def _at_once(self, indices: Sequence[Any]) -> list[torch.Tensor] | None:
        tensors: tuple[torch.Tensor, ...] = self._dataset.tensors
        if not (
            indices
            and tensors
            and type(indices) in KINDS
            and type(tensors) in KINDS
            and POSITIONS.issuperset(map(type, indices))
            and _collates_as_torch_does()
            and all(map(_is_plain, tensors))
        ):
            return None
        positions = torch.from_numpy(np.array(indices, dtype=np.int64))  # pyright: ignore[reportUnknownMemberType]
        batch = [tensor.index_select(0, positions) for tensor in tensors]  # a negative index is an error: see above
        # Tensors of size 1 somewhere may be contiguous with odd strides, which torch.stack has rules of its own for.
        alike = all(one.stride()[1:] == many.stride()[1:] for one, many in zip(tensors, batch, strict=True))
        return batch if alike else None


def has_small_samples(dataset: TensorDataset) -> bool:
    """Whether taking many at once pays."""
    try:
        return sum(t.numel() // max(t.size(0), 1) * t.element_size() for t in dataset.tensors) <= MAX_SAMPLE_BYTES
    except Exception:  # what has no size is told by who takes samples of it
        return False


def _collates_as_torch_does() -> bool:
    """Whether users have put no function of their own where ``default_collate`` would use it for tuples of tensors."""
    return _functions.get(torch.Tensor) is _collate_tensors and not any(issubclass(tuple, kind) for kind in _functions)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dim() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not getattr(tensor, "has_names", NO_NAMES)()
    )
