"""Fingerprint: a batch in, its leaves with their paths out, containers before what is in them.

Guarantees: every value that can be reached is part of it: types, dtypes, shapes, lengths, keys and their order, bytes.
What is compared by pickle or by its words says so; what cannot be compared at all is never equal to anything.
"""

import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import os
import pathlib
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from torchstage.comparison.arrays import Store, leaf_of_array, leaf_of_tensor, parts_of_tensor
from torchstage.comparison.leaf import Leaf, Rows, digest_of, digest_of_leaves, kind_of, shortened, type_name

HEAP_TYPE = 1 << 9  # a class made in Python, or a late one of C
POINTER_BYTES = struct.calcsize("P")
MAX_DEPTH = 200  # of nesting: deeper, Python's own stack ends first
SPOKEN = {  # values of exactly these types are their words
    *(range, decimal.Decimal, fractions.Fraction, uuid.UUID, type(Ellipsis), type(NotImplemented)),
    *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
}
MAX_WORDS = 256  # items of a list that are kept in words
MAX_ITEMS = 1 << 16  # of a list whose first other item is told


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of one batch. ``digest``: of all leaves, but for what is compared with a tolerance."""

    digest: bytes
    leaves: tuple[Leaf, ...]


def fingerprint(batch: Any, *, strides: bool = False, store: Store | None = None) -> Fingerprint:
    """``store``: where floating-point values go that are compared with a tolerance."""
    walk = _Walk(strides, store)
    walk.see(batch, "")
    return Fingerprint(digest_of_leaves(walk.leaves), tuple(walk.leaves))


class _Walk:
    def __init__(self, strides: bool, store: Store | None) -> None:
        self.leaves: list[Leaf] = []
        self._strides, self._store = strides, store
        self._above: list[int] = []  # what holds what is looked at now

    def see(self, value: Any, path: str) -> None:
        encoded = _plain(value)
        if encoded is not None:
            words = shortened(repr(value)) if type(value) is not bytes else shortened(repr(value[:64]))
            self.leaves.append(Leaf(path, type_name(kind_of(value)), digest_of(encoded), words))
            return
        if id(value) in self._above or len(self._above) > MAX_DEPTH:
            at = self._above.index(id(value)) if id(value) in self._above else -1
            self._cannot(value, path) if at < 0 else self._put(path, f"what holds it, {len(self._above) - at} up")
            return
        self._above.append(id(value))
        try:
            self._see_parts(value, path)
        finally:
            self._above.pop()

    def _see_parts(self, value: Any, path: str) -> None:
        kind = kind_of(value)
        if isinstance(value, torch.Tensor):
            self._see_tensor(value, path)
        elif isinstance(value, np.ndarray):
            self._see_array(value, path)
        elif isinstance(value, np.generic) and not cast(Any, value).dtype.hasobject:
            scalar = cast(Any, value)
            self._put(path, f"{type_name(kind)} ({scalar.dtype.str})", scalar.tobytes(), shortened(repr(scalar)))
        elif isinstance(value, enum.Enum):
            self._put(path, type_name(kind), f"{value.name} {value.value!r}".encode(), str(value))
        elif isinstance(value, Mapping):
            self._see_mapping(cast("Mapping[Any, Any]", value), path)
        elif isinstance(value, list | tuple | collections.deque):
            self._see_sequence(cast("list[Any] | tuple[Any, ...]", value), path)
        elif isinstance(value, set | frozenset):
            items = sorted(self._apart(item) for item in cast("set[Any]", value))
            self._put(
                path, f"{type_name(kind)} of {len(items)}", b"".join(items), shortened(_safe_repr(cast(Any, value)))
            )
            self._see_attributes(value, path)
        elif _is_picture(value):
            self._see_picture(value, path)
        else:
            self._see_object(value, path)

    def _put(self, path: str, what: str, data: bytes = b"", shown: str = "", how: str = "") -> None:
        self.leaves.append(Leaf(path, what, digest_of(data), shown, how=how))

    def _apart(self, value: Any) -> bytes:
        """The hash of a value that has no path of its own."""
        walk = _Walk(self._strides, None)
        walk._above = list(self._above)
        walk.see(value, "")
        return digest_of_leaves(walk.leaves)

    def _see_tensor(self, tensor: torch.Tensor, path: str) -> None:
        try:
            leaf = leaf_of_tensor(tensor, path, strides=self._strides, store=self._store)
            parts = parts_of_tensor(tensor) if leaf is None else None
        except (RuntimeError, TypeError, NotImplementedError):  # a tensor of another library's own kind
            leaf = parts = None
        if leaf is not None:
            self.leaves.append(leaf)
        elif parts is not None:
            self._put(path, parts[0])
            for name, part in parts[1].items():
                self.see(part, f"{path}.{name}")
        else:
            self._pickled(tensor, path)
        if not hasattr(kind_of(tensor), "__tensor_flatten__"):  # else its parts are all that there is
            self._see_attributes(tensor, path)

    def _see_array(self, array: Any, path: str) -> None:
        name = f"{array.dtype} array of shape {list(array.shape)}, a {type_name(kind_of(array))}"
        if isinstance(array, np.ma.MaskedArray):
            masked = cast(Any, array)
            self._put(path, f"{name}, fill_value {masked.fill_value!r}")
            self.see(np.ma.getdata(masked), f"{path}.data")
            self.see(np.ma.getmaskarray(masked), f"{path}.mask")
        elif array.dtype.names:
            self._put(path, name)
            for field in array.dtype.names:
                self.see(array[field], f"{path}[{field!r}]")
        elif array.dtype.hasobject or array.dtype.kind == "T":  # Python objects, strings of any length
            self._put(path, name)
            for at, item in enumerate(array.reshape(-1).tolist()):
                self.see(item, f"{path}.flat[{at}]")
        else:
            self.leaves.append(leaf_of_array(array, path, strides=self._strides, store=self._store))
        but = ("_fill_value", "_basedict", "_mask", "_sharedmask") if isinstance(array, np.ma.MaskedArray) else ()
        self._see_attributes(array, path, but=("_mmap",) if isinstance(array, np.memmap) else but)

    def _see_mapping(self, value: Mapping[Any, Any], path: str) -> None:
        keys = list(value)
        kind = f"{type_name(kind_of(value))} of {len(keys)}"
        hashes = [self._apart(key) for key in keys]
        self._put(path, kind, digest_of(*hashes), "keys " + shortened(", ".join(map(repr, keys))))
        for key in keys:
            self.see(value[key], f"{path}[{key!r}]")
        self._see_attributes(value, path, but=("data",) if isinstance(value, collections.UserDict) else ())

    def _see_sequence(self, value: list[Any] | tuple[Any, ...], path: str) -> None:
        kind = type_name(kind_of(value))
        is_own = type(value) in (list, tuple)
        types_of_items = {kind_of(item) for item in value}
        encoded: list[bytes | None] = [_plain(item) for item in value] if is_own and len(types_of_items) == 1 else []
        known: list[bytes] = [one for one in encoded if one is not None]
        if known and len(known) == len(encoded):
            of = type_name(types_of_items.pop())
            digests = list(map(digest_of, known))
            words = tuple(shortened(repr(item[:64] if of in ("str", "bytes") else item)) for item in value[:MAX_WORDS])
            rows = Rows(len(known), b"".join(digests), words) if len(known) <= MAX_ITEMS else None
            what = f"{kind} of {len(value)} {of}"
            self.leaves.append(Leaf(path, what, digest_of(*digests), "", rows, kind=of))
            return
        of = ", ".join(sorted({type_name(each) for each in types_of_items}))
        self._put(path, f"{kind} of {len(value)}", shown=f"of {shortened(of)}" if of else "")
        names: Any = getattr(value, "_fields", None)
        is_named = isinstance(names, tuple) and len(cast("tuple[Any, ...]", names)) == len(value)
        for at, item in enumerate(value):
            self.see(item, f"{path}.{names[at]}" if is_named else f"{path}[{at}]")
        if not is_own:
            self._see_attributes(value, path)

    def _see_picture(self, image: Any, path: str) -> None:
        self._put(path, f"{type_name(kind_of(image))}, mode {image.mode}, {image.width} x {image.height}")
        palette: Any = image.getpalette("RGBA") if image.mode in ("P", "PA") else None
        self.see(palette, f"{path}.palette")
        self.see(np.frombuffer(image.tobytes(), np.uint8), f"{path}.pixels")
        self.see(dict(image.info), f"{path}.info")

    def _see_object(self, value: Any, path: str) -> None:
        kind = kind_of(value)
        base = next((each for each in (int, float, str, bytes) if isinstance(value, each)), None)
        if base is not None:  # a class of its own
            self._put(path, type_name(kind), _ENCODERS[base](value), shortened(_safe_repr(value)))
            self._see_attributes(value, path)
        elif kind in (bytearray, memoryview):
            view = memoryview(cast(Any, value))
            form, data = f" {view.format} {view.shape}" if kind is memoryview else "", view.tobytes()
            self._put(path, f"{type_name(kind)} of {len(data)}{form}", data, shortened(repr(data[:64])))
        elif kind in SPOKEN:
            self._put(path, type_name(kind), repr(value).encode(), shortened(repr(value)))
        elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
            self._pickled(value, path)
        elif _is_of_attributes(kind):
            self._put(path, type_name(kind))
            self._see_attributes(value, path)
        else:
            self._pickled(value, path)

    def _see_attributes(self, value: Any, path: str, but: Iterable[str] = ()) -> None:
        """What an object holds beside what was looked at."""
        found: dict[str, Any] = dict(getattr(value, "__dict__", None) or {})
        for kind in kind_of(value).__mro__:
            for name in slots_of(kind):
                if hasattr(value, name):
                    found.setdefault(name, getattr(value, name))
        for name in but:
            found.pop(name, None)
        for name, each in found.items():
            self.see(each, f"{path}.{name}")

    def _pickled(self, value: Any, path: str) -> None:
        name = type_name(kind_of(value))
        try:
            # Twice: what is one object or two equal ones before does not tell afterwards.
            data = pickle.dumps(pickle.loads(pickle.dumps(value, protocol=5)), protocol=5)
        except Exception:
            self._cannot(value, path)
            return
        self._put(path, name, data, shortened(_safe_repr(value)), how="pickle")

    def _cannot(self, value: Any, path: str) -> None:
        words = f"cannot be compared: neither pickled nor looked into ({shortened(_safe_repr(value))})"
        self._put(path, type_name(kind_of(value)), os.urandom(16), words, how="nothing")


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # the user's own
        return f"its repr raises {type(error).__name__}"


_ENCODERS: dict[type, Callable[[Any], bytes]] = {  # none asks a method that a class of the user's may have replaced
    bool: lambda value: b"1" if value else b"0",
    int: lambda value: hex(value).encode(),
    float: lambda value: struct.pack("<d", value),
    complex: lambda value: struct.pack("<dd", value.real, value.imag),
    str: lambda value: str.encode(value, errors="surrogatepass"),
    bytes: lambda value: memoryview(value).tobytes(),
    type(None): lambda value: b"",
}


def _plain(value: Any) -> bytes | None:
    """The bytes of a plain value of Python's own; None: it is none."""
    encode = _ENCODERS.get(kind_of(value))
    return None if encode is None else encode(value)


def _is_picture(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _is_of_attributes(kind: type) -> bool:
    """Whether all that its objects hold are attributes: a class in Python, pickled in the usual way. Classes of C may
    hold more: their objects are larger than their attributes."""
    own: Any = kind
    return (
        all(each.__flags__ & HEAP_TYPE for each in kind.__mro__ if each is not object)
        and kind.__basicsize__ == object.__basicsize__ + POINTER_BYTES * _num_pointers(kind)
        and kind.__itemsize__ == 0
        and own.__reduce_ex__ is object.__reduce_ex__
        and own.__reduce__ is object.__reduce__
        and getattr(own, "__getstate__", None) is getattr(object, "__getstate__", None)
        and not hasattr(own, "__getnewargs_ex__")
        and kind not in copyreg.dispatch_table
    )


def _num_pointers(kind: type) -> int:
    """To attributes, weak references, and what is in slots."""
    slots = [name for each in kind.__mro__ for name in slots_of(each)]
    return len(slots) + (kind.__weakrefoffset__ > 0) + (kind.__dictoffset__ > 0)


def slots_of(kind: type) -> list[str]:
    """The attributes that this class, not one that it is made of, keeps in slots."""
    slots: Any = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    prefix = "_" + kind.__name__.lstrip("_")
    is_private = [name.startswith("__") and not name.endswith("__") for name in names]
    full = [prefix + name if private else name for name, private in zip(names, is_private, strict=True)]
    return [name for name in full if name not in ("__dict__", "__weakref__")]
