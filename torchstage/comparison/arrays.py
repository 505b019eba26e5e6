"""Arrays: a tensor or NumPy array in, a leaf with a hash of each of its rows out; or the parts it is made of.

Guarantees: bytes are hashed as they lie in memory, so that -0.0 is not 0.0 and a NaN is equal only to the same NaN; the
value is not changed, and nothing is drawn or recorded for autograd.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from torchstage.comparison.leaf import Leaf, Numbers, Rows, Stored, digest_of, kind_of, shortened, type_name

MAX_ROWS = 1 << 16  # more are no samples of a batch: they are hashed as one
MAX_RAW_ROW_BYTES = 128  # a row that is kept as it is, so that its first other element can be shown
MAX_RAW_BYTES = 1 << 16  # of a tensor


@dataclass(frozen=True, slots=True)
class Store:
    """Where values that are compared with a tolerance are kept."""

    path: str
    file: BinaryIO

    @staticmethod
    def in_folder(folder: str, name: str) -> "Store":
        path = Path(folder, f"{name}.bin")
        return Store(str(path), path.open("wb"))

    def clear(self) -> None:
        self.file.seek(0)
        self.file.truncate()

    def put(self, data: memoryview, dtype: str, shape: tuple[int, ...]) -> Stored:
        start = self.file.tell()
        self.file.write(data)
        return Stored(self.path, start, len(data), dtype, shape)


def leaf_of_tensor(tensor: torch.Tensor, path: str, *, strides: bool, store: Store | None) -> Leaf | None:
    """None: it is no dense tensor with memory of its own: see ``parts_of_tensor``."""
    with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage]  # the only way to see what it holds
        kind: Any = type(tensor)
        if (
            tensor.layout is not torch.strided
            or tensor.is_nested
            or tensor.is_quantized
            or hasattr(kind, "__tensor_flatten__")
        ):
            return None
        words = [f"{str(tensor.dtype).removeprefix('torch.')} tensor of shape {list(tensor.shape)}"]
        if kind is not torch.Tensor:
            words.append(f"a {type_name(kind)}")
        if tensor.device.type != "cpu":
            words.append(f"on {tensor.device.type}")
        if tensor.requires_grad:
            words.append("requires_grad")
        if strides:
            words.append(f"strides {list(tensor.stride())}")
        what = ", ".join(words)
        if tensor.device.type == "meta":
            return Leaf(path, what, b"", "no values")
        plain = tensor.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg().contiguous()
        dtype, shape = str(plain.dtype).removeprefix("torch."), tuple(plain.shape)
        num_bytes = plain.numel() * plain.element_size()
        pointer = plain.data_ptr() if num_bytes else 0
        if num_bytes and not pointer:
            return None
        data = memoryview((ctypes.c_char * num_bytes).from_address(pointer) if num_bytes else b"").cast("B")
        is_float = plain.is_floating_point() or plain.is_complex()
        leaf = _leaf(path, what, data, dtype, shape, lambda: plain, store if is_float else None)
        del data
        return leaf


def leaf_of_array(array: Any, path: str, *, strides: bool, store: Store | None) -> Leaf:
    """Of a NumPy array without Python objects and without fields."""
    kind = kind_of(array)
    words = [f"{array.dtype.str} ({array.dtype.name}) array of shape {list(array.shape)}"]
    if kind is not np.ndarray:
        words.append(f"a {type_name(kind)}")
    if strides:
        words.append(f"strides {list(array.strides)}")
    plain = np.ascontiguousarray(array.view(np.ndarray)).reshape(array.shape)
    flat: Any = plain.reshape(-1).view(np.uint8)
    data = memoryview(flat) if plain.nbytes else memoryview(b"")
    numbers: Callable[[], torch.Tensor] | None = None
    if plain.dtype.kind in "biufc" and plain.dtype.isnative and plain.dtype.itemsize <= 16:
        numbers = lambda: _as_tensor(plain)  # noqa: E731  # one of two
    is_float = plain.dtype.kind in "fc" and numbers is not None and plain.dtype.itemsize <= 8
    return _leaf(
        path, ", ".join(words), data, plain.dtype.name, array.shape, numbers, store if is_float else None, is_numpy=True
    )


def _as_tensor(array: Any) -> torch.Tensor:
    kind = array.dtype.kind
    wide = array.astype(np.complex128 if kind == "c" else np.float64 if kind == "f" else np.int64)
    return torch.from_numpy(wide)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped


def _leaf(
    path: str,
    what: str,
    data: memoryview,
    dtype: str,
    shape: tuple[int, ...],
    numbers: Callable[[], torch.Tensor] | None,
    store: Store | None,
    *,
    is_numpy: bool = False,
) -> Leaf:
    stored = None if store is None else store.put(data, f"{'numpy' if is_numpy else 'torch'} {dtype}", shape)
    count = shape[0] if shape else 0
    if not shape or not 0 < count <= MAX_ROWS or not len(data):
        return Leaf(path, what, digest_of(data), _value(numbers, shape), stored=stored)
    size = len(data) // count
    digests = [digest_of(data[row * size : (row + 1) * size]) for row in range(count)]
    rows = Rows(count, b"".join(digests), _words(data, size, dtype, shape, numbers))
    return Leaf(path, what, digest_of(*digests), "", rows, stored=stored)


def _value(numbers: Callable[[], torch.Tensor] | None, shape: tuple[int, ...]) -> str:
    if numbers is None or shape:
        return ""
    try:
        return shortened(repr(numbers().item()))
    except (RuntimeError, TypeError):
        return ""


def _words(
    data: memoryview, size: int, dtype: str, shape: tuple[int, ...], numbers: Callable[[], torch.Tensor] | None
) -> "tuple[str, ...] | Numbers":
    if numbers is None:
        return tuple(bytes(data[row * size : row * size + 16]).hex() for row in range(shape[0]))
    try:
        limits = _limits(numbers())
    except (RuntimeError, TypeError):  # a dtype that torch cannot count with
        return tuple(bytes(data[row * size : row * size + 16]).hex() for row in range(shape[0]))
    raw = bytes(data) if size <= MAX_RAW_ROW_BYTES and len(data) <= MAX_RAW_BYTES else None
    return Numbers(limits, raw, dtype, shape)


def _limits(values: torch.Tensor) -> bytes:
    """As float64 [rows, 3]: smallest, largest, mean of each row."""
    if values.is_complex():
        values = values.abs()
    values = values.reshape(values.shape[0], -1)
    if not values.is_floating_point() or values.element_size() != 4:
        values = values.to(torch.float64)
    found = torch.stack([values.amin(1).double(), values.amax(1).double(), values.mean(1, dtype=torch.float64)], 1)
    return found.numpy().tobytes()


def parts_of_tensor(tensor: torch.Tensor) -> tuple[str, dict[str, Any]] | None:
    """What a tensor is made of that has no memory of its own, and its description; None: it is not known how."""
    known = cast(Any, tensor)
    name = type_name(cast(type, known.__class__))
    dtype, layout = str(tensor.dtype).removeprefix("torch."), str(tensor.layout).removeprefix("torch.")
    what = f"{name}, {dtype}, {layout}, shape {[str(n) for n in tensor.shape] if not tensor.is_nested else 'nested'}"
    if tensor.requires_grad:
        what += ", requires_grad"
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, context = known.__tensor_flatten__()
        parts = {each: getattr(known, each) for each in names}
        return what, {**parts, "context": _plain_context(context)}
    with torch.no_grad():
        if tensor.is_nested:
            return what, {str(at): part for at, part in enumerate(cast("list[Any]", known.unbind()))}
        if tensor.is_quantized:
            scheme = known.qscheme()
            affine = (
                {"scales": known.q_per_channel_scales(), "zero_points": known.q_per_channel_zero_points()}
                if scheme in (torch.per_channel_affine, torch.per_channel_affine_float_qparams)
                else {"scale": known.q_scale(), "zero_point": known.q_zero_point()}
            )
            return f"{what}, {scheme}", {"int_repr": known.int_repr(), **affine}
        if layout == "sparse_coo":
            what += ", coalesced" if known.is_coalesced() else ", not coalesced"
            return what, {"indices": known._indices(), "values": known._values()}
        if layout in ("sparse_csr", "sparse_bsr"):
            parts = {"crow_indices": known.crow_indices(), "col_indices": known.col_indices()}
            return what, {**parts, "values": known.values()}
        if layout in ("sparse_csc", "sparse_bsc"):
            parts = {"ccol_indices": known.ccol_indices(), "row_indices": known.row_indices()}
            return what, {**parts, "values": known.values()}
        if known.is_mkldnn:
            return what, {"dense": known.to_dense()}
    return None


def _plain_context(context: Any) -> Any:
    """Sizes that are symbols are told by their words."""
    return repr(context) if context is not None else None
