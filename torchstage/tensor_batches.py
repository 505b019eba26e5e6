"""Tensor batches: a ``TensorDataset`` and a batch's indices in, the collated batch out, by one indexing of each tensor.

Guarantees: values, types, strides and errors are those of ``default_collate([dataset[i] for i in indices])``: whatever
is not plainly the same (other tensors than dense ones in the CPU's memory, other indices than ints from 0 on, a
``default_collate`` that was changed, any error) is left to just that.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data as torch_data
import torch.utils.data._utils.collate as torch_collate
from torch.utils.data import TensorDataset

_functions: dict[Any, Any] = vars(torch_collate)["default_collate_fn_map"]
_usual_functions = dict(_functions)  # as torch made it
_default_collate: Callable[[Any], Any] = vars(torch_data)["default_collate"]  # torch leaves it untyped

POSITIONS = {int, np.int64}  # the types of indices that mean the same alone and together
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
        tensors = cast(Any, self._dataset.tensors)
        if not (
            tensors
            and type(tensors) is tuple
            and type(indices) in (list, tuple)
            and POSITIONS.issuperset(map(type, indices))
            and _functions == _usual_functions
            and all(map(_is_plain, tensors))
        ):
            return None
        positions = torch.from_numpy(np.array(indices, dtype=np.int64))  # pyright: ignore[reportUnknownMemberType]
        batch = [tensor.index_select(0, positions) for tensor in tensors]  # a negative index is an error: see above
        # Tensors of size 1 somewhere may be contiguous with odd strides, which torch.stack has rules of its own for.
        alike = all(one.stride()[1:] == many.stride()[1:] for one, many in zip(tensors, batch, strict=True))
        return batch if alike and indices else None


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not getattr(tensor, "has_names", NO_NAMES)()
    )
