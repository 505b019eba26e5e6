"""Looking: an object in, its true type and what it holds out.

Guarantees: calls no code of the object's class: no property, ``__getattr__``, ``__iter__`` or ``__len__``.
"""

import types
from collections import deque
from functools import lru_cache
from typing import Any, cast

the_list: Any = list  # the types' own methods, for objects of subclasses that may have overridden them
the_tuple: Any = tuple
the_dict: Any = dict
the_set: Any = set
the_frozenset: Any = frozenset
the_deque: Any = deque

PLAIN: tuple[type, ...] = (str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType)
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that was made by a class statement


def type_of(value: Any) -> Any:
    """The object's true type, which it cannot hide."""
    return cast(Any, type(value))


def is_a(value: Any, *kinds: type) -> bool:
    """isinstance by the true type alone: isinstance itself may ask the object for a ``__class__`` of its own making."""
    return issubclass_of(type_of(value), kinds)


def is_plain(value: Any) -> bool:
    """Whether it is a number, string or the like, of no class of the user's: such values may be compared."""
    return type(value) in PLAIN


def issubclass_of(kind: Any, kinds: tuple[type, ...]) -> bool:
    """issubclass without the hooks of abstract classes."""
    try:
        return _issubclass_of(kind, kinds)
    except TypeError:  # a metaclass that cannot be hashed
        return any(cls is one for cls in type.__dict__["__mro__"].__get__(kind) for one in kinds)


@lru_cache(maxsize=2048)  # some hundred objects are asked each epoch, of a few dozen types
def _issubclass_of(kind: Any, kinds: tuple[type, ...]) -> bool:
    return not set(kind.__mro__).isdisjoint(kinds)


def packages(kind: Any) -> frozenset[str]:
    """The top packages that an object's class and its bases come from."""
    try:
        return _packages(kind)
    except TypeError:  # a metaclass that cannot be hashed
        return _packages.__wrapped__(kind)


@lru_cache(maxsize=2048)
def _packages(kind: Any) -> frozenset[str]:
    return frozenset(map(package_of, kind.__mro__))


def package_of(kind: Any) -> str:
    """The top package that a class comes from; empty if it does not say."""
    module: Any = kind.__module__
    return module.partition(".")[0] if type(module) is str else ""  # a stand-in's class may have a property there


def dict_of(value: Any) -> dict[str, Any] | None:
    """The object's own ``__dict__``, not a copy; None if it has none. Never what a property of that name gives."""
    for cls in type_of(value).__mro__:
        getter = cls.__dict__.get("__dict__")
        if type(getter) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            try:
                own: Any = getter.__get__(value)
            except (AttributeError, TypeError):
                return None
            return cast("dict[str, Any]", own) if type(own) is dict else None
    return None


def own_attributes(value: Any) -> dict[str, Any]:
    """A copy of the object's ``__dict__``; empty if it has none."""
    own = dict_of(value)
    return {} if own is None else dict(own)


def slots_of(value: Any) -> dict[str, Any]:
    """The object's filled ``__slots__``."""
    found: dict[str, Any] = {}
    for cls in type_of(value).__mro__:
        if "__slots__" not in cls.__dict__:
            continue
        for name, inner in list(cls.__dict__.items()):
            if type(inner) is types.MemberDescriptorType:
                try:
                    found.setdefault(name, inner.__get__(value))
                except AttributeError:  # it was never set
                    continue
    return found


def length_of(value: Any) -> int | None:
    """The number of elements of a built-in container, also of a subclass; None for anything else."""
    for kind in (the_list, the_tuple, the_dict, the_set, the_frozenset, the_deque):
        if is_a(value, kind):
            return kind.__len__(value)
    return None


def new_like(value: Any) -> Any:
    """An object of the same type with nothing in it, made by the nearest class of C among its bases. Raises TypeError
    where that wants arguments."""
    kind = type_of(value)
    base: Any = next(cls for cls in kind.__mro__ if not cls.__flags__ & HEAP_TYPE)
    return base.__new__(kind)


def cells_of(function: types.FunctionType) -> dict[str, Any]:
    """What a function's closure holds, by name."""
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # it was never filled
            continue
    return cells


def maxlen_of(value: Any) -> int | None:
    """The bound of a deque."""
    return the_deque.__dict__["maxlen"].__get__(value)


def as_any(value: object) -> Any:
    """The same, for the type checker."""
    return cast(Any, value)
