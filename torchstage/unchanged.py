"""Unchanged: what samples are made with in; whether anybody has changed it since, out.

Objects are looked at as ``changes`` does after a first sample, but what may be the user's doing counts here: one more
element, one more attribute.

Guarantees: calls no user code; equality is asked of plain values only; bounded in CPU time: what was not looked at in
that time, nearest first, is not compared.
"""

import operator
import time
import types
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from torchstage.graph import Graph
from torchstage.looking import (
    cells_of,
    is_a,
    is_of_a_library,
    is_plain,
    names_in,
    own_attributes,
    slots_of,
    the_deque,
    the_dict,
    the_list,
    the_set,
    type_of,
)
from torchstage.search import Search

MAX_SEARCH_SECONDS = 0.01  # of CPU time, once an epoch: a torchvision pipeline takes 3 ms
MAX_SECONDS = 0.005  # likewise, to remember; comparing takes less
MAX_ELEMENTS = 50_000  # of a container that are compared one by one
NUM_SOME = 10_000  # elements of a longer list, from all over it
MAX_BYTES = 1024 * 1024  # of an array that are compared
NUM_SOME_BYTES = 64 * 1024  # of a larger one, likewise: each costs as much as the line of memory that it lies in
NO_VALUE = object()


class Held:
    """What the objects that samples are made with hold at this moment: attributes, elements, bytes of arrays; and
    variables of modules that the users' functions name."""

    def __init__(self, **roots: Any) -> None:
        graph = Search(is_first=False, max_seconds=MAX_SEARCH_SECONDS).run(**roots)
        stop = time.thread_time() + MAX_SECONDS
        self._attributes: list[tuple[str, Any, dict[str, Any]]] = []
        self._contents: list[tuple[str, Any, Any]] = []
        for path, value in _looked_at(graph):
            if time.thread_time() > stop:
                break
            self._attributes.append((path, value, _attributes_of(value)))
            content = _content_of(value)
            if content is not None:
                self._contents.append((path, value, content))

    def rebound(self) -> str | None:
        """The first attribute or variable that is another object now, by the path that leads there."""
        for path, value, before in self._attributes:
            now = _attributes_of(value)
            if now.keys() != before.keys() or any(_is_other(one, now[name]) for name, one in before.items()):
                names = [*before, *(name for name in now if name not in before)]
                return path + next(n for n in names if _is_other(before.get(n, NO_VALUE), now.get(n, NO_VALUE)))
        return None

    def changed(self) -> str | None:
        """The first thing that is another one now."""
        path = self.rebound()
        if path is not None:
            return path
        return next((path for path, value, before in self._contents if _has_other(value, before)), None)


def _looked_at(graph: Graph) -> Iterator[tuple[str, Any]]:
    """The objects that samples are made with, then their classes. Generators and handles go on by themselves."""
    special = {id(found.value) for found in (*graph.handles, *graph.generators)}
    classes: dict[int, tuple[str, Any]] = {}
    for id_, node in graph.nodes.items():
        if id_ in special or any(link == "held" for _, link in node.holders):
            continue
        yield node.path, node.value
        if not is_a(node.value, type):
            for kind in type_of(node.value).__mro__:
                if id(kind) not in classes and not is_of_a_library(kind):
                    classes[id(kind)] = f"{node.path}.<class>", kind
    yield from classes.values()


def _attributes_of(value: Any) -> dict[str, Any]:
    """What it holds by name, with the character that stands before the name in a path."""
    if type(value) is types.FunctionType:
        held = {f".<closure>.{name}": inner for name, inner in cells_of(value).items()}
        return held | _variables_of(value)
    if is_a(value, types.MethodType):
        return {}
    if not is_a(value, type):
        return {f".{name}": inner for name, inner in {**own_attributes(value), **slots_of(value)}.items()}
    held = dict[str, Any]()
    for name, inner in list(value.__dict__.items()):
        if not name.startswith("__") or type(inner) is types.FunctionType:
            held[f".{name}"] = inner
        if type(inner) is types.FunctionType:
            held |= _variables_of(inner)
    return held


def _variables_of(function: Any) -> dict[str, Any]:
    """The variables of its module that its code reads."""
    known = function.__globals__
    names = names_in(function.__code__, "LOAD_GLOBAL")
    return {f".<global>.{name}": known[name] for name in names if name in known}


def _content_of(value: Any) -> Any:
    """What it holds by place. None: nothing."""
    if type(value) in (np.ndarray, torch.Tensor, torch.nn.Parameter, bytearray):
        return _checksum(value)
    for kind in (the_list, the_deque, the_set, the_dict):
        if is_a(value, kind):
            try:
                return _elements(kind, value)
            except RuntimeError:  # it changes just now
                return 0, [NO_VALUE]
    return None


def _elements(kind: Any, value: Any) -> tuple[int, list[Any]]:
    """Its length, and the elements that are compared."""
    length: int = kind.__len__(value)
    if kind is the_dict:
        return length, [*islice(the_dict.keys(value), MAX_ELEMENTS), *islice(the_dict.values(value), MAX_ELEMENTS)]
    if kind is the_list and length > MAX_ELEMENTS:
        return length, the_list.__getitem__(value, slice(None, None, -(-length // NUM_SOME)))
    return length, list(islice(kind.__iter__(value), MAX_ELEMENTS))


def _has_other(value: Any, before: Any) -> bool:
    now: Any = _content_of(value)
    if type(before) is not tuple or type(now) is not tuple:
        return type_of(now) is not type_of(before) or bool(now != before)
    length, elements = cast("tuple[int, list[Any]]", before)
    length_now, elements_now = cast("tuple[int, list[Any]]", now)
    if length != length_now or len(elements) != len(elements_now):
        return True
    is_whole = not (elements and elements[0] is NO_VALUE)
    if is_whole and all(map(operator.is_, elements, elements_now)):  # mostly, and in C
        return False
    return any(map(_is_other, elements, elements_now))


def _is_other(one: Any, other: Any) -> bool:
    if one is other:
        return one is NO_VALUE
    return not (type(one) is type(other) and is_plain(one) and one == other)


def _checksum(value: Any) -> int | None:
    try:
        array: Any = value
        if type(value) is bytearray:
            array = np.frombuffer(value, np.uint8)
        elif type(value) is not np.ndarray:
            if value.device.type != "cpu":
                return None
            array = torch.Tensor.detach(value).numpy()
        if array.dtype.hasobject:
            return zlib.crc32(b"".join(id(inner).to_bytes(8, "little") for inner in array.flat[:MAX_ELEMENTS]))
        step = 1 if array.nbytes <= MAX_BYTES else -(-array.nbytes // NUM_SOME_BYTES)
        array = array if array.flags.c_contiguous else array.T
        flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
        return zlib.crc32(np.ascontiguousarray(flat[::step]).tobytes())
    except Exception:  # sparse, of a dtype that NumPy does not know
        return None
