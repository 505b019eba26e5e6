"""Stage: a user's function in, a named step of the pipeline out; and what one sample's way through such steps was like.

Guarantees: a stage that cannot run is refused where it is written down, with what to write instead; ``described`` never
raises and keeps its words short, whatever the value is.
"""

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import NoneType
from typing import Any, Literal, cast

import numpy as np
import torch

from torchstage.looking import is_a, type_of

MAX_ITEMS = 8  # of a container that are put into words
MAX_DEPTH = 3  # of containers inside each other
MAX_LETTERS = 200  # of the words for one value: a line of a table


@dataclass(frozen=True, slots=True)
class Stage:
    """One step that each sample takes: ``fn(value) -> value``.

    Args:
        fn: takes what the dataset, or the stage before it, made of one sample; what it returns goes on. It may be
            ``async def``.
        name: None means the function's own name, see ``label``.
        executor: "thread" (the loader's threads; its event loop for an async ``fn``), "process" (processes of the
            loader's, for work that is Python bytecode; ``fn`` must be picklable), or any
            ``concurrent.futures.Executor``, which stays the caller's to shut down.
        concurrency: how many samples may be in this stage at once, at least 1; None: what the loader has.
        timeout_seconds: a sample that is in this stage for longer fails with ``StageTimeout``, and another thread (or
            process) takes the place of the one that is stuck in it (``docs/timeouts.md``). None: it may take for ever.

    Raises:
        TypeError: for values of the wrong kind.
        ValueError: for what cannot run.
    """

    fn: Callable[[Any], Any]
    name: str | None = None
    executor: Literal["thread", "process"] | Executor = "thread"
    concurrency: int | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        fn, name, executor, concurrency, seconds = (getattr(self, field.name) for field in dataclasses.fields(self))
        if not callable(fn):
            raise TypeError(f"Stage: fn must be a function of one value, got {fn!r}.")
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(f"Stage: name must be a string with at least one letter, or None, got {name!r}.")
        place = f"Stage {self.label!r}"
        if executor not in ("thread", "process") and not isinstance(executor, Executor):
            raise TypeError(
                f"{place}: executor must be 'thread', 'process' or a concurrent.futures.Executor (the object, not its "
                f"class), got {executor!r}."
            )
        if executor != "thread" and self.is_async:
            elsewhere = "a process" if executor == "process" else type(executor).__name__
            raise ValueError(
                f"{place}: an async function runs on the loader's event loop, not in {elsewhere}. Leave executor out, "
                "or pass a function that is not async."
            )
        if concurrency is not None and (isinstance(concurrency, bool) or not isinstance(concurrency, int)):
            raise TypeError(f"{place}: concurrency must be an int or None, got {concurrency!r}.")
        if concurrency is not None and concurrency < 1:
            raise ValueError(
                f"{place}: concurrency must be at least 1, got {concurrency}. "
                "Use num_workers=0 to run every stage inline."
            )
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
            raise TypeError(f"{place}: timeout_seconds must be a number of seconds or None, got {seconds!r}.")
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(
                f"{place}: timeout_seconds must be more than 0 and not infinite, got {seconds!r}. None: no time-out."
            )

    @property
    def label(self) -> str:
        """The name, or the function's own: of a method, of what a ``partial`` calls, of a callable object's class."""
        return self.name or _name_of(self.fn)

    @property
    def is_async(self) -> bool:
        """Whether ``fn`` gives a coroutine."""
        return is_coroutine_function(self.fn)


@dataclass(frozen=True, slots=True)
class StageTrace:
    """What one stage did with one sample."""

    name: str
    """The stage's."""
    seconds: float
    """Wall time."""
    result: str
    """Type and shape of what it made, in words."""


@dataclass(frozen=True, slots=True)
class SampleTrace:
    """One sample and how it was made. ``print`` shows a table with a line for each stage."""

    value: Any
    """The sample, before it is collated."""
    stages: tuple[StageTrace, ...]
    """In the order in which it went through them."""

    def __str__(self) -> str:
        times = [f"{trace.seconds * 1e3:.2f}" for trace in self.stages]
        names_wide = max(len("stage"), *(len(trace.name) for trace in self.stages)) if self.stages else len("stage")
        times_wide = max(len("ms"), *(len(time) for time in times)) if times else len("ms")
        lines = [f"{'stage':<{names_wide}}  {'ms':>{times_wide}}  result"]
        for trace, time in zip(self.stages, times, strict=True):
            lines.append(f"{trace.name:<{names_wide}}  {time:>{times_wide}}  {trace.result}")
        return "\n".join(lines)


def named(stages: Iterable[Stage]) -> tuple[str, ...]:
    """A name for each stage, all different: of two stages "decode" the second is "decode-2"."""
    labels = [stage.label for stage in stages]
    taken, seen = set(labels), Counter[str]()
    names: list[str] = []
    for label in labels:
        name, seen[label] = label, seen[label] + 1
        if seen[label] > 1:
            while (name := f"{label}-{seen[label]}") in taken:
                seen[label] += 1
        taken.add(name)
        names.append(name)
    return tuple(names)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it gives a coroutine: ``async def``, a method or ``partial`` of one, or an object whose
    ``__call__`` is one."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    name = getattr(function, "__name__", None)
    return (name if isinstance(name, str) else type(function).__name__).strip("<>")  # "<lambda>" among others


def described(value: Any) -> str:
    """Type and shape in words: "Tensor uint8 (3, 224, 224)", "bytes of length 7012", "tuple of (int, float)"."""
    words = _described(value, MAX_DEPTH - 1)
    return words if len(words) <= MAX_LETTERS else words[: MAX_LETTERS - 3] + "..."


def _described(value: Any, depth: int) -> str:
    try:
        return _words_for(value, depth)
    except Exception:  # an object whose own methods fail: it is looked at, not judged
        return type(value).__name__


def _words_for(value: Any, depth: int) -> str:
    kind = type_of(value)
    name = "None" if kind is NoneType else kind.__name__
    if is_a(value, torch.Tensor):
        place = "" if value.device.type == "cpu" else f" on {value.device}"
        return f"{name} {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}{place}"
    if is_a(value, np.ndarray):
        return f"{name} {value.dtype} {value.shape}"
    if kind.__module__.partition(".")[0] == "PIL":
        return f"{name} {value.mode} {value.size[0]} x {value.size[1]}"
    if is_a(value, str, bytes, bytearray, memoryview):
        return f"{name} of length {len(value)}"
    if dataclasses.is_dataclass(kind):
        keys = [field.name for field in dataclasses.fields(kind)]
        return f"{name} of ({_listed([f'{key}=' for key in keys], [getattr(value, key) for key in keys], depth)})"
    if is_a(value, tuple) and hasattr(kind, "_fields"):
        return f"{name} of ({_listed([f'{key}=' for key in value._fields], value, depth)})"
    if is_a(value, tuple):
        return f"{name} of ({_listed([''] * len(value), value, depth)})"
    if is_a(value, list):
        return f"{name} of [{_listed([''] * len(value), value, depth)}]"
    if is_a(value, dict, Mapping):
        firsts: list[tuple[Any, Any]] = list(islice(value.items(), MAX_ITEMS + 1))
        words = _listed([f"{key!r}: " for key, _ in firsts], [item for _, item in firsts], depth, len(value))
        return f"{name} of {{{words}}}"
    return f"{name} of length {len(value)}" if hasattr(kind, "__len__") else name


def _listed(keys: Sequence[str], items: Sequence[Any], depth: int, num_items: int | None = None) -> str:
    """The first few items in words; a long row of the same is said once: "300 x int"."""
    num_items = len(items) if num_items is None else num_items
    if depth == 0 and num_items:
        return f"{num_items} items"
    words = [key + _described(item, depth - 1) for key, item in zip(keys, items[:MAX_ITEMS], strict=False)]
    if num_items <= MAX_ITEMS:
        return ", ".join(words)
    if len(set(words)) == 1 and len(set(map(type, items))) == 1:
        return f"{num_items} x {words[0]}"
    return ", ".join([*words, f"and {num_items - MAX_ITEMS} more"])
