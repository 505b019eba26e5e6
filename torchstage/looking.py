"""Looking: an object in, its true type and what it holds out.

Guarantees: calls no code of the object's class: no property, ``__getattr__``, ``__iter__`` or ``__len__``.
"""

import dis
import sys
import sysconfig
import types
import weakref
from collections import OrderedDict, deque
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np
import torch

the_list: Any = list  # the types' own methods, for objects of subclasses that may have overridden them
the_tuple: Any = tuple
the_dict: Any = dict
the_set: Any = set
the_frozenset: Any = frozenset
the_deque: Any = deque
the_ordered_dict: Any = OrderedDict

PLAIN: tuple[type, ...] = (str, bytes, int, float, complex, bool, type(None), types.ModuleType)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
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


# What was asked of a class before: some hundred objects are asked each epoch, of a few dozen classes. Kept for as long
# as the class is, which keeps its module and all that is in there.
_asked: "weakref.WeakKeyDictionary[Any, dict[Any, Any]]" = weakref.WeakKeyDictionary()


def _issubclass_of(kind: Any, kinds: tuple[type, ...]) -> bool:
    known = _known(kind)
    found = known.get(kinds)
    if found is None:
        found = known[kinds] = not set(kind.__mro__).isdisjoint(kinds)
    return found


def _known(kind: Any) -> dict[Any, Any]:
    known = _asked.get(kind)
    return _asked.setdefault(kind, {}) if known is None else known


def packages(kind: Any) -> frozenset[str]:
    """The top packages that an object's class and its bases come from."""
    try:
        known = _known(kind)
    except TypeError:  # a metaclass that cannot be hashed
        known = {}
    found = known.get("packages")
    if found is None:
        found = known["packages"] = frozenset(map(package_of, kind.__mro__))
    return found


def package_of(kind: Any) -> str:
    """The top package that a class comes from; empty if it does not say."""
    module: Any = kind.__module__
    return module.partition(".")[0] if type(module) is str else ""  # a stand-in's class may have a property there


def is_of_a_library(cls: Any) -> bool:
    """Whether a class comes from Python or from an installed package: what it keeps is its own to guard."""
    if cls.__flags__ & HEAP_TYPE == 0:
        return True
    module: Any = sys.modules.get(cls.__module__ if type(cls.__module__) is str else "")
    file: Any = getattr(module, "__file__", None)
    return type(file) is str and file.startswith(INSTALLED)


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


@lru_cache(maxsize=8192)
def names_in(code: types.CodeType, *operations: str) -> tuple[str, ...]:
    """The names that the instructions of these kinds mean, in their order, each once."""
    steps = (step for step in dis.get_instructions(code) if step.opname in operations)
    return tuple(dict.fromkeys(str(step.argval) for step in steps))


def maxlen_of(value: Any) -> int | None:
    """The bound of a deque."""
    return the_deque.__dict__["maxlen"].__get__(value)


def dict_type_of(value: Any) -> Any:
    """The built-in type whose methods a dict needs: an OrderedDict keeps its order in a list of its own."""
    return the_ordered_dict if is_a(value, OrderedDict) else the_dict


def items_of(value: Any) -> list[tuple[Any, Any]]:
    """The entries of a dict, in its own order, by no method of the user's."""
    keys: Any = dict_type_of(value).__iter__(value)
    return [(key, the_dict.__getitem__(value, key)) for key in keys]


def is_cached_property(value: Any, name: str) -> bool:
    """Whether an attribute is what a ``functools.cached_property`` of its class keeps there, made once."""
    return any(type(cls.__dict__.get(name)) is cached_property for cls in type_of(value).__mro__)


def owner_of(value: Any) -> Any:
    """What the memory of an array or tensor belongs to: the same for all views of it."""
    if is_a(value, torch.Tensor):
        return ("storage", torch.Tensor.untyped_storage(value).data_ptr())
    base: Any = value
    while type(base) is memoryview or getattr(base, "base", None) is not None:
        base = base.obj if type(base) is memoryview else base.base
    return ("storage", base.ctypes.data) if type(base) is np.ndarray else ("object", id(base))


def is_for_all(value: Any) -> bool:
    """Whether the memory of an array or tensor is shared among processes or lies in a mapped file: what is written
    there, worker processes would see too."""
    if is_a(value, torch.Tensor):
        return value.device.type != "cpu" or value.layout is not torch.strided or value.is_shared()
    base: Any = value
    while base is not None:
        if not isinstance(base, np.ndarray | memoryview) or isinstance(base, np.memmap):
            return not isinstance(base, bytes | bytearray)  # a map, a ctypes array, memory of another library
        base = base.obj if isinstance(base, memoryview) else base.base
    return False
