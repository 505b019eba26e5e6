"""Twins: one object in, another of the same type out, with what a function makes of what it holds.

Guarantees: no code of the object's class runs; a twin is in the memo before what it holds is copied: circles end.
"""

import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]

from torchstage.handles import CannotCopy
from torchstage.looking import (
    dict_of,
    dict_type_of,
    is_a,
    items_of,
    length_of,
    maxlen_of,
    new_like,
    own_attributes,
    package_of,
    slots_of,
    the_deque,
    the_frozenset,
    the_list,
    the_set,
    the_tuple,
    type_of,
)

Copy = Callable[[Any], Any]
Memo = dict[Any, Any]
MAX_BYTES = 64 * 1024 * 1024  # of an array that is copied for each thread
HARMLESS = {"datasets"}  # packages whose classes have a __del__ that lets go of its own attributes, no more
MAX_ELEMENTS = 1_000  # of a container that is taken for one that may change


def twin_of(value: Any, copied: Copy, memo: Memo) -> Any:
    """Another object like this one, which holds ``copied(x)`` where it holds x. Raises CannotCopy."""
    for kind, copier in _COPIERS:
        if is_a(value, kind):
            return copier(value, copied, memo)
    return _object(value, copied, memo)


def is_holder(value: Any) -> bool:
    """Whether it may change while it is used: an object with attributes, or a container of moderate size."""
    if is_a(value, type, types.FunctionType, types.MethodType, types.ModuleType, torch.Tensor, np.ndarray):
        return False
    is_container = is_a(value, list, dict, set, deque)
    return bool(dict_of(value) or slots_of(value)) or (is_container and (length_of(value) or 0) < MAX_ELEMENTS)


def others_that_change(own: dict[int, Any]) -> set[int]:
    """The ids of bytearrays and of functions with closures: what may change without being a holder of attributes."""
    return {id_ for id_, value in own.items() if type(value) is bytearray or _has_cells(value)}


def _has_cells(value: Any) -> bool:
    return type(value) is types.FunctionType and bool(value.__closure__)


def _array(value: Any, copied: Copy, memo: Memo) -> Any:
    if type(value) is not np.ndarray:
        raise CannotCopy(f"a {type_of(value).__qualname__} cannot be copied without its own code")
    if value.nbytes > MAX_BYTES:
        raise CannotCopy(f"an array of {value.nbytes / 2**20:.0f} MiB that samples write to is too large to copy")
    return value.copy()


def _weak_reference(value: Any, copied: Copy, memo: Memo) -> Any:
    return weakref.ref(copied(value()))


def _bytearray(value: Any, copied: Copy, memo: Memo) -> Any:
    return bytearray(value)


def _tensor(value: Any, copied: Copy, memo: Memo) -> Any:
    if type(value) is torch.nn.Parameter:
        return torch.nn.Parameter(value.detach().clone(), value.requires_grad)
    if type(value) is not torch.Tensor:
        raise CannotCopy(f"a {type_of(value).__qualname__} cannot be copied without its own code")
    return value.clone() if value.requires_grad else value.detach().clone()


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
    twin.__kwdefaults__ = None if value.__kwdefaults__ is None else copied(value.__kwdefaults__)
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
    twin = memo[id(value)] = new_like(value)
    the_list.extend(twin, map(copied, the_list.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _tuple(value: Any, copied: Copy, memo: Memo) -> Any:
    twin: Any = the_tuple.__new__(type_of(value), map(copied, the_tuple.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _dict(value: Any, copied: Copy, memo: Memo) -> Any:
    twin = memo[id(value)] = new_like(value)
    for key, inner in items_of(value):
        dict_type_of(value).__setitem__(twin, copied(key), copied(inner))
    if is_a(value, defaultdict):
        factory: Any = vars(defaultdict)["default_factory"]
        factory.__set__(twin, factory.__get__(value))
    return _with_attributes(twin, value, copied)


def _set(value: Any, copied: Copy, memo: Memo) -> Any:
    twin = new_like(value)
    the_set.update(twin, map(copied, the_set.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _frozenset(value: Any, copied: Copy, memo: Memo) -> Any:
    twin: Any = the_frozenset.__new__(type_of(value), map(copied, the_frozenset.__iter__(value)))
    return _with_attributes(twin, value, copied)


def _deque(value: Any, copied: Copy, memo: Memo) -> Any:
    twin = memo[id(value)] = new_like(value)
    the_deque.__init__(twin, map(copied, the_deque.__iter__(value)), maxlen_of(value))
    return _with_attributes(twin, value, copied)


def _object(value: Any, copied: Copy, memo: Memo) -> Any:
    if any("__del__" in cls.__dict__ and package_of(cls) not in HARMLESS for cls in type_of(value).__mro__):
        raise CannotCopy("its class has a __del__, which would run for each copy")  # and might close what it shares
    if is_a(value, _BaseDataLoaderIter):
        raise CannotCopy("an iterator of a DataLoader cannot be copied")
    twin = memo[id(value)] = new_like(value)
    if is_a(value, BaseException):
        twin.args = value.args
    return _with_attributes(twin, value, copied)


def _with_attributes(twin: Any, value: Any, copied: Copy) -> Any:
    own, inner = own_attributes(value), dict_of(twin)
    if own and inner is None:
        raise CannotCopy(f"a {type_of(value).__qualname__} has no attributes of its own to fill")
    if inner is not None:
        inner.update({name: copied(each) for name, each in own.items()})
    for name, each in slots_of(value).items():
        object.__setattr__(twin, name, copied(each))
    return twin


_COPIERS: tuple[tuple[type, Callable[[Any, Copy, Memo], Any]], ...] = (
    (weakref.ref, _weak_reference),
    (bytearray, _bytearray),
    (np.ndarray, _array),
    (torch.Tensor, _tensor),
    (partial, _partial),
    (types.MethodType, _method),
    (types.FunctionType, _function),
    (list, _list),
    (tuple, _tuple),
    (dict, _dict),
    (set, _set),
    (frozenset, _frozenset),
    (deque, _deque),
)
