"""Elsewhere: stages and a value in, what they make of it in an executor of the user's out.

Guarantees: only the stages' functions, the value and plain numbers travel; an error is the function's own and says its
stage.
"""

import os
import pickle
import platform
import traceback
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

from torchstage import coroutines, rng
from torchstage.engine.executors import STAGE, explained, say_stage, stage_of
from torchstage.engine.ticket import Part
from torchstage.order import index_and_salt
from torchstage.seeds import Seeds, is_stable

Steps = Sequence[tuple[str, Any, str]]  # a stage's name, its function, what its draws are called


@dataclass(frozen=True, slots=True)
class Remote:
    """A stage's function as it is given to an executor, with what seeds its draws."""

    function: Any
    draws: str
    seeds: Seeds | None

    def __call__(self, value: Any) -> Any:
        raise AssertionError("it is called where the executor says so")


def submit_to(executor: Executor, part: Part, slot: int, value: Any) -> Future[Any]:
    """Give the executor one sample of the part, for all the part's stages."""
    item: Any = part.batch.items[slot]
    steps = [(stage, function) for stage, function in part.segment.steps if isinstance(function, Remote)]
    index, salt = index_and_salt(item)
    return _submit(executor, steps, value, index, salt)


def here(steps: Sequence[tuple[str, Remote]]) -> Any:
    """A function that runs these stages where it is called."""

    plain, seeds = _plain(steps), steps[0][1].seeds

    def made(value: Any) -> Any:
        return _run(plain, index_and_salt(value)[0], _drawn(seeds))

    return made


def _drawn(seeds: Seeds | None) -> "tuple[rng.Scope, coroutines.Draws] | None":
    scope, sample = rng.current(), coroutines.coming.get()
    return None if seeds is None or scope is None or sample is None else (scope, sample)


def waiting_for(executor: Executor, steps: Sequence[tuple[str, Remote]]) -> Any:
    """A function that has the executor run these stages on a value, and waits."""

    def made(value: Any) -> Any:
        sample = coroutines.coming.get()
        _, index, salt = (None, None, 0) if sample is None else sample
        is_refusal = True
        try:
            future = _submit(executor, steps, value, index, salt)
            is_refusal = False
            return future.result()
        except BaseException as error:
            said, stage = explained(error, executor, steps[0][0], is_refusal=is_refusal)
            say_stage(said, stage)
            raise said  # noqa: B904  # it has its cause, or is the error itself
        finally:
            future = None  # it refers to the error, whose traceback refers to this frame

    return made


def _submit(executor: Executor, steps: Sequence[tuple[str, Remote]], value: Any, index: Any, salt: int) -> Future[Any]:
    seeds = steps[0][1].seeds
    sample = None if seeds is None else (seeds, index if is_stable(index) else ..., salt)  # "...": its salt says all
    # A first stage is given a dataset index.
    return executor.submit(run, _plain(steps), sample, index_and_salt(value)[0], this_process())


def _plain(steps: Sequence[tuple[str, Remote]]) -> Steps:
    """What travels of the stages."""
    return tuple((stage, remote.function, remote.draws) for stage, remote in steps)


def this_process() -> tuple[str, int]:
    """What no other process has."""
    return platform.node(), os.getpid()


def run(steps: Steps, sample: coroutines.Draws | None, value: Any, sender: tuple[str, int]) -> Any:
    """Where the executor runs it: in a thread, in another process, on another machine."""
    try:
        if sample is None:
            return _run(steps, value, None)
        with rng.drawing_from(rng.Scope()) as scope:
            return _run(steps, value, (scope, sample))
    except BaseException as error:
        if this_process() == sender or _can_travel(error):
            raise
        words = _in_words(error)  # else the executor would break: it meets the error when it unpacks it
    raise words


def _can_travel(error: BaseException) -> bool:
    """Whether it is the same after it was sent to another process, and can be given a cause there."""
    try:
        again = pickle.loads(pickle.dumps(error))
        again.__cause__ = None
    except Exception:
        return False
    return type(again) is type(error)


def _in_words(error: BaseException) -> RuntimeError:
    """An error that says the same and can be sent to another process."""
    kind = type(error)
    words = "".join(traceback.format_exception(error))
    made = RuntimeError(
        f"{kind.__module__}.{kind.__qualname__}, which cannot be pickled, was raised in a process of the stage's "
        f"executor. There it was:\n{words}"
    )
    if STAGE in getattr(error, "__dict__", {}):
        say_stage(made, stage_of(error, ""))
    return made


def _run(steps: Steps, value: Any, drawn: tuple[rng.Scope, coroutines.Draws] | None) -> Any:
    for stage, function, draws in steps:
        if drawn is not None:
            scope, (seeds, index, salt) = drawn
            scope.begin(seeds, draws, index, salt)
        try:
            value = function(value)
        except BaseException as error:
            say_stage(error, stage)
            raise
    return value
