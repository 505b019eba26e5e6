"""Replicas: objects in, whole copies of them out, as a worker process has its own of everything.

What ``copy.deepcopy`` copies is copied, by the objects' own ``__deepcopy__`` and ``__reduce_ex__``; and besides,
functions with what they close over, open files and archives, and random generators. Shared are what does not change,
locks, arrays that lie in a mapped file or in shared memory, as they would among processes, and very large arrays.

Guarantees: one memo, so that what the objects share stays shared among their copies; the originals are not changed;
``CannotCopy`` names what has no copy.
"""

import copyreg
import mmap
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import is_
from typing import Any, cast

import numpy as np
import torch

from torchstage.copies import Private
from torchstage.handles import CannotCopy, copied_generator, copied_handle
from torchstage.looking import packages
from torchstage.unsafe import GENERATORS, HANDLES

MAX_ARRAY_BYTES = 64 * 1024 * 1024  # larger ones are data, too dear to copy; smaller ones may be an order, and shuffled
MAX_WATCHED = 10_000  # objects that are looked at in the end for files which user code left open in them
PLAIN: frozenset[type] = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes, range, slice, type, type(...), type(NotImplemented)),
        object,  # a mark that code compares by identity
        *(types.BuiltinFunctionType, types.CodeType, property, torch.dtype, torch.device),
    )
)
SHARED = (type, types.ModuleType, weakref.ref, threading.Thread)
SHARED_PACKAGES = {"_thread", "multiprocessing", "concurrent", "asyncio", "logging", "pyarrow"}  # locks, and the like
HANDLE_PACKAGES = {"h5py", "lmdb", "av"}
ARRAY_PACKAGES = {"numpy", "torch", "pandas"}


def replicas(count: int, **roots: Any) -> list[Private]:
    """That many whole copies of the named objects. Raises CannotCopy."""
    known = Known()
    return [_replica(roots, known) for _ in range(count)]


def _replica(roots: dict[str, Any], known: "Known") -> Private:
    own = Private({})
    replicator = Replicator(own, known)
    for name, root in roots.items():
        try:
            own.roots[name] = replicator.copied(root)
        except CannotCopy as error:
            raise CannotCopy(f"{name}{error}") from error
        except RecursionError:
            raise CannotCopy(f"{name} is nested too deep") from None
    return own


@dataclass(slots=True)
class Known:
    """What one replica leaves to the next."""

    flat: set[int] = field(default_factory=set[int])  # ids of lists whose elements need no copies
    kept: list[Any] = field(default_factory=list[Any])  # made to be copied: no other object may get its id meanwhile


class Replicator:
    """Makes one copy of everything that it is given, however often it meets it."""

    def __init__(self, own: Private, known: Known) -> None:
        self._own = own
        self._known = known
        self._memo: dict[Any, Any] = {}
        self._on_class: dict[type, list[tuple[str, Any]]] = {}  # random generators that a class holds for its objects

    def copied(self, value: Any) -> Any:
        """The one copy of this object; or itself, where copies may share it."""
        kind = cast(Any, type(value))
        if kind in PLAIN:
            return value
        if id(value) in self._memo:
            return self._memo[id(value)]
        try:
            twin = self._copy(value, kind)
        except (CannotCopy, RecursionError):
            raise
        except Exception as error:  # of its own methods
            raise CannotCopy(f" (a {kind.__qualname__}): {error}") from error
        self._memo[id(value)] = twin
        return twin

    def _copy(self, value: Any, kind: Any) -> Any:
        copier = _COPIERS.get(kind)
        if copier is not None:
            return copier(self, value)
        if _is_shared(value, kind):
            return value
        if issubclass(kind, GENERATORS):
            return copied_generator(value)
        if issubclass(kind, HANDLES) or not packages(kind).isdisjoint(HANDLE_PACKAGES):
            return self._handle(value, kind)
        if hasattr(kind, "__deepcopy__"):
            return value.__deepcopy__(self._memo)
        return self._by_its_parts(value, kind)

    def _inner(self, step: str, value: Any) -> Any:
        """The copy of what another object holds, in a place that is named in messages."""
        try:
            return self.copied(value)
        except CannotCopy as error:
            raise CannotCopy(f"{step}{error}") from error

    def _handle(self, value: Any, kind: Any) -> Any:
        before = set(self._memo)
        try:
            return copied_handle(value, self._memo)
        except CannotCopy as error:
            raise CannotCopy(f" (a {kind.__qualname__}): {error}") from error
        finally:
            opened = [self._memo[key] for key in self._memo.keys() - before]
            self._own.handles.extend(inner for inner in opened if inner is not value)

    def _by_its_parts(self, value: Any, kind: Any) -> Any:
        """As pickle takes an object apart and puts it together again."""
        reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(kind)
        parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        if isinstance(parts, str):  # the name of something global
            return value
        self._known.kept.append(parts)
        padded: Any = (*parts, None, None, None, None)
        make, arguments, state, items, pairs, set_state = padded[:6]
        twin = make(*map(self.copied, arguments))
        self._memo[id(value)] = twin  # its parts may lead back to it
        if len(self._own.copies) < MAX_WATCHED:
            self._own.copies.append(twin)
        if state is not None:
            self._give_state(twin, state, set_state)
        self._give_generators(twin, kind)
        for item in items or ():
            twin.append(self._inner("[...]", item))
        for key, item in pairs or ():
            twin[self.copied(key)] = self._inner(f"[{key!r}]", item)
        return twin

    def _give_state(self, twin: Any, state: Any, set_state: Callable[[Any, Any], Any] | None) -> None:
        give: Any = set_state or getattr(cast(Any, type(twin)), "__setstate__", None)  # not the user's __getattr__
        if give is not None:
            give(twin, self._attributes(state))
            return
        attributes, slots = cast(tuple[Any, Any], state if isinstance(state, tuple) else (state, None))
        if attributes:
            twin.__dict__.update(self._attributes(attributes))
        for name, each in self._attributes(slots or {}).items():
            setattr(twin, name, each)

    def _give_generators(self, twin: Any, kind: Any) -> None:
        """All copies would draw from a generator that the class holds, in a race: the objects of each copy get their
        own in its place."""
        if kind not in self._on_class:
            classes = cast("list[type]", kind.__mro__[::-1])
            names: dict[str, Any] = {name: each for cls in classes for name, each in vars(cls).items()}
            self._on_class[kind] = [(name, each) for name, each in names.items() if isinstance(each, GENERATORS)]
        for name, each in self._on_class[kind]:
            if name not in twin.__dict__:
                twin.__dict__[name] = self._inner(f".{name}", each)

    def _attributes(self, state: Any) -> Any:
        if type(state) is not dict:
            return self.copied(state)
        return {name: self._inner(f".{name}", each) for name, each in cast(dict[str, Any], state).items()}

    # Copiers of known types ---------------------------------------------------------------------------------

    def _list(self, value: Any) -> Any:
        if id(value) in self._known.flat or _are_plain(value):
            return value[:]
        twin: list[Any] = []
        self._memo[id(value)] = twin
        for at, each in enumerate(value):
            twin.append(self._inner(f"[{at}]", each) if type(each) not in PLAIN else each)
        if all(map(is_, twin, value)):
            self._known.flat.add(id(value))
        return twin

    def _dict(self, value: Any) -> Any:
        if _are_plain(value) and _are_plain(value.values()):
            return value.copy()
        twin: dict[Any, Any] = {}
        self._memo[id(value)] = twin
        for key, each in value.items():
            twin[self.copied(key)] = self._inner(f"[{key!r}]" if type(key) in PLAIN else "[...]", each)
        return twin

    def _tuple(self, value: Any) -> Any:
        if _are_plain(value):
            return value
        inner = tuple(self._inner(f"[{at}]", each) for at, each in enumerate(value))
        if id(value) in self._memo:  # it leads back to itself
            return self._memo[id(value)]
        return value if all(map(is_, inner, value)) else inner

    def _set(self, value: Any) -> Any:
        return type(value)(map(self.copied, value))

    def _array(self, value: Any) -> Any:
        if _is_shared(value, np.ndarray):
            return value
        twin = value.copy()
        if value.dtype.hasobject:
            self._memo[id(value)] = twin
            for place in np.ndindex(value.shape):
                twin[place] = self._inner("[...]", value[place])
        return twin

    def _method(self, value: Any) -> Any:
        return types.MethodType(self.copied(value.__func__), self._inner(".__self__", value.__self__))

    def _function(self, value: Any) -> Any:
        """A function with what it closes over, and the defaults of one that was made inside another. Without these it
        is the same for all, as its module is."""
        is_made = "<" in value.__qualname__  # <locals>, <lambda>
        if not value.__closure__ and not (is_made and (value.__defaults__ or value.__kwdefaults__)):
            return value
        cells = tuple(map(self.copied, value.__closure__ or ()))
        defaults, keyword_defaults = self.copied(value.__defaults__), self.copied(value.__kwdefaults__)
        if id(value) in self._memo:  # it closes over itself
            return self._memo[id(value)]
        twin: Any = types.FunctionType(value.__code__, value.__globals__, value.__name__, defaults, cells or None)
        twin.__kwdefaults__, twin.__qualname__ = keyword_defaults, value.__qualname__
        twin.__module__, twin.__doc__ = value.__module__, value.__doc__
        twin.__dict__.update(value.__dict__)
        return twin

    def _cell(self, value: Any) -> Any:
        """Functions that share a cell share its copy."""
        twin = self._memo[id(value)] = types.CellType()
        try:
            contents = value.cell_contents
        except ValueError:  # it was never filled
            return twin
        twin.cell_contents = self._inner(".<closure>", contents)
        return twin


_COPIERS: dict[type, Callable[[Replicator, Any], Any]] = {
    kind: vars(Replicator)[name]
    for kind, name in (
        (list, "_list"),
        (dict, "_dict"),
        (tuple, "_tuple"),
        (set, "_set"),
        (frozenset, "_set"),
        (np.ndarray, "_array"),
        (types.MethodType, "_method"),
        (types.FunctionType, "_function"),
        (types.CellType, "_cell"),
    )
}


def _are_plain(values: Iterable[Any]) -> bool:
    return PLAIN.issuperset(map(type, values))


def _is_shared(value: Any, kind: Any) -> bool:
    """Whether all copies have this very object: it does not change, or processes would share it too."""
    if issubclass(kind, SHARED) or any(value is stream for stream in (sys.stdin, sys.stdout, sys.stderr)):
        return True
    found: frozenset[str] = packages(kind)
    if not found.isdisjoint(ARRAY_PACKAGES) and _num_bytes(value) > MAX_ARRAY_BYTES:
        return True
    if issubclass(kind, torch.Tensor):
        return value.layout is torch.strided and value.is_shared()
    if issubclass(kind, np.ndarray):
        return not value.flags.writeable or _is_mapped(value)
    return kind.__module__.partition(".")[0] in SHARED_PACKAGES


def _num_bytes(value: Any) -> int:
    try:
        if hasattr(value, "memory_usage"):  # of pandas
            return int(np.sum(value.memory_usage()))
        return int(getattr(value, "nbytes", 0))
    except Exception:  # it has no such number, as a sparse tensor
        return 0


def _is_mapped(array: Any) -> bool:
    """Whether the array lies in a mapped file: what is written there, processes would see too."""
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False
