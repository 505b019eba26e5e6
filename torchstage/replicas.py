"""Replicas: objects in, whole copies of them out, as a worker process has its own of everything.

What ``copy.deepcopy`` copies is copied, by the objects' own ``__deepcopy__`` and ``__reduce_ex__``; and besides, functions
with what they close over, open files and archives, and random generators. Shared are what cannot be changed, arrays
mapped from a file or in shared memory, as they would be among processes, and very large ones; and locks.

Guarantees: one memo, so that what the objects share stays shared among their copies; the originals are not changed;
``CannotCopy`` names what has no copy, and then nothing is left open.
"""

import copyreg
import mmap
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from torchstage.copies import Private
from torchstage.handles import CannotCopy, copied_generator, copied_handle
from torchstage.search import GENERATORS, HANDLES, packages

MAX_ARRAY_BYTES = 64 * 1024 * 1024  # larger ones are data, too dear to copy for each reader; smaller ones may be an order
SHARED: tuple[type, ...] = (
    *(type(None), bool, int, float, complex, str, bytes, range, slice, type, type(...), type(NotImplemented)),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.WrapperDescriptorType, property),
    *(weakref.ref, torch.dtype, torch.device),
)
SHARED_PACKAGES = {"_thread", "multiprocessing", "concurrent", "asyncio", "logging"}  # locks, and what many may use
HANDLE_PACKAGES = {"h5py", "lmdb", "av", "PIL"}


def replicas(count: int, **roots: Any) -> list[Private]:
    """That many whole copies of the named objects. Raises CannotCopy."""
    return [replica(roots) for _ in range(count)]


def replica(roots: dict[str, Any]) -> Private:
    """One whole copy of the named objects."""
    replicator = Replicator()
    own = Private({})
    try:
        own.roots = {name: replicator.copied(root, name) for name, root in roots.items()}
    finally:
        own.handles = replicator.handles  # closed at once after an error
    return own


class Replicator:
    """Makes one copy of everything that it is given, however often it meets it."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        self._memo: dict[Any, Any] = {}
        self._kept: list[Any] = []  # what was only made to be copied: no other object may get its id meanwhile

    def copied(self, value: Any, path: str) -> Any:
        """The one copy of this object."""
        kind = cast(Any, type(value))
        if kind in _SHARED_KINDS or id(value) in self._memo:
            return self._memo.get(id(value), value)
        try:
            twin = self._copy(value, kind, path)
        except CannotCopy:
            raise
        except RecursionError:
            raise CannotCopy(f"{path}: it is nested too deep") from None
        except Exception as error:  # of its own methods
            raise CannotCopy(f"{path}, a {kind.__qualname__}: {error}") from error
        if twin is not value:
            self._memo[id(value)] = twin
        return twin

    def _copy(self, value: Any, kind: Any, path: str) -> Any:
        if _is_shared(value, kind):
            return value
        for kinds, copier in _COPIERS:
            if kind in kinds:
                return copier(self, value, path)
        if issubclass(kind, GENERATORS):
            return copied_generator(value)
        if issubclass(kind, HANDLES) or not packages(kind).isdisjoint(HANDLE_PACKAGES):
            return self._handle(value, path)
        if hasattr(kind, "__deepcopy__"):
            return value.__deepcopy__(self._memo)
        return self._by_its_parts(value, kind, path)

    def _handle(self, value: Any, path: str) -> Any:
        before = set(self._memo)
        try:
            twin = copied_handle(value, self._memo)
        except CannotCopy as error:
            raise CannotCopy(f"{path}: {error}") from error
        finally:
            opened = [self._memo[key] for key in self._memo.keys() - before]
            self.handles.extend(inner for inner in opened if inner is not value)
        return twin

    def _by_its_parts(self, value: Any, kind: Any, path: str) -> Any:
        """As pickle takes an object apart and puts it together again."""
        reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(kind)
        parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(parts, str):  # the name of something global
            return value
        self._kept.append(parts)
        make, arguments, state, items, pairs, set_state = (*parts, *[None] * 6)[:6]
        twin = make(*(self.copied(argument, path) for argument in arguments))
        self._memo[id(value)] = twin  # its parts may lead back to it
        if state is not None:
            self._set_state(twin, self.copied(state, path), set_state)
        for item in items or ():
            twin.append(self.copied(item, f"{path}[...]"))
        for key, item in pairs or ():
            twin[self.copied(key, path)] = self.copied(item, f"{path}[{key!r}]")
        return twin

    @staticmethod
    def _set_state(twin: Any, state: Any, set_state: Callable[[Any, Any], Any] | None) -> None:
        if set_state is not None:
            set_state(twin, state)
        elif hasattr(twin, "__setstate__"):
            twin.__setstate__(state)
        else:
            attributes, slots = state if isinstance(state, tuple) else (state, None)
            if attributes:
                twin.__dict__.update(cast(dict[str, Any], attributes))
            for name, each in cast(dict[str, Any], slots or {}).items():
                setattr(twin, name, each)

    # Copiers of known types ---------------------------------------------------------------------------------

    def _list(self, value: Any, path: str) -> Any:
        twin: list[Any] = []
        self._memo[id(value)] = twin
        twin.extend(self.copied(each, f"{path}[{at}]") for at, each in enumerate(value))
        return twin

    def _dict(self, value: Any, path: str) -> Any:
        twin: dict[Any, Any] = {}
        self._memo[id(value)] = twin
        for key, each in value.items():
            twin[self.copied(key, path)] = self.copied(each, _step(path, key))
        return twin

    def _tuple(self, value: Any, path: str) -> Any:
        inner = [self.copied(each, f"{path}[{at}]") for at, each in enumerate(value)]
        if id(value) in self._memo:  # it leads back to itself
            return self._memo[id(value)]
        return value if all(map(_is, inner, value)) else tuple(inner)

    def _set(self, value: Any, path: str) -> Any:
        return type(value)(self.copied(each, path) for each in value)

    def _bytes(self, value: Any, path: str) -> Any:
        return bytearray(value)

    def _array(self, value: Any, path: str) -> Any:
        twin = value.copy()
        if value.dtype.hasobject:
            self._memo[id(value)] = twin
            twin.flat = [self.copied(each, f"{path}[...]") for each in value.flat]
        return twin

    def _method(self, value: Any, path: str) -> Any:
        return types.MethodType(self.copied(value.__func__, path), self.copied(value.__self__, f"{path}.__self__"))

    def _function(self, value: Any, path: str) -> Any:
        """A function with what it closes over. Without that it is the same for all, as its module is."""
        if not value.__closure__:
            return value
        cells = tuple(self.copied(cell, path) for cell in value.__closure__)
        if id(value) in self._memo:  # it closes over itself
            return self._memo[id(value)]
        if all(map(_is, cells, value.__closure__)):
            return value
        twin: Any = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        twin.__kwdefaults__, twin.__qualname__ = value.__kwdefaults__, value.__qualname__
        twin.__module__, twin.__doc__ = value.__module__, value.__doc__
        twin.__dict__.update(value.__dict__)
        return twin

    def _cell(self, value: Any, path: str) -> Any:
        """Functions that share a cell share its copy."""
        twin = self._memo[id(value)] = types.CellType()
        try:
            contents = value.cell_contents
        except ValueError:  # it was never filled
            return twin
        twin.cell_contents = self.copied(contents, f"{path}.<closure>")
        return twin


_COPIERS: tuple[tuple[tuple[type, ...], Callable[[Replicator, Any, str], Any]], ...] = tuple(
    (kinds, vars(Replicator)[name])
    for kinds, name in (
        ((list,), "_list"),
        ((dict,), "_dict"),
        ((tuple,), "_tuple"),
        ((set, frozenset), "_set"),
        ((bytearray,), "_bytes"),
        ((np.ndarray,), "_array"),
        ((types.MethodType,), "_method"),
        ((types.FunctionType,), "_function"),
        ((types.CellType,), "_cell"),
    )
)
_SHARED_KINDS = frozenset(SHARED)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _step(path: str, key: Any) -> str:
    return f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[...]"


def _is_shared(value: Any, kind: Any) -> bool:
    """Whether all copies have this very object: it does not change, or processes would share it too."""
    if issubclass(kind, SHARED) or value in (sys.stdin, sys.stdout, sys.stderr):
        return issubclass(kind, SHARED) and kind.__module__ in ("builtins", "torch", "weakref") or kind not in SHARED
    if issubclass(kind, torch.Tensor):
        return value.is_shared() or value.nbytes > MAX_ARRAY_BYTES
    if issubclass(kind, np.ndarray):
        return not value.flags.writeable or value.nbytes > MAX_ARRAY_BYTES or _is_mapped(value)
    return kind.__module__.partition(".")[0] in SHARED_PACKAGES


def _is_mapped(array: Any) -> bool:
    """Whether the array lies in a mapped file: what is written there, processes would see too."""
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False
