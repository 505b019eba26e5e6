"""Search: named objects in, the graph of what they hold out, with the handles and random generators among it.

Guarantees: bounded in depth, number and CPU time; calls no user code; changes nothing.
"""

import gc
import logging
import mmap
import random
import sys
import time
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from torchstage.graph import Found, Graph, Link, Node
from torchstage.looking import (
    INSTALLED,
    PLAIN,
    cells_of,
    is_a,
    is_of_a_library,
    is_plain,
    length_of,
    names_in,
    own_attributes,
    package_of,
    packages,
    slots_of,
    the_deque,
    the_dict,
    the_frozenset,
    the_list,
    the_set,
    the_tuple,
    type_of,
)
from torchstage.unsafe import GENERATORS, HANDLE_PACKAGES, Unsafe, is_for_sharing

MAX_DEPTH = 10
MAX_OBJECTS = 20_000
MAX_SECONDS = 0.003  # of CPU time: an epoch starts in under 5 ms
MAX_FIRST_SECONDS = 0.05  # the first time, before and after the first sample
NUM_OBJECTS_DESCENDED = 512  # objects with attributes of one container that are looked into
NUM_DESCENDED = 16  # elements of a container that are looked into, from its front and from its end: they are alike
MAX_FIRST_SCANNED = 2_000_000  # elements of a container whose types are looked at, the first time
MAX_SCANNED = 20_000  # and later
LONG = 1_000  # elements: longer containers come last

_STANDARD = {"builtins", "_io", "io", "tarfile", "zipfile", "sqlite3", "gzip", "bz2", "lzma", "tempfile", "random"}
_LIBRARIES = {*_STANDARD, "numpy", "torch", "PIL", *HANDLE_PACKAGES}  # whose handles hold nothing of the user's
OPAQUE = (torch.Tensor, logging.Logger)  # what they hold is data, or nobody's but theirs
OPAQUE_PACKAGES = {"numpy", "pandas", "pyarrow"}  # classes whose insides hold data, not handles
TRACED = (type(lru_cache(len)), map, filter, zip, types.GeneratorType)  # what they hold, only the collector can tell


class Search:
    """One search from named objects, nearest first, bounded in depth, number and CPU seconds. Calls no user code."""

    def __init__(self, is_first: bool, max_seconds: float | None = None) -> None:
        self._stop = time.thread_time() + (max_seconds or (MAX_FIRST_SECONDS if is_first else MAX_SECONDS))
        self._max_scanned = MAX_FIRST_SCANNED if is_first else MAX_SCANNED
        self._is_first = is_first
        unsafe = Unsafe()
        self._is_handle, self._is_unsafe = unsafe.is_handle, unsafe.is_kind

    def run(self, **roots: Any) -> Graph:
        """What can be reached from the named objects, within bounds. Long containers are scanned last of all, so that
        they do not use up the time for what stands beside them."""
        graph = Graph()
        everyones = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
        everyones += [torch.default_generator, vars(random)["_inst"], vars(np.random.mtrand)["_rand"]]
        shared = {id(one) for one in everyones}
        waiting: deque[tuple[str, Any, int, int, Link]] = deque()
        long: deque[tuple[str, Any, int]] = deque()
        waiting.extend((name, root, 0, 0, "attribute") for name, root in roots.items() if root is not None)
        while (waiting or long) and len(graph.nodes) < MAX_OBJECTS and time.thread_time() < self._stop:
            if not waiting:
                path, value, depth = long.popleft()
                waiting.extend(self._held_by(path, value, depth))
                continue
            path, value, depth, holder, link = waiting.popleft()
            known = graph.nodes.get(id(value))
            if known is not None:
                known.holders.append((holder, link))
                continue
            if is_a(value, *PLAIN) or id(value) in shared or is_for_sharing(value):
                continue
            graph.nodes[id(value)] = Node(path, value, [(holder, link)])
            if is_a(value, *OPAQUE) or type(value) in (np.ndarray, bytearray, mmap.mmap):
                continue
            if self._is_handle(value):
                kind = type_of(value)
                found = Found(path, f"{kind.__module__}.{kind.__qualname__}", value)
                (graph.generators if is_a(value, *GENERATORS) else graph.handles).append(found)
                if package_of(kind) in _LIBRARIES:
                    continue
            if depth < MAX_DEPTH and (length_of(value) or 0) > LONG:
                long.append((path, value, depth))
            elif depth < MAX_DEPTH:
                waiting.extend(self._held_by(path, value, depth))
        return graph

    def _held_by(self, path: str, value: Any, depth: int) -> Iterator[tuple[str, Any, int, int, Link]]:
        return ((path + step, inner, depth + 1, id(value), link) for step, inner, link in self._insides(value))

    def _holds_unsafe(self, value: Any) -> bool:
        """Whether one of the object's own attributes is of an unsafe type: cheap enough to ask a thousand parts."""
        return any(map(self._is_unsafe, _kinds_of(own_attributes(value).values())))

    def _insides(self, value: Any) -> Iterator[tuple[str, Any, Link]]:
        """What an object holds, each with the words that lead there."""
        if is_a(value, partial):
            call = cast("partial[Any]", value)
            yield from (
                (".func", call.func, "call"),
                (".args", call.args, "call"),
                (".keywords", call.keywords, "call"),
            )
        elif is_a(value, types.MethodType):
            yield ".__self__", value.__self__, "call"
            yield ".__func__", value.__func__, "call"
        elif is_a(value, types.FunctionType):
            yield from self._of_function(value)
        elif type(value) is weakref.ref:
            yield "()", cast(Any, value)(), "element"
        elif is_a(value, *TRACED):
            yield from ((".<held>", inner, "held") for inner in gc.get_referents(value))
        elif is_a(value, list):
            yield from self._elements(the_list, value)
        elif is_a(value, tuple):
            yield from self._elements(the_tuple, value)
        elif is_a(value, dict):
            yield from self._entries(value)
        else:
            for kind in (the_set, the_frozenset, the_deque):
                if is_a(value, kind):
                    yield from self._elements(the_list, self._snapshot(kind.__iter__(value)))
        if not is_a(value, type) and packages(type_of(value)).isdisjoint(OPAQUE_PACKAGES):
            yield from self._attributes(value)

    def _entries(self, value: Any) -> Iterator[tuple[str, Any, Link]]:
        """A dict's values; of a long one whose values are plain, some."""
        length = the_dict.__len__(value)
        if length > LONG and length <= self._max_scanned:
            try:
                kinds = _kinds_of(the_dict.values(value))
            except RuntimeError:  # it changed its size meanwhile
                return
            if not any(map(self._is_unsafe, kinds)) and not any(map(_has_attributes, kinds)):
                entries = self._snapshot(islice(the_dict.items(value), NUM_DESCENDED))
                entries += self._snapshot(islice(reversed(the_dict.items(value)), NUM_DESCENDED))
                yield from ((_step(key), inner, "element") for key, inner in entries)
                return
        entries = self._snapshot(the_dict.items(value))
        yield from self._elements(the_list, [inner for _, inner in entries], [key for key, _ in entries])
        if length <= LONG:
            yield from ((".<key>", key, "element") for key, _ in entries if not is_plain(key))

    def _elements(self, kind: Any, values: Any, keys: list[Any] | None = None) -> Iterator[tuple[str, Any, Link]]:
        """The elements of unsafe types, and some of the others: of a long container only these are looked into."""
        length: int = kind.__len__(values)
        positions = {*range(min(length, NUM_DESCENDED)), *range(max(0, length - NUM_DESCENDED), length)}
        if length <= self._max_scanned:
            kinds = _kinds_of(kind.__iter__(values))
            if any(map(self._is_unsafe, kinds)):
                positions.update(at for at, inner in enumerate(kind.__iter__(values)) if self._is_handle(inner))
            if length <= self._max_scanned // 20 and any(map(_has_attributes, kinds)):
                positions.update(self._with_handles(kind.__iter__(values)))
        for position in sorted(positions):
            try:
                yield _step(keys[position] if keys else position), kind.__getitem__(values, position), "element"
            except IndexError:  # it became shorter meanwhile
                return

    def _with_handles(self, values: Iterable[Any]) -> Iterator[int]:
        """The places of objects: of the first hundreds all, later those whose own attributes are of unsafe types."""
        num_objects = 0
        for at, inner in enumerate(values):
            if _has_attributes(type(inner)):
                num_objects += 1
                if num_objects <= NUM_OBJECTS_DESCENDED or self._holds_unsafe(inner):
                    yield at
            if at % 256 == 0 and time.thread_time() > self._stop:
                return

    def _snapshot(self, values: Iterable[Any]) -> list[Any]:
        """As many elements as are scanned of something that another thread may be changing just now."""
        try:
            return list(islice(values, self._max_scanned))
        except RuntimeError:  # it changed its size meanwhile
            return []

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any, Link]]:
        yield from ((f".{name}", inner, "attribute") for name, inner in own_attributes(value).items())
        yield from ((f".{name}", inner, "attribute") for name, inner in slots_of(value).items())
        for cls in type_of(value).__mro__:
            if package_of(cls) in ("builtins", "torch", "typing", "abc", "collections"):
                continue
            for name, inner in list(cls.__dict__.items()):
                if (
                    self._is_handle(inner)
                    or is_a(inner, dict, list, *TRACED)
                    or (self._is_first and is_a(inner, types.FunctionType))
                ):
                    yield f".{name}", inner, "class"

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any, Link]]:
        yield from ((f".<closure>.{name}", inner, "cell") for name, inner in cells_of(function).items())
        for position, default in enumerate(function.__defaults__ or ()):
            yield f".__defaults__[{position}]", default, "default"
        if function.__kwdefaults__:
            yield ".__kwdefaults__", function.__kwdefaults__, "default"
        if function.__code__.co_filename.startswith(INSTALLED):  # what libraries keep is theirs to guard
            return
        for name in names_in(function.__code__, "LOAD_GLOBAL", "LOAD_NAME"):  # not those of attributes
            inner = function.__globals__.get(name)
            if (
                self._is_handle(inner)
                or is_a(inner, dict, list, types.FunctionType, *TRACED)
                or _is_of_the_users(inner)
            ):
                yield f".<global>.{name}", inner, "global"


def _is_of_the_users(value: Any) -> bool:
    """Whether it is an object with attributes, of a class that is not a library's."""
    return not is_a(value, type) and _has_attributes(type_of(value)) and not is_of_a_library(type_of(value))


def _kinds_of(values: Iterable[Any]) -> list[Any]:
    """The types of the objects, each once."""
    kinds = list(map(type, values))
    try:
        return list(set(kinds))
    except TypeError:  # a metaclass that cannot be hashed
        return list({id(kind): kind for kind in kinds}.values())


def _has_attributes(kind: Any) -> bool:
    """Whether its instances have attributes of their own."""
    return kind.__dictoffset__ != 0


def _step(key: Any) -> str:
    return f"[{key!r}]" if is_plain(key) else "[...]"
