"""Search: named objects in, the graph of what they hold out, with the handles and random generators among it.

Guarantees: bounded in depth, number and CPU time; calls no user code; changes nothing.
"""

import gc
import io
import logging
import random
import sqlite3
import sys
import tarfile
import time
import types
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

MAX_DEPTH = 10
MAX_OBJECTS = 4_000
MAX_SECONDS = 0.003  # of CPU time: an epoch starts in under 5 ms
MAX_FIRST_SECONDS = 0.05  # the first time, before and after the first sample
NUM_DESCENDED = 16  # elements of a container that are looked into, from its front and from its end: they are alike
MAX_FIRST_SCANNED = 2_000_000  # elements of a container whose types are looked at, the first time
MAX_SCANNED = 20_000  # and later

_IO_BASE: type = io.IOBase.__mro__[1]  # the C class below it: io's own classes are only registered with io.IOBase
HANDLES: tuple[type, ...] = (_IO_BASE, tarfile.TarFile, zipfile.ZipFile, sqlite3.Connection, sqlite3.Cursor)
HANDLE_PACKAGES = {"h5py", "lmdb", "av", "decord", "torchcodec"}  # any object whose class comes from there
HIDDEN_HANDLES = {  # classes that hide where they come from, or that are handles for a while
    "lmdb": ("Environment", "Transaction", "Cursor", "_Database"),
    "PIL.ImageFile": ("ImageFile",),  # opened and not read yet
}
GENERATORS: tuple[type, ...] = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
_STANDARD = {"builtins", "_io", "io", "tarfile", "zipfile", "sqlite3", "gzip", "bz2", "lzma", "tempfile", "random"}
_LIBRARIES = {*_STANDARD, "numpy", "torch", "PIL", *HANDLE_PACKAGES}  # whose handles hold nothing of the user's
PLAIN: tuple[type, ...] = (str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType)
OPAQUE = (torch.Tensor, logging.Logger)  # what they hold is data, or nobody's but theirs
OPAQUE_PACKAGES = {"numpy", "pandas", "pyarrow"}  # classes whose insides hold data, not handles
SHARED_PACKAGES = {"threading", "_thread", "queue", "_queue", "multiprocessing", "concurrent", "asyncio", "weakref"}
TRACED = (type(lru_cache(len)), map, filter, zip, types.GeneratorType)  # what they hold, only the collector can tell

the_list: Any = list  # the types' own methods, for objects of subclasses that may have overridden them
the_tuple: Any = tuple
the_dict: Any = dict
the_set: Any = set
the_deque: Any = deque

Link = str  # how one object holds another: attribute, class, element, call, cell, default, global, held
COPYABLE_LINKS: frozenset[Link] = frozenset(("attribute", "element", "call", "cell", "default"))  # one holder's own


@dataclass(frozen=True, slots=True)
class Found:
    """A handle or generator: how to reach it (``dataset.reader.file``), its type and itself."""

    path: str
    kind: str
    value: Any


@dataclass(slots=True)
class Node:
    """An object that was looked into. ``holders`` are the ids of those that hold it, each with the kind of the link."""

    path: str
    value: Any
    holders: list[tuple[int, Link]] = field(default_factory=list[tuple[int, Link]])


@dataclass(slots=True)
class Graph:
    """What one search met, nearest first."""

    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    handles: list[Found] = field(default_factory=list[Found])
    generators: list[Found] = field(default_factory=list[Found])

    def is_own(self, id_: int) -> bool:
        """Whether an object belongs to what was searched alone: not to a class, a module or a cache of functools."""
        return all(link in COPYABLE_LINKS for _, link in self.nodes[id_].holders)


class Search:
    """One search from named objects, nearest first, bounded in depth, number and CPU seconds. Calls no user code."""

    def __init__(self, is_first: bool) -> None:
        self._stop = time.thread_time() + (MAX_FIRST_SECONDS if is_first else MAX_SECONDS)
        self._max_scanned = MAX_FIRST_SCANNED if is_first else MAX_SCANNED
        hidden = (
            getattr(sys.modules.get(module), name, None) for module in HIDDEN_HANDLES for name in HIDDEN_HANDLES[module]
        )
        self._is_first = is_first
        self._known: dict[type, bool] = {}
        self._unsafe = (*HANDLES, *GENERATORS, *(kind for kind in hidden if isinstance(kind, type)))

    def run(self, **roots: Any) -> Graph:
        """What can be reached from the named objects, within bounds."""
        graph = Graph()
        everyones = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
        everyones += [torch.default_generator, vars(random)["_inst"], vars(np.random.mtrand)["_rand"]]
        waiting: deque[tuple[str, Any, int, int, Link]] = deque()
        waiting.extend((name, root, 0, 0, "attribute") for name, root in roots.items() if root is not None)
        while waiting and len(graph.nodes) < MAX_OBJECTS and time.thread_time() < self._stop:
            path, value, depth, holder, link = waiting.popleft()
            known = graph.nodes.get(id(value))
            if known is not None:
                known.holders.append((holder, link))
                continue
            is_data = is_a(value, *OPAQUE) or type(value) is np.ndarray
            if is_a(value, *PLAIN) or any(value is one for one in everyones) or _is_for_sharing(value):
                continue
            graph.nodes[id(value)] = Node(path, value, [(holder, link)])
            if is_data:
                continue
            if self._is_handle(value):
                found = Found(path, f"{type(value).__module__}.{type(value).__qualname__}", value)
                (graph.generators if is_a(value, *GENERATORS) else graph.handles).append(found)
                if not _has_own_class(value):
                    continue
            if depth < MAX_DEPTH:
                insides = self._insides(value)
                waiting.extend((path + step, inner, depth + 1, id(value), link) for step, inner, link in insides)
        return graph

    def _is_handle(self, value: Any) -> bool:
        kind: type = cast(Any, type(value))
        if not self._is_unsafe(kind):
            return False
        try:
            if is_a(value, zipfile.ZipFile):
                return value.fp is not None
            if "PIL" in packages(kind):
                return bool(getattr(value, "fp", None)) and bool(getattr(value, "tile", None))
            return not getattr(value, "closed", False)
        except Exception:  # it does not know itself
            return True

    def _is_unsafe(self, kind: type) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = issubclass_of(kind, self._unsafe) or not packages(kind).isdisjoint(HANDLE_PACKAGES)
            self._known[kind] = known
        return known

    def _holds_unsafe(self, value: Any) -> bool:
        """Whether one of the object's own attributes is of an unsafe type: cheap enough to ask a thousand parts."""
        return any(map(self._is_unsafe, set(map(type, own_attributes(value).values()))))

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
        elif is_a(value, *TRACED):
            yield from ((".<held>", inner, "held") for inner in gc.get_referents(value))
        elif is_a(value, list, tuple):
            yield from self._elements(value)
        elif is_a(value, dict):
            entries: list[tuple[Any, Any]] = self._snapshot(the_dict.items(value))
            yield from self._elements([inner for _, inner in entries], [key for key, _ in entries])
        elif is_a(value, set, frozenset, deque):
            yield from self._elements(self._snapshot(value))
        if not is_a(value, type) and packages(cast(Any, type(value))).isdisjoint(OPAQUE_PACKAGES):
            yield from self._attributes(value)

    def _elements(self, values: Any, keys: list[Any] | None = None) -> Iterator[tuple[str, Any, Link]]:
        """The elements of unsafe types, and some of the others: of a long container only these are looked into."""
        kind = the_list if is_a(values, list) else the_tuple
        length: int = kind.__len__(values)
        positions = {*range(min(length, NUM_DESCENDED)), *range(max(0, length - NUM_DESCENDED), length)}
        if length <= self._max_scanned:
            kinds: set[type] = set(map(type, kind.__iter__(values)))
            if any(map(self._is_unsafe, kinds)):
                positions.update(at for at, inner in enumerate(kind.__iter__(values)) if self._is_handle(inner))
            if length <= self._max_scanned // 20 and any(map(_has_attributes, kinds)):
                positions.update(at for at, inner in enumerate(kind.__iter__(values)) if self._holds_unsafe(inner))
        for position in sorted(positions):
            try:
                yield _step(keys[position] if keys else position), kind.__getitem__(values, position), "element"
            except IndexError:  # it became shorter meanwhile
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
        for cls in type(value).__mro__:
            if cls.__module__.partition(".")[0] in ("builtins", "torch", "typing", "abc", "collections"):
                continue
            for name, inner in list(cls.__dict__.items()):
                if (
                    self._is_handle(inner)
                    or is_a(inner, dict, list, *TRACED)
                    or (self._is_first and is_a(inner, types.FunctionType))
                ):
                    yield f".{name}", inner, "class"

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any, Link]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield f".<closure>.{name}", cell.cell_contents, "cell"
            except ValueError:  # a cell that was never filled
                continue
        for position, default in enumerate(function.__defaults__ or ()):
            yield f".__defaults__[{position}]", default, "default"
        if function.__module__ and function.__module__.partition(".")[0] in ("torch", "torchvision", "numpy", "PIL"):
            return
        for name in function.__code__.co_names:
            inner = function.__globals__.get(name)
            if self._is_handle(inner) or is_a(inner, dict, list, types.FunctionType, *TRACED):
                yield f".<global>.{name}", inner, "global"


def own_attributes(value: Any) -> dict[str, Any]:
    """A copy of the object's ``__dict__``; empty if it has none."""
    try:  # not getattr: that may call the user's __getattr__
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
        return dict(own)
    except AttributeError:
        return {}


def slots_of(value: Any) -> dict[str, Any]:
    """The object's filled ``__slots__``."""
    found: dict[str, Any] = {}
    for cls in type(value).__mro__:
        if "__slots__" not in cls.__dict__:
            continue
        for name, inner in list(cls.__dict__.items()):
            if is_a(inner, types.MemberDescriptorType):
                try:
                    found.setdefault(name, inner.__get__(value))
                except AttributeError:  # it was never set
                    continue
    return found


def is_a(value: Any, *kinds: type) -> bool:
    """isinstance by the true type alone: isinstance itself may ask the object for a ``__class__`` of its own making."""
    kind: type = cast(Any, type(value))
    return issubclass_of(kind, kinds)


@lru_cache(maxsize=2048)  # some hundred objects are asked each epoch, of a few dozen types
def issubclass_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """issubclass without the hooks of abstract classes."""
    return not set(kind.__mro__).isdisjoint(kinds)


@lru_cache(maxsize=2048)
def packages(kind: type) -> frozenset[str]:
    """The top packages that an object's class and its bases come from."""
    return frozenset(cls.__module__.partition(".")[0] for cls in kind.__mro__)


def _is_for_sharing(value: Any) -> bool:
    """Whether it is a lock, queue, executor or the like: made to be used by several threads, useless when copied."""
    kind: type = cast(Any, type(value))
    return kind.__module__.partition(".")[0] in SHARED_PACKAGES


def _has_attributes(kind: type) -> bool:
    """Whether its instances have attributes of their own."""
    return kind.__dictoffset__ != 0


def _has_own_class(value: Any) -> bool:
    """Whether a handle is of a class of the user's, which may hold other things beside."""
    return type(value).__module__.partition(".")[0] not in _LIBRARIES


def _step(key: Any) -> str:
    return f"[{key!r}]" if is_a(key, *PLAIN) else "[...]"
