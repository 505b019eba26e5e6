"""Elsewhere: stages and a value in, what they make of it in an executor of the user's out.

Guarantees: only the stages' functions, the value and plain numbers travel; an error is the function's own and says its
stage.
"""

import os
import pickle
import platform
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torchstage import coroutines, rng
from torchstage.engine.executors import Made, explained, say_stage, stage_of
from torchstage.engine.outcome import STAGE
from torchstage.engine.probe import Probe, Probes, known
from torchstage.engine.ticket import Part
from torchstage.engine.told import Place, this_thread
from torchstage.engine.watch import Timing, Watch, watch_here
from torchstage.order import index_and_salt
from torchstage.seeds import Seeds, is_stable

# A stage's name, its function, what its draws are called; no name: they go on where the stage before it stopped.
Steps = Sequence[tuple[str, Any, str | None]]


@dataclass(frozen=True, slots=True)
class Remote:
    """A stage's function as it is given to an executor, with what seeds its draws."""

    function: Any
    draws: str | None
    seeds: Seeds | None

    def __call__(self, value: Any) -> Any:
        raise AssertionError("it is called where the executor says so")


def submit_to(executor: Executor, probes: Probes, part: Part, slot: int, value: Any) -> Future[Any]:
    """Give the executor one sample of the part, for all the part's stages. ``probes``: who may want to know where."""
    item: Any = part.batch.items[slot]
    steps = [(stage, function) for stage, function in part.segment.steps if isinstance(function, Remote)]
    index, salt = index_and_salt(item)
    return _submit(executor, steps, value, index, salt, probes.now)


def here(steps: Sequence[tuple[str, Remote]]) -> Any:
    """A function that runs these stages where it is called."""

    plain, seeds = _plain(steps), steps[0][1].seeds

    def made(value: Any) -> Any:
        if (watch := watch_here()) is not None:
            watch.skip()
        return _run(plain, index_and_salt(value)[0], _drawn(seeds))

    return made


def _drawn(seeds: Seeds | None) -> "tuple[rng.Scope, coroutines.Draws] | None":
    scope, sample = rng.current(), coroutines.coming.get()
    return None if seeds is None or scope is None or sample is None else (scope, sample)


def waiting_for(
    executor: Executor, steps: Sequence[tuple[str, Remote]], waits: dict[Future[Any], int] | None = None
) -> Any:
    """A function that has the executor run these stages on a value, and waits. ``waits``: which thread waits for what,
    for whoever wants to know."""

    def made(value: Any) -> Any:
        sample = coroutines.coming.get()
        _, index, salt = (None, None, 0) if sample is None else sample
        is_refusal, future = True, None
        try:
            watch, begin = watch_here(), perf_counter()
            future = _submit(executor, steps, value, index, salt, None if watch is None else watch.probe)
            is_refusal = False
            if waits is not None:
                waits[future] = threading.get_ident()
            answer = future.result()
            if type(answer) is not Made:
                return answer
            if watch is not None:
                watch.lost_seconds += max(0.0, perf_counter() - begin - sum(seconds for seconds, _ in answer.laps))
                watch.give(answer.laps, answer.place)
            return answer.value
        except BaseException as error:
            said, stage = explained(error, executor, steps[0][0], is_refusal=is_refusal)
            say_stage(said, stage)
            raise said  # noqa: B904  # it has its cause, or is the error itself
        finally:
            if waits is not None and future is not None:
                waits.pop(future, None)
            future = None  # it refers to the error, whose traceback refers to this frame

    return made


def _submit(
    executor: Executor,
    steps: Sequence[tuple[str, Remote]],
    value: Any,
    index: Any,
    salt: int,
    probe: Probe | None = None,
) -> Future[Any]:
    seeds = steps[0][1].seeds
    sample = None if seeds is None else (seeds, index if is_stable(index) else ..., salt)  # "...": its salt says all
    # A first stage is given a dataset index.
    told: Any = () if probe is None else (probe.key,)
    return executor.submit(run, _plain(steps), sample, index_and_salt(value)[0], this_process(), *told)


def _plain(steps: Sequence[tuple[str, Remote]]) -> Steps:
    """What travels of the stages."""
    return tuple((stage, remote.function, remote.draws) for stage, remote in steps)


def this_process() -> tuple[str, int]:
    """What no other process has."""
    return platform.node(), os.getpid()


class _Own(threading.local):
    watch: Watch | None = None  # while it is not in use


_own = _Own()


def run(
    steps: Steps,
    sample: coroutines.Draws | None,
    value: Any,
    sender: tuple[str, int],
    probe: int | None = None,
    held: Sequence[Any] = (),
    *,
    sends_all_errors: bool = False,
) -> Made:
    """Where the executor runs it: in a thread, in another process, on another machine. ``probe``: the key of the one
    that wants to know where; it hears of each stage while it runs if that is in its own process. ``held``: generators
    that the functions keep, which are to draw for this sample alone. ``sends_all_errors``: whether what sends an error
    back does so with one that cannot be pickled as it is, too."""
    if probe is not None and (listening := known(probe)) is not None and this_process() == sender:
        steps = tuple((stage, listening.marked(stage, function), draws) for stage, function, draws in steps)
    watch, _own.watch = _own.watch or Watch(), None  # what it runs may run others here
    try:
        with Timing(watch):  # in a thread that is timing something already, maybe
            if sample is None:
                watch.begin()
                value = _run(steps, value, None)
            else:
                with rng.drawing_from(rng.Scope()) as scope:
                    watch.begin()
                    value = _run(steps, value, (scope, sample), held)
            watch.lap()
            laps = watch.end()
            if probe is None:
                return Made(value, laps)
            begin = perf_counter() - sum(seconds for seconds, _ in laps)
            return Made(value, laps, Place(this_thread(), begin))
    except BaseException as error:
        if sends_all_errors or this_process() == sender or can_travel(error):
            raise
        words = in_words(error)  # else the executor would break: it meets the error when it unpacks it
    finally:
        _own.watch = watch
    raise words


def can_travel(error: BaseException) -> bool:
    """Whether it is the same after it was sent to another process, and can be given a cause there."""
    try:
        again = pickle.loads(pickle.dumps(error))
        again.__cause__ = None
    except Exception:
        return False
    return type(again) is type(error)


def in_words(error: BaseException) -> RuntimeError:
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


def _run(steps: Steps, value: Any, drawn: tuple[rng.Scope, coroutines.Draws] | None, held: Sequence[Any] = ()) -> Any:
    watch = watch_here()
    for number, (stage, function, draws) in enumerate(steps):
        if number and watch is not None:
            watch.lap()
        if drawn is not None and draws is not None:
            scope, (seeds, index, salt) = drawn
            scope.begin(seeds, draws, index, salt, held)
        try:
            value = function(value)
        except BaseException as error:
            say_stage(error, stage)
            raise
    return value
