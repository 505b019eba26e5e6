"""Changes: a graph of objects in, what a sample rebinds or overwrites in them out; and put back as it was.

Guarantees: calls no user code; equality is asked of plain values only; a cache that only grows is no change.
"""

import mmap
import time
import types
import zlib
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from torchstage.graph import Graph, Node
from torchstage.looking import (
    cells_of,
    dict_of,
    dict_type_of,
    is_a,
    is_cached_property,
    is_for_all,
    is_of_a_library,
    is_plain,
    items_of,
    maxlen_of,
    names_in,
    own_attributes,
    slots_of,
    the_deque,
    the_dict,
    the_list,
    the_set,
    type_of,
)

MAX_COMPARED = 100_000  # elements of a container that are remembered one by one; of longer ones only the number
MAX_BYTES_COMPARED = 4 * 1024 * 1024  # of an array: a larger one is compared in as many bytes, spread over it
MAX_BYTES_LOOKED_AT = 256 * 1024 * 1024  # a larger one is data, not a place to work in
MAX_BYTES_KEPT = 4 * 1024 * 1024  # of all arrays together: as far as it goes, they are kept, to be put back
MAX_SECONDS = 0.05  # of CPU time


@dataclass(frozen=True, slots=True)
class _Before:
    """What one object held before the sample."""

    node: Node
    attributes: dict[str, Any]
    content: Any  # of a container or array: a copy, its length, or its checksum
    kept: np.ndarray[Any, Any] | None = None


class Snapshot:
    """What the objects of a graph hold now: attributes, elements, bytes of arrays; by reference where they can be.

    Bounded in CPU time and in bytes kept: what lies beyond is not compared.
    """

    def __init__(self, graph: Graph, *, is_own: bool = True) -> None:
        special = {id(found.value) for found in (*graph.handles, *graph.generators)}
        stop = time.thread_time() + MAX_SECONDS
        left = MAX_BYTES_KEPT
        self._before: list[_Before] = []
        for id_, node in graph.nodes.items():
            if time.thread_time() > stop:
                break
            is_held = any(link == "held" for _, link in node.holders)  # a cache of functools guards itself
            if id_ not in special and not is_held and not is_a(node.value, type) and graph.is_own(id_) is is_own:
                before = _remember(node, left)
                left -= 0 if before.kept is None else before.kept.nbytes
                self._before.append(before)

    def changed(self) -> list[Node]:
        """The objects whose attributes were rebound or elements overwritten since: what threads would fight over."""
        return [before.node for before in self._before if _has_changed(before)]

    def changed_paths(self) -> list[str]:
        """The attributes that were rebound since, and the containers and arrays whose elements were overwritten."""
        return [path for before in self._before if _has_changed(before) for path in _paths(before)]

    def put_back(self, also: Collection[int] = ()) -> None:
        """Give every changed object, and those with an id in ``also``, what it held before, by its type's methods."""
        for before in self._before:
            if id(before.node.value) in also or _has_changed(before):
                _restore(before)


class ClassSnapshot:
    """What the classes of a graph's objects hold now, of what may change: all their objects share it, and so do all
    copies of these."""

    def __init__(self, graph: Graph) -> None:
        self._attributes: dict[int, tuple[str, Any, dict[str, Any]]] = {}
        self._before: list[_Before] = []
        self._globals: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        stop = time.thread_time() + MAX_SECONDS
        for node in graph.nodes.values():
            if type(node.value) is types.FunctionType and (names := names_in(node.value.__code__, "STORE_GLOBAL")):
                known = node.value.__globals__
                self._globals.append((node.path, known, {name: known[name] for name in names if name in known}))
            for cls in type_of(node.value).__mro__:
                if id(cls) not in self._attributes and time.thread_time() < stop:
                    self._attributes[id(cls)] = (node.path, cls, _changeable(cls))
                    self._before += _contents(cls, node.path)

    def changed_paths(self) -> list[str]:
        """Paths of class attributes and global variables that were set, and of containers, arrays and closures in them
        that were overwritten since. A global that was None is one that is filled once."""
        found = [before.node.path for before in self._before if _has_changed(before)]
        for path, cls, before in self._attributes.values():
            now = _changeable(cls)
            found += [f"{path}.{name}" for name, old in before.items() if name in now and _is_other(old, now[name])]
        for path, now, before in self._globals:
            set_again = (name for name, old in before.items() if old is not None and _is_other(old, now.get(name)))
            found += [f"{path}.<global>.{name}" for name in set_again]
        return found


def _changeable(cls: Any) -> dict[str, Any]:
    """Attributes of a class of the user's that are neither functions nor other machinery."""
    if is_of_a_library(cls):
        return {}
    kept = {name: inner for name, inner in list(cls.__dict__.items()) if not name.startswith("__")}
    return {name: inner for name, inner in kept.items() if not hasattr(type_of(inner), "__get__")}


def _contents(cls: Any, path: str) -> list[_Before]:
    if is_of_a_library(cls):
        return []
    kinds = (list, dict, set, deque, np.ndarray, torch.Tensor, types.FunctionType)
    own = [(name, inner) for name, inner in list(cls.__dict__.items()) if is_a(inner, *kinds) and name != "__dict__"]
    return [_remember(Node(f"{path}.{name}", inner), 0) for name, inner in own]


def _remember(node: Node, max_bytes_kept: int) -> _Before:
    value = node.value
    if type(value) is types.FunctionType:
        return _Before(node, cells_of(value), None)
    if is_a(value, types.MethodType):
        return _Before(node, {}, None)
    if _is_array(value):
        array = _as_array(value)
        kept = None if array is None or array.nbytes > max_bytes_kept else array.copy()
        return _Before(node, {}, _checksum(array), kept)
    return _Before(node, {**own_attributes(value), **slots_of(value)}, _content(value))


def _is_array(value: Any) -> bool:
    return type(value) in (np.ndarray, torch.Tensor, torch.nn.Parameter, bytearray)


def _content(value: Any) -> Any:
    """The elements of a container that may change; of a long one, their number."""
    for kind in (the_list, the_deque, the_set):
        if is_a(value, kind):
            return kind.__len__(value) if kind.__len__(value) > MAX_COMPARED else list(kind.__iter__(value))
    if is_a(value, dict):
        return the_dict.__len__(value) if the_dict.__len__(value) > MAX_COMPARED else items_of(value)
    return value.tell() if type(value) is mmap.mmap else None


def _has_changed(before: _Before) -> bool:
    value = before.node.value
    if type(value) is types.FunctionType:
        return _is_rebound(before.attributes, cells_of(value))
    if _is_array(value):
        return before.content != _checksum(_as_array(value))
    now = {**own_attributes(value), **slots_of(value)}
    caches = {name for name in now.keys() - before.attributes.keys() if is_cached_property(value, name)}
    if _is_rebound(before.attributes, {name: inner for name, inner in now.items() if name not in caches}):
        return True
    if type(value) is mmap.mmap:
        return before.content != value.tell()
    return before.content is not None and _is_overwritten(before.content, _content(value), value)


def _paths(before: _Before) -> list[str]:
    value = before.node.value
    now = cells_of(value) if type(value) is types.FunctionType else {**own_attributes(value), **slots_of(value)}
    old, nothing = before.attributes, object()
    names = [name for name in {**old, **now} if _is_other(old.get(name, nothing), now.get(name, nothing))]
    return [f"{before.node.path}.{name}" for name in names] or [before.node.path]


def _is_rebound(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return before.keys() != now.keys() or any(_is_other(old, now[name]) for name, old in before.items())


def _is_other(old: Any, new: Any) -> bool:
    if old is new:
        return False
    return not (type(old) is type(new) and is_plain(old) and old == new)


def _is_overwritten(before: Any, now: Any, value: Any) -> bool:
    """Whether an element is gone or another one. New elements alone are a cache, which threads may share."""
    if isinstance(before, int) or isinstance(now, int):
        return _length(now) < _length(before)
    if is_a(value, set):
        return not {id(inner) for inner in before} <= {id(inner) for inner in now}
    if is_a(value, dict):
        pairs = zip(cast(list[Any], before), cast(list[Any], now), strict=False)
        return len(now) < len(before) or any(_is_other(a, c) or _is_other(b, d) for (a, b), (c, d) in pairs)
    is_bounded = is_a(value, deque) and maxlen_of(value) is not None
    if is_bounded and len(now) != len(before):
        return True
    return len(now) < len(before) or any(_is_other(old, new) for old, new in zip(before, now, strict=False))


def _length(content: Any) -> int:
    return content if isinstance(content, int) else len(content)


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """The memory of an array or CPU tensor, without a copy; None if it cannot be looked at so."""
    try:
        if type(value) is bytearray:
            return np.frombuffer(value, np.uint8)
        if is_for_all(value):
            return None
        array: Any = value if type(value) is np.ndarray else torch.Tensor.detach(value).numpy()
        return None if array.nbytes > MAX_BYTES_LOOKED_AT else array
    except Exception:  # on a device, sparse, conjugated, of a dtype that NumPy does not know
        return None


def _checksum(array: np.ndarray[Any, Any] | None) -> int | None:
    if array is None:
        return None
    if array.dtype.hasobject:
        return zlib.crc32(b"".join(id(inner).to_bytes(8, "little") for inner in array.flat[:MAX_COMPARED]))
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    step = -(-data.size // MAX_BYTES_COMPARED) if data.size else 1
    return zlib.crc32(np.ascontiguousarray(data[::step]).tobytes())


def _restore(before: _Before) -> None:
    value = before.node.value
    if type(value) is types.FunctionType:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if name in before.attributes:
                cell.cell_contents = before.attributes[name]
        return
    if before.kept is not None:
        array = _as_array(value)
        if type(value) is bytearray:
            value[:] = before.kept.tobytes()
        elif array is not None and array.shape == before.kept.shape and array.flags.writeable:
            array[...] = before.kept
        return
    slots = slots_of(value)
    for name in slots.keys() - before.attributes.keys():
        object.__delattr__(value, name)
    for name in slots.keys() & before.attributes.keys():
        if slots[name] is not before.attributes[name]:
            object.__setattr__(value, name, before.attributes[name])
    own = dict_of(value)
    if own is not None:
        for name in own.keys() - before.attributes.keys():
            if not is_cached_property(value, name):
                del own[name]
        for name, old in before.attributes.items():
            if (name in own or name not in slots) and own.get(name) is not old:
                own[name] = old
    content = before.content
    if not isinstance(content, list):
        return
    if is_a(value, list):
        the_list.__setitem__(value, slice(None), content)
    elif is_a(value, deque):
        the_deque.clear(value)
        the_deque.extend(value, content)
    elif is_a(value, dict):
        kind = dict_type_of(value)
        kind.clear(value)
        entries = cast("list[tuple[Any, Any]]", content)
        for key, inner in entries:
            kind.__setitem__(value, key, inner)
    elif is_a(value, set):
        the_set.clear(value)
        the_set.update(value, content)
