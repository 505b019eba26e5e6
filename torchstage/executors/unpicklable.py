"""Unpicklable: a value that pickle refuses in, where in it the reason is and what to do out.

Guarantees: bounded in depth, number and seconds; what it does not find, it says in pickle's own words.
"""

import functools
import io
import sys
import time
import types
from collections.abc import Iterator
from typing import Any, cast

from torchstage.executors.contents import gathered, refuse
from torchstage.executors.files import Files

MAX_DEPTH = 30
MAX_CHILDREN = 1_000  # of one container that are tried
MAX_SECONDS = 5.0
MAX_SHOWN = 80  # characters of a key

_OWN_WAY = (
    "Open it in the process that uses it: leave it out in __getstate__ and open it at its first use, or open it in "
    "worker_init_fn"
)
_SHARED = (
    "A copy in each process would be another one: take multiprocessing_context='fork', which shares it, or a proxy of "
    "multiprocessing.Manager()"
)
_THREADS = "load with threads, which share it: worker_method='thread'"


class NotPicklable(TypeError):  # noqa: N818  # it says what is wrong
    """Something that processes are to be given cannot be pickled: where it is, what it is, and the ways out.

    ``path``: where, by the names of the roots ("dataset.transform.fn"); ``what``: what it is, in words.
    """

    def __init__(self, message: str, path: str = "", what: str = "") -> None:
        super().__init__(message)
        self.path, self.what = path, what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.path, self.what)


def explain(value: Any, roots: dict[str, Any], error: BaseException, whose: str = "The dataset and its stages") -> Any:
    """The error that says which part of ``value`` cannot be pickled, by the names of the roots."""
    stop = time.monotonic() + MAX_SECONDS
    for name, root in (*roots.items(), ("program", value)):
        if not _can_pickle(root):
            path, culprit = _deepest(root, name, stop)
            what, way = _described(culprit)
            own = _words(error)
            way = _SHARED if "only be shared between processes through inheritance" in own else way
            return NotPicklable(
                f"{whose} cannot be sent to another process: {path} is {what}. pickle says: {own}. {way}, or "
                f"{_THREADS}.",
                path,
                what,
            )
    return NotPicklable(
        f"{whose} cannot be sent to another process, pickle says: {_words(error)}. Change what it names, or "
        f"{_THREADS}.",
        next(iter(roots), "program"),
        _words(error),
    )


def _words(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {str(error)[:500]}".rstrip(". ")


def _can_pickle(value: Any) -> bool:
    try:
        gathered(value, refuse, Files())
    except Exception:
        return False
    return True


def _deepest(value: Any, path: str, stop: float) -> tuple[str, Any]:
    """The part that has no part that fails, and where it is."""
    seen: set[int] = set()
    for _ in range(MAX_DEPTH):
        seen.add(id(value))
        if _root(value) == "multiprocessing":  # what it consists of is nobody's to mend
            return path, value
        for step, part in _parts(value):
            if time.monotonic() > stop:
                return path, value
            if id(part) not in seen and not _can_pickle(part):
                path, value = path + step, part
                break
        else:
            return path, value
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What pickle would go into, and how one gets there in Python."""
    count = 0
    for step, part in _all_parts(value):
        if type(part) in (int, float, str, bytes, bool, type(None)):
            continue
        count += 1
        if count > MAX_CHILDREN:
            return
        yield step, part


def _all_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"[{_key(key)}]", part
            yield ".keys()", key
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            yield f"[{index}]", part
    elif isinstance(value, set | frozenset):
        for part in value:  # pyright: ignore[reportUnknownVariableType]
            yield "{...}", part
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        for step, part in (*_all_parts(value.args), *_all_parts(value.keywords)):
            yield (f".args{step}" if step[1:2].isdigit() else f".keywords{step}"), part
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    if isinstance(value, types.FunctionType | type | types.ModuleType):
        return
    yield from _state_of(value)


def _state_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object says is its state; without a word, its attributes."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        return
    if not isinstance(reduced, tuple):
        return
    made = cast("tuple[Any, ...]", reduced)
    state = made[2] if len(made) > 2 else None
    for own in state if isinstance(state, tuple) else (state,):  # pyright: ignore[reportUnknownVariableType]
        if isinstance(own, dict):
            for name, part in own.items():  # pyright: ignore[reportUnknownVariableType]
                yield (f".{name}" if isinstance(name, str) and name.isidentifier() else f"[{_key(name)}]"), part
        elif own is not None:
            yield ".__getstate__()", own
    if len(made) > 1 and isinstance(made[1], tuple):
        for part in made[1]:  # pyright: ignore[reportUnknownVariableType]
            if part is not value and not isinstance(part, type):
                yield _name_of(value, part), part


def _name_of(value: Any, part: Any) -> str:
    for name, own in getattr(value, "__dict__", {}).items():
        if own is part:
            return f".{name}"
    return ".__reduce__()"


def _key(key: Any) -> str:
    try:
        return repr(key)[:MAX_SHOWN]
    except Exception:
        return "..."


def _described(value: Any) -> tuple[str, str]:
    """What it is, and the way out that is its own."""
    kind = cast(Any, type(value))
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, types.FunctionType):
        code = value.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        called = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
        if value.__name__ != "<lambda>" and "<locals>" not in value.__qualname__:
            return f"{called} at {place}, which is not what its module has under that name", _top("function")
        return f"{called} at {place}" + ("" if called == "a lambda" else ", inside another function"), _top("function")
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}", _top("class")
    if "<locals>" in kind.__qualname__:
        return f"an object of {name}, a class inside a function", _top("class")
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}", "Import it in the function that uses it"
    if isinstance(value, types.GeneratorType):
        return f"a generator ({value.__qualname__})", "Make it in the process: keep the function that makes it"
    if isinstance(value, io.IOBase):
        return f"an open file ({getattr(value, 'name', name)!r})", _OWN_WAY
    root = _root(value)
    if root == "multiprocessing":
        if kind.__module__.partition(".")[2] in ("context", "managers", "pool", "process"):
            return f"an object of {name}, which belongs to one process", "Make it in the process that uses it"
        return f"an object of {name}, which only processes made by fork can share", _SHARED
    if root in ("h5py", "lmdb", "sqlite3", "av", "decord", "torchcodec", "zarr", "tables", "netCDF4"):
        shown = getattr(value, "filename", None) if root == "h5py" else None
        return f"an open handle ({name}{'' if shown is None else f' of {shown!r}'})", _OWN_WAY
    if root in ("_thread", "threading", "queue", "asyncio"):
        return f"an object for threads ({name})", "Leave it out in __getstate__ and make it anew in __setstate__"
    if getattr(sys.modules.get(kind.__module__), kind.__name__, kind) is not kind:
        return f"an object of {name}, a class that its module no longer has under that name", _top("class")
    return f"an object of {name}", _OWN_WAY


def _root(value: Any) -> str:
    """The package that the class of a value comes from."""
    return str(cast(Any, type(value)).__module__).partition(".")[0]


def _top(what: str) -> str:
    return f"Write it as a {what} at the top of a module"
