"""Copies: a graph of objects and those in it that threads must not share in, one thread's own of them out.

Only what has to be is copied: the objects that change, the handles and generators, and whatever leads to them. All
else, big arrays above all, stays shared. One memo, so that a bound method and its dataset stay together.

Guarantees: calls no user code; what cannot be copied is named; the originals are not changed.
"""

import copy
import io
import random
import sqlite3
import sys
import tarfile
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from torchstage.handles import CannotCopy, close, copied_generator, copied_handle
from torchstage.search import (
    COPYABLE_LINKS,
    Graph,
    Search,
    is_a,
    own_attributes,
    slots_of,
    the_dict,
    the_list,
    the_tuple,
)
from torchstage.seeds import digest_of

__all__ = ["CannotCopy", "Private", "private_copies", "private_copy"]

SEEDED = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
MAX_HANDLES = 256  # that are opened again for one thread
FILES = (io.FileIO, io.BufferedReader, io.BufferedRandom, io.BufferedWriter, io.TextIOWrapper)
CLOSED_LAST = (*FILES, sqlite3.Connection, tarfile.TarFile)  # Python warns of these when they are left open
ONLY_ITS_PLACE = 2  # references, as getrefcount counts: the one from there, and its own argument


@dataclass(slots=True)
class Private:
    """What one thread has for its own. Its handles are closed when nobody refers to it any more, as they are when a
    worker process ends: those that were opened for it, and those that user code opened since in its copies."""

    roots: dict[str, Any]
    held: list[tuple[Any, bytes]] = field(default_factory=list[tuple[Any, bytes]])  # generators, digests of states
    handles: list[Any] = field(default_factory=list[Any])
    copies: list[Any] = field(default_factory=list[Any])

    def __del__(self) -> None:
        for handle in (*self.handles, *_left_open(self.copies)):
            with suppress(Exception):  # it is closed already, or its library is gone at exit
                close(handle)


def private_copies(count: int, **roots: Any) -> list[dict[str, Any]]:
    """That many copies of the named objects, and of every object with attributes that they hold."""
    graph = Search(is_first=True).run(**roots)
    dirty = [id_ for id_, node in graph.nodes.items() if is_holder(node.value)]
    return [private_copy(graph, roots, dirty).roots for _ in range(count)]


def private_copy(graph: Graph, roots: dict[str, Any], dirty: Collection[int], *, moves: bool = False) -> Private:
    """One thread's own of everything in ``dirty`` (ids), of the handles and the generators, and of what leads there.

    ``moves``: the handles and generators are not opened again but given away; the originals must let go of them.
    Raises CannotCopy, whose message names what cannot be copied.
    """
    return _Copier(graph, dirty, moves).run(roots)


class _Copier:
    def __init__(self, graph: Graph, dirty: Collection[int], moves: bool) -> None:
        self._moves = moves
        self._graph = graph
        self._special = {id(found.value): found for found in (*graph.handles, *graph.generators)}
        if len(graph.handles) > MAX_HANDLES:
            raise CannotCopy(f"{graph.handles[0].path} and {len(graph.handles) - 1} more are open")
        self._to_copy = self._leading_to({*dirty, *self._special})
        self._memo: dict[Any, Any] = {}
        self._private = Private({})

    def _leading_to(self, dirty: Iterable[int]) -> set[int]:
        """The ids of all that has to be copied: what leads to a copy must be a copy."""
        found: set[int] = set()
        waiting = deque(id_ for id_ in dirty if id_ in self._graph.nodes)
        while waiting:
            id_ = waiting.popleft()
            if id_ in found:
                continue
            found.add(id_)
            node = self._graph.nodes[id_]
            for holder, link in node.holders:
                if link not in COPYABLE_LINKS:
                    whose = {"class": "a class", "global": "a module", "held": "an iterator or cache of functools"}[
                        link
                    ]
                    raise CannotCopy(f"{node.path} belongs to {whose}, which has no copies for single threads")
                if holder:
                    waiting.append(holder)
        return found

    def run(self, roots: dict[str, Any]) -> Private:
        private = self._private
        private.roots = {name: self._copy(root) for name, root in roots.items()}
        return private

    def _copy(self, value: Any) -> Any:
        id_ = id(value)
        if id_ not in self._to_copy:
            return _copied_iterator(value) if _is_iterator(value) else value
        if id_ not in self._memo:
            try:
                twin = self._special_copy(value) if id_ in self._special else self._plain_copy(value)
            except CannotCopy as error:
                path = self._graph.nodes[id_].path
                raise error if path in str(error) else CannotCopy(f"{path}: {error}") from error
            self._memo[id_] = twin
            self._private.copies.append(twin)
        return self._memo[id_]

    def _special_copy(self, value: Any) -> Any:
        is_generator = any(found.value is value for found in self._graph.generators)
        if self._moves:
            twin = value
        elif is_generator:
            twin = copied_generator(value)
        else:
            before = set(self._memo)
            twin = copied_handle(value, self._memo)
            opened = [self._memo[key] for key in self._memo.keys() - before]
            self._private.handles.extend(inner for inner in opened if inner is not value)
        if is_generator:
            if not self._moves and is_a(value, *SEEDED):
                self._private.held.append((twin, digest_of(value)))
        elif self._moves:
            self._private.handles.append(twin)
        return twin

    def _plain_copy(self, value: Any) -> Any:
        for kind, copier in _COPIERS:
            if is_a(value, kind):
                return copier(value, self._copy, self._memo)
        return _object(value, self._copy, self._memo)


def _left_open(copies: Iterable[Any]) -> list[Any]:
    """Files and connections in the copies that user code opened, and that nothing but their place there refers to."""
    found: list[Any] = []
    for twin in copies:
        try:
            place: Any = twin if is_a(twin, dict) else object.__getattribute__(twin, "__dict__")
        except AttributeError:
            continue
        for name in list(place):
            if is_a(place[name], *CLOSED_LAST) and sys.getrefcount(place[name]) <= ONLY_ITS_PLACE:
                found.append(place[name])
    return found


def _is_iterator(value: Any) -> bool:
    """Whether it is an iterator whose position lies in C or in a frame, where nothing else can be seen of it."""
    kind = cast(Any, type(value))
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools", "_operator")


def _copied_iterator(value: Any) -> Any:
    try:
        return copy.copy(value)
    except TypeError as error:
        raise CannotCopy(f"it holds a {type(value).__name__}, which cannot be copied") from error


Copy = Callable[[Any], Any]
Memo = dict[Any, Any]


def is_holder(value: Any) -> bool:
    """Whether it may change while it is used: an object with attributes, or a container of moderate size."""
    if is_a(value, type, types.FunctionType, types.MethodType, types.ModuleType, torch.Tensor, np.ndarray):
        return False
    return bool(own_attributes(value) or slots_of(value)) or (is_a(value, list, dict, set, deque) and len(value) < 1000)


def _array(value: Any, copied: Copy, memo: Memo) -> Any:
    return value.copy()


def _tensor(value: Any, copied: Copy, memo: Memo) -> Any:
    return value.detach().clone() if not value.requires_grad else value.clone()


def _partial(value: Any, copied: Copy, memo: Memo) -> Any:
    return partial(copied(value.func), *map(copied, value.args), **{k: copied(v) for k, v in value.keywords.items()})


def _method(value: Any, copied: Copy, memo: Memo) -> Any:
    return types.MethodType(copied(value.__func__), copied(value.__self__))


def _function(value: Any, copied: Copy, memo: Memo) -> Any:
    cells: list[Any] = []
    twin: Any = types.FunctionType(
        value.__code__,
        value.__globals__,
        value.__name__,
        None if value.__defaults__ is None else tuple(map(copied, value.__defaults__)),
        None if value.__closure__ is None else tuple(_cell(cell, memo, cells) for cell in value.__closure__),
    )
    memo[id(value)] = twin  # a closure may hold its own function
    twin.__kwdefaults__ = value.__kwdefaults__
    twin.__qualname__, twin.__module__, twin.__doc__ = value.__qualname__, value.__module__, value.__doc__
    twin.__dict__.update(value.__dict__)
    for cell in cells:
        cell.cell_contents = copied(cell.cell_contents)
    return twin


def _cell(cell: Any, memo: Memo, new: list[Any]) -> Any:
    """The copy of a closure's cell: one for all functions that share it."""
    if id(cell) not in memo:
        try:
            memo[id(cell)] = types.CellType(cell.cell_contents)
            new.append(memo[id(cell)])
        except ValueError:  # it was never filled
            memo[id(cell)] = types.CellType()
    return memo[id(cell)]


def _list(value: Any, copied: Copy, memo: Memo) -> Any:
    twin: Any = _new(value)
    memo[id(value)] = twin
    the_list.extend(twin, map(copied, the_list.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _tuple(value: Any, copied: Copy, memo: Memo) -> Any:
    twin: Any = the_tuple.__new__(type(value), map(copied, the_tuple.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _dict(value: Any, copied: Copy, memo: Memo) -> Any:
    twin: Any = _new(value)
    memo[id(value)] = twin
    for key, inner in list(the_dict.items(value)):
        the_dict.__setitem__(twin, key, copied(inner))
    if hasattr(value, "default_factory"):
        twin.default_factory = value.default_factory
    return _with_attributes(twin, value, copied)


def _set(value: Any, copied: Copy, memo: Memo) -> Any:
    return type(value)(map(copied, value))


def _deque(value: Any, copied: Copy, memo: Memo) -> Any:
    return type(value)(map(copied, value), value.maxlen)


def _new(value: Any) -> Any:
    kind = cast(Any, type(value))
    return kind.__new__(kind)


def _object(value: Any, copied: Copy, memo: Memo) -> Any:
    if is_a(value, _BaseDataLoaderIter):
        raise CannotCopy("an iterator of a DataLoader cannot be copied")
    try:
        twin: Any = object.__new__(cast(Any, type(value)))
    except TypeError as error:  # an object of a C library
        raise CannotCopy(f"a {type(value).__qualname__} cannot be copied attribute by attribute") from error
    memo[id(value)] = twin
    return _with_attributes(twin, value, copied)


def _with_attributes(twin: Any, value: Any, copied: Copy) -> Any:
    own = own_attributes(value)
    if own:
        inner: dict[str, Any] = object.__getattribute__(twin, "__dict__")
        inner.update({name: copied(each) for name, each in own.items()})
    for name, each in slots_of(value).items():
        object.__setattr__(twin, name, copied(each))
    return twin


_COPIERS: tuple[tuple[type, Callable[[Any, Copy, Memo], Any]], ...] = (
    (np.ndarray, _array),
    (torch.Tensor, _tensor),
    (partial, _partial),
    (types.MethodType, _method),
    (types.FunctionType, _function),
    (list, _list),
    (tuple, _tuple),
    (dict, _dict),
    (set, _set),
    (frozenset, _set),
    (deque, _deque),
)
