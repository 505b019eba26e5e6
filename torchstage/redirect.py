"""Redirect: the functions of ``random`` and ``numpy.random`` in, the same functions drawing from the thread's own
generators out.

Python's share one instance, whose class is set to one that asks which thread it is in: functions that were imported by
name follow, but for ``random.random`` and ``random.getrandbits``, which C bound. numpy's are bound by C as well, so
the module's attributes are replaced.

Guarantees: a thread without a source draws exactly what it drew before; generators that users made are not touched.
"""

import random
from _random import Random as CoreRandom
from collections.abc import Callable, Mapping
from functools import wraps
from types import MethodType
from typing import Any, Protocol, cast

import numpy as np


class Source(Protocol):
    """Where a thread's draws come from."""

    @property
    def python(self) -> random.Random: ...
    @property
    def numpy_legacy(self) -> np.random.RandomState: ...


def _no_source() -> Source | None:
    return None


_current: Callable[[], Source | None] = _no_source
_shared: random.Random = vars(random)["_inst"]
_shared_numpy: np.random.RandomState = vars(np.random.mtrand)["_rand"]
_originals: list[Any] = []  # numpy's functions as they were, and Python's two that cannot follow


def install(current: Callable[[], Source | None]) -> None:
    """Let the functions ask ``current()``, the source of the calling thread, if it has one."""
    global _current
    _current = current
    _originals.extend((random.random, random.getrandbits))
    _shared.__class__ = _SharedRandom
    for name in ("random", "getrandbits"):  # bound by C to what they did before
        setattr(random, name, getattr(_shared, name))
    for name in np.random.__all__:
        function = getattr(np.random, name)
        if getattr(function, "__self__", None) is _shared_numpy or name in ("seed", "sample", "ranf"):
            _originals.append(function)
            replacement = _by_thread(name, function)
            for module in (np.random, np.random.mtrand):
                setattr(module, name, replacement)


def uncontrolled(function_globals: Mapping[str, Any]) -> list[str]:
    """Names of globals that draw from the process's generators although the thread has its own: functions that were
    imported by name before ``install``, and numpy's global ``RandomState`` itself."""
    beyond = {id(function) for function in _originals} | {id(_shared_numpy)}
    return [
        name
        for name, value in function_globals.items()
        if id(value) in beyond
        # by type first: a stand-in for a missing package may raise whatever it is asked
        or (type(value) in _BOUND and value.__self__ is _shared_numpy)
        # a bound builtin is made anew by every attribute access, so that two are equal but not identical
        or (type(value) is _BUILTIN and value.__self__ is _shared)
    ]


_BUILTIN = type(_shared.random)
_BOUND: set[Any] = {_BUILTIN, type(_shared_numpy.rand), MethodType}


# Python's ---------------------------------------------------------------------------------------------------


class _Beneath(CoreRandom):
    """Comes after ``random.Random`` in the order of inheritance: its ``seed``, ``getstate`` and ``setstate``, which the
    module bound when it was imported, look for the next class's and find these."""

    __slots__ = ()

    def seed(self, a: Any = None) -> None:
        source = _current()
        CoreRandom.seed(self if source is None else source.python, a)

    def getstate(self) -> Any:
        source = _current()
        return CoreRandom.getstate(self if source is None else source.python)

    def setstate(self, state: Any) -> None:
        source = _current()
        CoreRandom.setstate(self if source is None else source.python, state)


class _SharedRandom(random.Random, _Beneath):
    """The instance behind the functions of ``random``."""

    __slots__ = ()

    def random(self) -> float:
        source = _current()
        return CoreRandom.random(self if source is None else source.python)

    def getrandbits(self, k: int, /) -> int:
        source = _current()
        return CoreRandom.getrandbits(self if source is None else source.python, k)

    @property
    def gauss_next(self) -> float | None:
        """The second draw of ``gauss``, kept for the next call."""
        source = _current()
        return vars(self if source is None else source.python)["gauss_next"]

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        source = _current()
        vars(self if source is None else source.python)["gauss_next"] = value

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is an ordinary generator, as it always was."""
        return random.Random, (), self.getstate()


# numpy's ----------------------------------------------------------------------------------------------------


def _by_thread(name: str, elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    method = {"sample": "random_sample", "ranf": "random_sample"}.get(name, name)

    @wraps(elsewhere)
    def function(*arguments: Any, **named: Any) -> Any:
        source = _current()
        if source is None:
            return elsewhere(*arguments, **named)
        return getattr(source.numpy_legacy, method)(*arguments, **named)

    function.__module__, function.__qualname__ = "numpy.random", name  # by which it is pickled
    return cast(Callable[..., Any], function)
