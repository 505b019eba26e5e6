"""Alike: two things that were made in the same way at different times in; whether they do the same, out.

Guarantees: calls no code of the user's: what is the user's own is the same object or it is another one.
"""

import contextvars
import types
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from torchstage.line import Line
from torchstage.looking import PLAIN, cells_of, dict_of, is_a, is_plain, package_of, type_of

OF_SPLIT = ("torchstage.split", "torchstage.tensor_batches")  # modules of callable objects that are made each time
OF_LINE = ("dataset", "stages", "by_sample", "after_many", "fetch_many", "many_where", "is_collated", "spreads")
COMPARED = (torch.device, torch.dtype, contextvars.Context)
ALL_PLAIN = frozenset(PLAIN)


def alike(one: Any, other: Any) -> bool:
    """Whether they mean the same. Where that cannot be seen, they do not."""
    if one is other:
        return True
    kind = type_of(one)
    if kind is not type_of(other):
        return False
    if is_plain(one):
        return bool(one == other)
    if is_a(one, list, tuple):
        return _all_alike(one, other) and getattr(one, "salt", None) == getattr(other, "salt", None)
    if kind is dict:
        return one.keys() == other.keys() and all(alike(value, other[name]) for name, value in one.items())
    if kind is partial:
        return _all_alike((one.func, one.args, one.keywords), (other.func, other.args, other.keywords))
    if kind is types.MethodType:
        return one.__func__ is other.__func__ and alike(one.__self__, other.__self__)
    if kind is types.FunctionType:
        return one.__code__ is other.__code__ and _all_alike(_held_by(one), _held_by(other))
    if kind is Line:
        return all(alike(getattr(one, name), getattr(other, name)) for name in OF_LINE)
    if package_of(kind) == "torchstage":
        if is_dataclass(kind) and cast(Any, kind).__dataclass_params__.frozen:
            return all(alike(getattr(one, field.name), getattr(other, field.name)) for field in fields(kind))
        return kind.__module__ in OF_SPLIT and alike(dict_of(one), dict_of(other))
    if is_a(one, np.generic) or kind is torch.Tensor:  # an index
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return kind in COMPARED and _is_equal(one, other)


def _all_alike(some: Any, others: Any) -> bool:
    """Of two lists or tuples."""
    some, others = cast("tuple[Any, ...]", some), cast("tuple[Any, ...]", others)
    kinds = list(map(type, some))
    if kinds != list(map(type, others)):
        return False
    if ALL_PLAIN.issuperset(kinds):  # a batch's indices: in C
        return bool(some == others)
    return all(map(alike, some, others))


def _held_by(function: Any) -> tuple[Any, ...]:
    return cells_of(function), function.__defaults__, function.__kwdefaults__


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # values of context variables, which may be anything
        return False
