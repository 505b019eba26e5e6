"""Values: batches of any nesting, and the same with one leaf changed."""

import copy
import dataclasses
import struct
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

Point = namedtuple("Point", ["x", "y"])


@dataclasses.dataclass
class Box:
    low: Any
    high: Any


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Names(list):
    """A list that has an attribute beside its items."""

    def __init__(self, items: Any, note: Any) -> None:
        super().__init__(items)
        self.note = note


TORCH_DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.int8),
    *(torch.uint8, torch.bool, torch.float8_e4m3fn),
]
NUMPY_DTYPES = ["<f4", "<f8", "<i2", "<i8", "|u1", "|b1", "<c16", "<U3", "|S4", "<M8[s]"]
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
plain = st.one_of(
    st.none(), st.booleans(), st.integers(), FLOATS, st.text(max_size=5), st.binary(max_size=5), st.complex_numbers()
)


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape = draw(st.lists(st.integers(1, 4), max_size=3))
    tensor = torch.zeros(shape, dtype=draw(st.sampled_from(TORCH_DTYPES)))
    data = draw(st.binary(min_size=nbytes(tensor), max_size=nbytes(tensor)))
    if tensor.dtype is torch.bool:
        data = bytes(byte % 2 for byte in data)
    set_bytes(tensor, data)
    return tensor


@st.composite
def arrays(draw: Any) -> Any:
    array = np.zeros(draw(st.lists(st.integers(1, 4), max_size=3)), draw(st.sampled_from(NUMPY_DTYPES)))
    if array.dtype.kind in "fi":
        array.view(np.uint8 if array.ndim else array.dtype)[...] = draw(st.integers(0, 200))
    return array


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def set_bytes(tensor: torch.Tensor, data: bytes) -> None:
    if data:
        tensor.untyped_storage().copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage())


leaves = st.one_of(
    plain,
    tensors(),
    arrays(),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(np.int64, st.integers(0, 9)),
)
batches = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, inner),
        st.builds(Slotted, inner),
        st.builds(Names, st.lists(inner, max_size=2), inner),
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the leaves of a value are."""
    found = []
    for step, part in parts(value):
        found += places(part, (*path, step))
    return found or [path]


def parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [(("item", key), value[key]) for key in value]
    if isinstance(value, Names):
        return [*((("item", at), item) for at, item in enumerate(value)), (("attribute", "note"), value.note)]
    if isinstance(value, list | tuple):
        return [(("item", at), item) for at, item in enumerate(value)]
    if isinstance(value, Box):
        return [(("attribute", "low"), value.low), (("attribute", "high"), value.high)]
    return [(("attribute", "value"), value.value)] if isinstance(value, Slotted) else []


def with_other(value: Any, path: tuple[Any, ...], draw: Any) -> Any:
    """A copy in which the leaf in this place is another one."""
    if not path:
        return other(value, draw)
    (how, key), rest = path[0], path[1:]
    found = copy.copy(value)
    if how == "attribute":
        setattr(found, key, with_other(getattr(value, key), rest, draw))
        return found
    new = with_other(value[key], rest, draw)
    if isinstance(value, tuple):
        items = [*value[:key], new, *value[key + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    found[key] = new
    return found


def other(value: Any, draw: Any) -> Any:
    """Another leaf, as like it as can be."""
    if isinstance(value, torch.Tensor) and value.numel():
        return other_tensor(value, draw)
    if isinstance(value, np.ndarray):
        return value.astype("<f8") if value.dtype.str != "<f8" and value.dtype.kind in "fiub" else value[None]
    if isinstance(value, np.generic):
        return value.item() if draw(st.booleans()) else type(value)(value == 0)
    if isinstance(value, float):
        bits = bytearray(struct.pack("<d", value))
        bits[draw(st.integers(0, 7))] ^= 1
        return struct.unpack("<d", bits)[0]
    if isinstance(value, bool):
        return draw(st.sampled_from([not value, int(value), np.bool_(value)]))
    if isinstance(value, int):
        return draw(st.sampled_from([value + 1, float(value) if abs(value) < 2**53 else -value, str(value)]))
    if isinstance(value, str):
        return draw(st.sampled_from([value + "\0", value.encode(), [value]]))
    if isinstance(value, bytes):
        return draw(st.sampled_from([value + b"\0", bytearray(value)]))
    if isinstance(value, dict):
        return {**value, "new key": None}
    return draw(st.sampled_from([0, "", False])) if value is None else [value]


def other_tensor(value: torch.Tensor, draw: Any) -> torch.Tensor:
    kind = draw(st.sampled_from(["bit", "shape", "dtype", "grad"]))
    if kind == "shape":
        return value.reshape(1, *value.shape)
    if kind == "dtype":
        return value.view(torch.uint8) if value.dtype in (torch.int8, torch.float8_e4m3fn) else value.to(torch.int16)
    if kind == "grad" and value.is_floating_point():
        return value.clone().requires_grad_()
    found = value.clone()
    data = bytearray(bytes(found.untyped_storage()))
    data[draw(st.integers(0, len(data) - 1))] ^= 1
    set_bytes(found, bytes(data))
    return found
