"""Isolation: a dataset and its functions in, what two threads must not use at once out.

A first guard: open files, archives, sqlite, HDF5, LMDB and PyAV objects are looked for before and after the first
sample. A dataset that holds one is used by one thread at a time.

Guarantees: the search is bounded in depth, number and time; it calls no user code; a dataset that was found to hold a
handle is serialised in every loader of this process that reaches the same holder.
"""

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
import weakref
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, cast

import torch

Isolation = Literal["auto", "shared", "serial"]
ISOLATIONS: tuple[Isolation, ...] = ("auto", "shared", "serial")

MAX_DEPTH = 8
MAX_OBJECTS = 4_000
MAX_SECONDS = 0.003  # of CPU time: an epoch starts in under 5 ms
MAX_FIRST_SECONDS = 0.05  # the first time
NUM_ELEMENTS = 16  # of each container, from its front and from its end: elements of one container are alike

UNSAFE_TYPES = (io.IOBase, tarfile.TarFile, zipfile.ZipFile, sqlite3.Connection, sqlite3.Cursor)
UNSAFE_PACKAGES = {"h5py", "lmdb", "av"}  # any object whose class comes from there
PLAIN: tuple[type, ...] = (str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType)
OPAQUE = (torch.Tensor, logging.Logger)  # what they hold is data, or nobody's but theirs
OPAQUE_PACKAGES = {"numpy", "pandas", "pyarrow"}  # classes whose insides hold data, not handles


@dataclass(frozen=True, slots=True)
class Found:
    """A handle: how to reach it (``dataset.reader.file``), its type, and a lock for whoever uses what holds it."""

    path: str
    kind: str
    lock: Any  # a threading.RLock


def find_handle(max_seconds: float, **roots: Any) -> Found | None:
    """The nearest handle that can be reached from the named objects; None if there is none within bounds."""
    stop = time.thread_time() + max_seconds
    seen: set[int] = set()
    waiting = deque((name, root, root, 0) for name, root in roots.items() if root is not None)
    while waiting and len(seen) < MAX_OBJECTS and time.thread_time() < stop:
        path, value, holder, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, (*PLAIN, *OPAQUE)):
            continue
        seen.add(id(value))
        if _is_handle(value):
            return Found(path, f"{type(value).__module__}.{type(value).__qualname__}", _lock_of(holder, value))
        if depth < MAX_DEPTH:
            waiting.extend((path + step, inner, value, depth + 1) for step, inner in _insides(value))
    return None


def _is_handle(value: Any) -> bool:
    if isinstance(value, UNSAFE_TYPES):
        standard = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
        return not any(value is stream for stream in standard) and not getattr(value, "closed", False)
    return not _packages(value).isdisjoint(UNSAFE_PACKAGES)


def _packages(value: Any) -> set[str]:
    return {cls.__module__.partition(".")[0] for cls in type(value).__mro__}


def _insides(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with the words that lead there."""
    if isinstance(value, partial):
        call = cast("partial[Any]", value)
        yield from (
            (f".{name}", inner)
            for name, inner in (("func", call.func), ("args", call.args), ("keywords", call.keywords))
        )
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _function_insides(value)
    elif isinstance(value, dict):
        entries = _some(dict[Any, Any].items(cast("dict[Any, Any]", value)))
        yield from ((f"[{key!r}]" if isinstance(key, PLAIN) else "[...]", inner) for key, inner in entries)
    elif isinstance(value, list | tuple):
        yield from _ends(list if isinstance(value, list) else tuple, value)
    elif isinstance(value, set | frozenset | deque):
        yield from (("[...]", inner) for inner in _some(cast("set[Any]", value)))
    if not isinstance(value, type) and _packages(value).isdisjoint(OPAQUE_PACKAGES):
        yield from _attributes(value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    try:  # not getattr: that may call the user's __getattr__
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    yield from ((f".{name}", inner) for name, inner in own.copy().items())
    for cls in type(value).__mro__:
        if cls.__module__.partition(".")[0] in ("builtins", "torch", "typing", "abc", "collections"):
            continue
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = cls.__dict__.get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    yield f".{name}", descriptor.__get__(value)
                except AttributeError:  # a slot that was never set
                    continue
        for name, inner in list(cls.__dict__.items()):
            if _is_handle(inner):
                yield f".{name}", inner
            elif isinstance(inner, types.FunctionType):
                yield from ((f".{name}{step}", handle) for step, handle in _global_handles(inner))


def _function_insides(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<closure>.{name}", cell.cell_contents
        except ValueError:  # a cell that was never filled
            continue
    for position, default in enumerate(function.__defaults__ or ()):
        yield f".__defaults__[{position}]", default
    yield from _global_handles(function)


def _global_handles(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name in function.__code__.co_names:
        inner = function.__globals__.get(name)
        if inner is not None and _is_handle(inner):
            yield f".<global>.{name}", inner


def _some(values: Iterable[Any]) -> list[Any]:
    """The first elements of something that another thread may be changing just now."""
    try:
        return list(islice(values, 2 * NUM_ELEMENTS))
    except RuntimeError:  # changed size during iteration
        return []


def _ends(kind: Any, values: Any) -> Iterator[tuple[str, Any]]:
    """The first and the last elements of a list or tuple, read past whatever a subclass overrides."""
    length = kind.__len__(values)
    for position in (*range(min(length, NUM_ELEMENTS)), *range(max(NUM_ELEMENTS, length - NUM_ELEMENTS), length)):
        try:
            yield f"[{position}]", kind.__getitem__(values, position)
        except IndexError:  # it became shorter meanwhile
            return


_locks: dict[int, Any] = {}  # by the id of what holds a handle


def _lock_of(holder: Any, handle: Any) -> Any:
    """One lock for each object that holds a handle, so that two loaders over the same dataset use it in turn."""
    for owner in (holder, handle):
        lock = threading.RLock()
        try:
            if _locks.setdefault(id(owner), lock) is lock:
                weakref.finalize(owner, _locks.pop, id(owner), None).atexit = False
            return _locks[id(owner)]
        except TypeError:  # it cannot be referenced weakly, so nobody would tell when its id belongs to another object
            del _locks[id(owner)]
    return threading.RLock()


def _free_locks() -> None:
    """In a forked child: a lock may be held by a thread that stayed behind in the parent."""
    for lock in _locks.values():
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)


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
        self.has_warned = False
        self._lock: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lock": None, "is_tried": self.isolation != "auto"}

    @property
    def is_needed_inline(self) -> bool:
        """Whether code that runs in the consumer's thread could meet a thread of another loader at a handle."""
        return bool(_locks)

    def must_serialise(self, dataset: Any, collate_fn: Any, *, warn: bool = True) -> bool:
        """Whether one thread at a time may use the dataset, as it is now. Warns once a loader, naming the handle."""
        if self.isolation == "auto" and self._lock is None:
            max_seconds = MAX_SECONDS if self.is_tried else MAX_FIRST_SECONDS
            found = find_handle(max_seconds, dataset=dataset, collate_fn=collate_fn)
            if found is not None:
                self._lock = found.lock
                if warn:
                    self._warn(found)
        elif self.isolation == "serial" and self._lock is None:
            self._lock = _lock_of(dataset, dataset)
        return self._lock is not None

    def serialised(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` behind the lock, if there is one by the time it is called."""

        def one_at_a_time(*arguments: Any) -> Any:
            lock = self._lock
            if lock is None:
                return function(*arguments)
            with lock:
                return function(*arguments)

        return one_at_a_time

    def _warn(self, found: Found) -> None:
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"StageLoader: {found.path} is an open {found.kind}, which two threads must not use at once, so this "
                "dataset is used by one thread at a time. Ways out: open it inside __getitem__; or pass "
                "isolation='shared' if it is safe to share; or multiprocessing_context='forkserver' for worker "
                "processes with copies of their own.",
                stacklevel=2,
            )
