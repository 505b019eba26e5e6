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
from collections import Counter, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from torchstage.graph import COPYABLE_LINKS, Graph
from torchstage.handles import CannotCopy, close, copied_generator, copied_handle
from torchstage.looking import dict_of, is_a, owner_of, type_of
from torchstage.seeds import digest_of
from torchstage.twins import twin_of

__all__ = ["CannotCopy", "Private", "private_copy"]

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
    line: Any = None  # of its roots, made when it is used first

    def __del__(self) -> None:
        for handle in (*self.handles, *_left_open(self.copies)):
            with suppress(Exception):  # it is closed already, or its library is gone at exit
                close(handle)


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
        own = (found for found in graph.generators if graph.is_own(id(found.value)))  # threads may draw from others'
        self._special = {id(found.value): found for found in (*graph.handles, *own)}
        if len(graph.handles) > MAX_HANDLES:
            raise CannotCopy(f"{len(graph.handles) - 1} more are open", graph.handles[0].path)
        self._on_class = self._of_classes()
        # Handles first: they are what a message should name.
        self._to_copy = self._leading_to([*self._special, *dirty, *self._on_class])
        self._memo: dict[Any, Any] = {}
        self._private = Private({})
        self._check_views()

    def _leading_to(self, dirty: Iterable[int]) -> set[int]:
        """The ids of all that has to be copied: what leads to a copy must be a copy."""
        found: set[int] = set()
        waiting = deque((id_, self._graph.nodes[id_].path) for id_ in dirty if id_ in self._graph.nodes)
        while waiting:
            id_, origin = waiting.popleft()
            if id_ in found:
                continue
            found.add(id_)
            for holder, link in self._graph.nodes[id_].holders:
                if link not in COPYABLE_LINKS:
                    whose = {"class": "a class", "global": "a module", "held": "an iterator or a cache of functools"}
                    raise CannotCopy(f"it belongs to {whose[link]}, which has no copies for single threads", origin)
                if holder:
                    waiting.append((holder, origin))
        return found

    def _of_classes(self) -> dict[int, list[tuple[str, Any]]]:
        """Generators that a class holds for its objects, by the ids of these: a copy gets one of its own, which hides
        the class's."""
        found: dict[int, list[tuple[str, Any]]] = {}
        for generator in self._graph.generators:
            for holder, link in self._graph.nodes[id(generator.value)].holders:
                if link == "class" and holder in self._graph.nodes and self._graph.is_own(holder):
                    name = generator.path.rpartition(".")[2]
                    found.setdefault(holder, []).append((name, generator.value))
        return found

    def _check_views(self) -> None:
        """Two views of one memory must not be torn apart: then neither can be copied."""
        arrays = [node for node in self._graph.nodes.values() if is_a(node.value, np.ndarray, torch.Tensor)]
        if not any(id(node.value) in self._to_copy for node in arrays):
            return
        count = Counter(owner_of(node.value) for node in arrays)
        for node in arrays:
            if id(node.value) in self._to_copy and count[owner_of(node.value)] > 1:
                raise CannotCopy("it shares its memory with another array", node.path)

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
                twin = self._special_copy(value) if id_ in self._special else twin_of(value, self._copy, self._memo)
            except CannotCopy as error:
                raise error.at(self._graph.nodes[id_].path) from error
            except Exception as error:  # a class of C that wants to be made in a way of its own
                raise CannotCopy(repr(error), self._graph.nodes[id_].path) from error
            self._memo[id_] = twin
            self._private.copies.append(twin)
            for name, generator in self._on_class.get(id_, ()):
                place = dict_of(twin)
                if place is not None:
                    place.setdefault(name, self._generator_of_a_class(generator))
        return self._memo[id_]

    def _generator_of_a_class(self, generator: Any) -> Any:
        if id(generator) not in self._memo:
            self._memo[id(generator)] = self._generator(generator)
        return self._memo[id(generator)]

    def _generator(self, value: Any) -> Any:
        if self._moves:
            return value
        twin = copied_generator(value)
        if is_a(value, *SEEDED):
            self._private.held.append((twin, digest_of(value)))
        return twin

    def _special_copy(self, value: Any) -> Any:
        if any(found.value is value for found in self._graph.generators):
            return self._generator(value)
        if self._moves:
            self._private.handles.append(value)
            return value
        before = set(self._memo)
        twin = copied_handle(value, self._memo)
        opened = [self._memo[key] for key in self._memo.keys() - before]
        self._private.handles.extend(inner for inner in opened if inner is not value)
        return twin


def _left_open(copies: Iterable[Any]) -> list[Any]:
    """Files and connections in the copies that user code opened, and that nothing but their place there refers to."""
    found: list[Any] = []
    for twin in copies:
        place: dict[Any, Any] = (cast("dict[Any, Any]", twin) if type(twin) is dict else dict_of(twin)) or {}
        for name in list(place):
            if is_a(place[name], *CLOSED_LAST) and sys.getrefcount(place[name]) <= ONLY_ITS_PLACE:
                found.append(place[name])
    return found


def _is_iterator(value: Any) -> bool:
    """Whether it is an iterator whose position lies in C or in a frame, where nothing else can be seen of it."""
    kind = type_of(value)
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools", "_operator")


def _copied_iterator(value: Any) -> Any:
    try:
        return copy.copy(value)
    except TypeError as error:
        raise CannotCopy(f"it holds a {type(value).__name__}, which cannot be copied") from error
