"""Failures: an exception of a process in, the same exception in the parent out, and what is said of a dead process.

Guarantees: it is of the same type, with its arguments, notes and attributes as far as these can travel, whatever its
``__init__`` takes; how it came about is told as text; an error in here is an error in words, never a broken process.
"""

import contextlib
import pickle
import signal
import traceback
from dataclasses import dataclass
from typing import Any, cast

from torchstage.engine.executors import ExecutorDiedError
from torchstage.engine.outcome import SAMPLE, STAGE

MAX_TEXT = 100_000  # characters of a traceback: RecursionError's own is folded, but a chain of causes may be long
_PLACE = (STAGE, SAMPLE, "__notes__")  # attributes that say where it was: kept whatever becomes of it
MAX_DEPTH = 20  # of exception groups in one another


class ProcessDied(RuntimeError):  # noqa: N818  # it says what happened
    """A process of the loader died in a job, and another one did in the same job.

    ``at``: where in the job it was, None if it had not said; ``pid``: of the last one; ``cause``: why, in words;
    ``was_twice_there``: whether the one before it died at the same place.
    """

    def __init__(
        self,
        message: str,
        at: int | None = None,
        pid: int | None = None,
        cause: str = "",
        was_twice_there: bool = False,
    ) -> None:
        super().__init__(message)
        self.at, self.pid, self.cause, self.was_twice_there = at, pid, cause, was_twice_there
        setattr(self, SAMPLE, at)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.at, self.pid, self.cause, self.was_twice_there)


class NoProcessLeft(ProcessDied, ExecutorDiedError):  # noqa: N818  # as above
    """Processes died so often that no others are started: no sample's fault, as far as is known."""


class ElsewhereTraceback(Exception):  # noqa: N818  # it is a text that tracebacks print as the cause
    """How an error came about in another process, as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True, slots=True)
class Packed:
    """An exception that travels. All but the text is pickled."""

    text: str  # its traceback
    words: str  # its type and message, for when it cannot be made again
    whole: bytes | None = None  # the exception, where pickle makes the same of it again
    kind: bytes | None = None  # else its type,
    arguments: bytes | None = None  # its ``args``,
    attributes: tuple[tuple[str, bytes], ...] = ()  # those of its attributes that can travel, or those of its place,
    members: "tuple[Packed, ...]" = ()  # and an exception group's members


def packed(error: BaseException) -> Packed:
    """What travels of the error."""
    try:
        text = "".join(traceback.format_exception(error))[-MAX_TEXT:]
    except Exception as failed:  # user code: __str__, or attributes that tracebacks show
        text = f"its traceback cannot be formatted: {type(failed).__qualname__}\n"
    return _packed(error, text, 0)


def _packed(error: BaseException, text: str, depth: int) -> Packed:
    kind = type(error)
    words = _words(error)
    whole = _pickled(error)
    own = _attributes(error)
    if whole is not None:
        return Packed(text, words, whole, attributes=_kept({key: own[key] for key in _PLACE if key in own}))
    name = _pickled(kind)
    if name is None or depth > MAX_DEPTH:
        return Packed(text, words, attributes=_kept({key: own[key] for key in _PLACE if key in own}))
    kept = _kept(own)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        members = tuple(_packed(member, "", depth + 1) for member in group.exceptions)
        return Packed(text, words, None, name, _pickled(group.message), kept, members)
    return Packed(text, words, None, name, _pickled(tuple(_sendable(part) for part in error.args)), kept)


def _words(error: BaseException) -> str:
    kind = type(error)
    try:
        return f"{kind.__module__}.{kind.__qualname__}: {error}"
    except Exception:
        return f"{kind.__module__}.{kind.__qualname__}"


def _attributes(error: BaseException) -> dict[str, Any]:
    """Its own, and those that the class of an OSError, ImportError and the like keeps outside of ``__dict__``."""
    found = dict(vars(error))
    for key in ("errno", "strerror", "filename", "filename2", "name", "path", "obj", "code", "value"):
        if key not in found and getattr(error, key, None) is not None:
            found[key] = getattr(error, key)
    return found


def _kept(attributes: dict[str, Any]) -> tuple[tuple[str, bytes], ...]:
    """Those that can travel."""
    found = ((key, _pickled(value)) for key, value in attributes.items())
    return tuple((key, value) for key, value in found if value is not None)


def _pickled(value: Any) -> bytes | None:
    """The pickle, if pickle makes something of the same type of it again."""
    try:
        text = pickle.dumps(value, 5)
        again = pickle.loads(text)
    except Exception:
        return None
    is_same = again is value if isinstance(value, type) else type(again) is type(value)
    return text if is_same else None


def _sendable(value: Any) -> Any:
    return value if _pickled(value) is not None else _shown(value)


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__qualname__}>"


def unpacked(sent: Packed) -> BaseException:
    """The exception, with how it came about as its cause. A new one each time, for each who raises it."""
    try:
        error = _made(sent)
    except Exception:  # user code: the class is another one here, or cannot be imported
        error = _in_words(sent, "it cannot be made again here")
    with contextlib.suppress(Exception):  # a class may forbid it
        error.__cause__ = ElsewhereTraceback(sent.text)
    return error


def _made(sent: Packed) -> BaseException:
    if sent.whole is not None:
        return pickle.loads(sent.whole)
    if sent.kind is None:
        return _in_words(sent, "its type cannot be pickled")
    kind: type[BaseException] = pickle.loads(sent.kind)
    arguments: Any = () if sent.arguments is None else pickle.loads(sent.arguments)
    if issubclass(kind, BaseExceptionGroup):
        grouped = cast("type[BaseExceptionGroup[BaseException]]", kind)
        error: BaseException = grouped(arguments, [_made(member) for member in sent.members])
    else:
        error = _without_init(kind, arguments)
    for key, value in sent.attributes:
        with contextlib.suppress(Exception):  # a property, or a class that is not there
            setattr(error, key, pickle.loads(value))
    return error


def _in_words(sent: Packed, why_not: str) -> RuntimeError:
    """What is left of an error that is nothing here: its words, and where it was."""
    error = RuntimeError(f"{sent.words} (raised in a process of the loader, and {why_not})")
    for key, value in sent.attributes:
        if key in _PLACE:
            setattr(error, key, pickle.loads(value))
    return error


def _without_init(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    """An exception with these ``args``. Its ``__init__`` is not called: it may take others."""
    try:
        error = kind.__new__(kind, *arguments)
    except TypeError:  # a __new__ of its own
        error = _builtin(kind).__new__(kind, *arguments)
    with contextlib.suppress(Exception):
        cast(Any, _builtin(kind)).__init__(error, *arguments)  # it keeps what it is given outside of __dict__
    error.args = arguments
    return error


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def why(exit_code: int | None) -> str:
    """What an exit code means, as multiprocessing gives it: negative for a signal."""
    if exit_code is None:
        return "the process that makes them was ended"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
    often = {
        "SIGKILL": ": often the system is out of memory",
        "SIGSEGV": ": a fault in a library of C code",
        "SIGBUS": ": often there is no room left in /dev/shm or on a disk that a file is mapped from",
        "SIGABRT": ": a library of C code gave up, often it said why on stderr",
    }.get(name, "")
    return f"signal {-exit_code} ({name}){often}"
