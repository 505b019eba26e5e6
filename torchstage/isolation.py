"""Isolation: a dataset and its functions in, what two threads must not use at once out.

A first guard: open files, archives, sqlite, HDF5, LMDB and PyAV objects are looked for before and after the first
sample. A dataset that holds one is used by one thread at a time.

Guarantees: the search is bounded in depth, number and time; it calls no user code; no two datasets that were found to
hold a handle are used at the same time in this process.
"""

import gc
import io
import logging
import os
import sqlite3
import sys
import tarfile
import threading
import time
import types
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Literal, cast

import torch

Isolation = Literal["auto", "shared", "serial"]
ISOLATIONS: tuple[Isolation, ...] = ("auto", "shared", "serial")

MAX_DEPTH = 10
MAX_OBJECTS = 4_000
MAX_SECONDS = 0.003  # of CPU time: an epoch starts in under 5 ms
MAX_FIRST_SECONDS = 0.05  # the first time, before and after the first sample
NUM_DESCENDED = 16  # elements of a container that are looked into, from its front and from its end: they are alike
MAX_FIRST_SCANNED = 2_000_000  # elements of a container whose types are looked at, the first time
MAX_SCANNED = 20_000  # and later

_IO_BASE: type = io.IOBase.__mro__[1]  # the C class below it: io's own classes are only registered with io.IOBase
UNSAFE_TYPES: tuple[type, ...] = (_IO_BASE, tarfile.TarFile, zipfile.ZipFile, sqlite3.Connection, sqlite3.Cursor)
UNSAFE_PACKAGES = {"h5py", "lmdb", "av", "decord"}  # any object whose class comes from there
UNSAFE_NAMES = {"lmdb": ("Environment", "Transaction", "Cursor", "_Database")}  # classes that hide where they come from
PLAIN: tuple[type, ...] = (str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType)
OPAQUE = (torch.Tensor, logging.Logger)  # what they hold is data, or nobody's but theirs
OPAQUE_PACKAGES = {"numpy", "pandas", "pyarrow"}  # classes whose insides hold data, not handles
TRACED = (type(lru_cache(len)), map, filter, zip, types.GeneratorType)  # what they hold, only the collector can tell


@dataclass(frozen=True, slots=True)
class Found:
    """A handle: how to reach it (``dataset.reader.file``) and its type."""

    path: str
    kind: str


class Search:
    """One search from named objects, nearest first, bounded in depth, number and CPU seconds. Calls no user code."""

    def __init__(self, is_first: bool) -> None:
        self._stop = time.thread_time() + (MAX_FIRST_SECONDS if is_first else MAX_SECONDS)
        self._max_scanned = MAX_FIRST_SCANNED if is_first else MAX_SCANNED
        hidden = (
            getattr(sys.modules.get(package), name, None) for package in UNSAFE_NAMES for name in UNSAFE_NAMES[package]
        )
        self._is_first = is_first
        self._known: dict[type, bool] = {}
        self._unsafe = (*UNSAFE_TYPES, *(kind for kind in hidden if isinstance(kind, type)))

    def run(self, **roots: Any) -> Found | None:
        """The nearest handle that can be reached from the named objects; None if there is none within bounds."""
        seen: set[int] = set()
        standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
        waiting = deque((name, root, 0) for name, root in roots.items() if root is not None)
        while waiting and len(seen) < MAX_OBJECTS and time.thread_time() < self._stop:
            path, value, depth = waiting.popleft()
            if id(value) in seen or _is_a(value, *PLAIN, *OPAQUE) or any(value is one for one in standard):
                continue
            seen.add(id(value))
            if self._is_handle(value):
                return Found(path, f"{type(value).__module__}.{type(value).__qualname__}")
            if depth < MAX_DEPTH:
                waiting.extend((path + step, inner, depth + 1) for step, inner in self._insides(value))
        return None

    def _is_handle(self, value: Any) -> bool:
        kind: type = cast(Any, type(value))
        if not self._is_unsafe(kind):
            return False
        try:
            return not (getattr(value, "closed", False) or (_is_a(value, zipfile.ZipFile) and value.fp is None))
        except Exception:  # it does not know itself
            return True

    def _is_unsafe(self, kind: type) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = issubclass_of(kind, self._unsafe) or not _packages(kind).isdisjoint(UNSAFE_PACKAGES)
            self._known[kind] = known
        return known

    def _holds_unsafe(self, value: Any) -> bool:
        """Whether one of the object's own attributes is of an unsafe type: cheap enough to ask a thousand parts."""
        return any(map(self._is_unsafe, set(map(type, _own_attributes(value).values()))))

    def _insides(self, value: Any) -> Iterator[tuple[str, Any]]:
        """What an object holds, each with the words that lead there."""
        if _is_a(value, partial):
            call = cast("partial[Any]", value)
            yield from ((".func", call.func), (".args", call.args), (".keywords", call.keywords))
        elif _is_a(value, types.MethodType):
            yield ".__self__", value.__self__
            yield ".__func__", value.__func__
        elif _is_a(value, types.FunctionType):
            yield from self._of_function(value)
        elif _is_a(value, *TRACED):
            yield from ((".<held>", inner) for inner in gc.get_referents(value))
        elif _is_a(value, list, tuple):
            yield from self._elements(value)
        elif _is_a(value, dict):
            entries: list[tuple[Any, Any]] = self._snapshot(dict[Any, Any].items(value))
            yield from self._elements([inner for _, inner in entries], [key for key, _ in entries])
        elif _is_a(value, set, frozenset, deque):
            yield from self._elements(self._snapshot(value))
        if not _is_a(value, type) and _packages(cast(Any, type(value))).isdisjoint(OPAQUE_PACKAGES):
            yield from self._attributes(value)

    def _elements(self, values: Any, keys: list[Any] | None = None) -> Iterator[tuple[str, Any]]:
        """The elements of unsafe types, and some of the others: of a long container only these are looked into."""
        kind: Any = list if _is_a(values, list) else tuple  # its own methods: a subclass may have overridden them
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
                yield _step(keys[position] if keys else position), kind.__getitem__(values, position)
            except IndexError:  # it became shorter meanwhile
                return

    def _snapshot(self, values: Iterable[Any]) -> list[Any]:
        """As many elements as are scanned of something that another thread may be changing just now."""
        try:
            return list(islice(values, self._max_scanned))
        except RuntimeError:  # it changed its size meanwhile
            return []

    def _attributes(self, value: Any) -> Iterator[tuple[str, Any]]:
        yield from ((f".{name}", inner) for name, inner in _own_attributes(value).items())
        for cls in type(value).__mro__:
            if cls.__module__.partition(".")[0] in ("builtins", "torch", "typing", "abc", "collections"):
                continue
            for name, inner in list(cls.__dict__.items()):
                if _is_a(inner, types.MemberDescriptorType):  # a slot
                    try:
                        yield f".{name}", inner.__get__(value)
                    except AttributeError:  # that was never set
                        continue
                elif (
                    self._is_handle(inner)
                    or _is_a(inner, dict, list, *TRACED)
                    or (self._is_first and _is_a(inner, types.FunctionType))
                ):
                    yield f".{name}", inner

    def _of_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                yield f".<closure>.{name}", cell.cell_contents
            except ValueError:  # a cell that was never filled
                continue
        for position, default in enumerate(function.__defaults__ or ()):
            yield f".__defaults__[{position}]", default
        if function.__module__ and function.__module__.partition(".")[0] in ("torch", "torchvision", "numpy", "PIL"):
            return
        for name in function.__code__.co_names:
            inner = function.__globals__.get(name)
            if self._is_handle(inner) or _is_a(inner, dict, list, types.FunctionType, *TRACED):
                yield f".<global>.{name}", inner


def _own_attributes(value: Any) -> dict[str, Any]:
    try:  # not getattr: that may call the user's __getattr__
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
        return dict(own)
    except AttributeError:
        return {}


def _has_attributes(kind: type) -> bool:
    """Whether its instances have attributes of their own."""
    return kind.__dictoffset__ != 0


def _is_a(value: Any, *kinds: type) -> bool:
    """isinstance by the true type alone: isinstance itself may ask the object for a ``__class__`` of its own making."""
    kind: type = cast(Any, type(value))
    return issubclass_of(kind, kinds)


@lru_cache(maxsize=2048)  # some hundred objects are asked each epoch, of a few dozen types
def issubclass_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """issubclass without the hooks of abstract classes."""
    return not set(kind.__mro__).isdisjoint(kinds)


@lru_cache(maxsize=2048)
def _packages(kind: type) -> frozenset[str]:
    return frozenset(cls.__module__.partition(".")[0] for cls in kind.__mro__)


def _step(key: Any) -> str:
    return f"[{key!r}]" if _is_a(key, *PLAIN) else "[...]"


_lock = threading.RLock()  # one for the process: two datasets may hold the same handle, or one the other's dataset


_serialised: set[bool] = set()  # not empty once a dataset had to be serialised in this process


class _ThisThread(threading.local):
    num_held: int = 0


_this_thread = _ThisThread()


def has_serialised() -> bool:
    """Whether any dataset had to be serialised in this process so far."""
    return bool(_serialised)


def is_inside_serialised() -> bool:
    """Whether the calling thread is inside a dataset that is used by one thread at a time: what it starts must not need
    other threads to use such a dataset, since they would wait for it for ever."""
    return _this_thread.num_held > 0


def _free_lock() -> None:
    """In a forked child: the lock may be held by a thread that stayed behind in the parent."""
    cast(Any, _lock)._at_fork_reinit()
    _this_thread.num_held = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_lock)


class Guard:
    """A loader's decision on who may share its dataset, kept from epoch to epoch."""

    def __init__(self, isolation: Isolation) -> None:
        if isolation not in ISOLATIONS:
            raise ValueError(
                f"StageLoader: isolation must be one of {', '.join(map(repr, ISOLATIONS))}, got {isolation!r}. "
                "Use 'auto' to let the loader look for handles that threads must not share."
            )
        self.isolation: Isolation = isolation
        self.is_tried = isolation != "auto"  # whether a first sample was looked at already
        self.is_serial = False
        if isolation == "serial":
            self._serialise()

    def must_serialise(self, dataset: Any, collate_fn: Any, *, warn: bool) -> bool:
        """Whether one thread at a time may use the dataset, as it is now. Warns once a loader, naming the handle."""
        if self.isolation == "auto" and not self.is_serial:
            found = Search(is_first=not self.is_tried).run(dataset=dataset, collate_fn=collate_fn)
            if found is not None:
                self._serialise()
                if warn:
                    self._warn(found)
        return self.is_serial

    def _serialise(self) -> None:
        self.is_serial = True
        _serialised.add(True)

    def serialised(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` behind the lock, if the dataset has to be serialised by the time it is called."""

        def one_at_a_time(*arguments: Any) -> Any:
            if not self.is_serial:
                return function(*arguments)
            with _lock:
                _this_thread.num_held += 1
                try:
                    return function(*arguments)
                finally:
                    _this_thread.num_held -= 1

        return one_at_a_time

    def _warn(self, found: Found) -> None:
        warnings.warn(
            f"StageLoader: {found.path} is an open {found.kind}, which two threads must not use at once, so this "
            "dataset is used by one thread at a time. Ways out: open it inside __getitem__; or pass "
            "isolation='shared' if it is safe to share; or multiprocessing_context='forkserver' for worker "
            "processes with copies of their own.",
            stacklevel=2,
        )
