"""Deadlines elsewhere: coroutines and futures in, those that are in a stage for too long cancelled and failed out.

Guarantees: as ``deadlines``; a coroutine is cancelled in its loop's thread, so that it is not on its way out at that
moment; a future that cannot be cancelled is waited for no longer. Where nothing could go on any more, an error says so.
"""

import math
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from torchstage.engine.concurrently import Concurrently
from torchstage.engine.deadlines import MOST_PER_THREAD, Stack, StageTimeout, Stuck, Where, timed_out
from torchstage.engine.event_loop import EventLoop, Making
from torchstage.engine.executors import InExecutor
from torchstage.engine.probe import ByHand
from torchstage.engine.ticket import Batch

BLOCKED_SECONDS = 5.0  # for the event loop to do what it is told: then what runs in it blocks it
LOOK_SECONDS = 0.05  # a future does not say since when it runs: it is looked at so often


@dataclass(slots=True)
class _Asked:
    """A coroutine that the loop was told to cancel: in which stage, and when."""

    begin: float
    at: float


class Coroutines:
    """The coroutines of a loader's event loop."""

    def __init__(self, loop: Callable[[], EventLoop | None], where: Where, stack: Stack) -> None:
        self._loop, self._where, self._stack = loop, where, stack
        self._asked: dict[int, _Asked] = {}  # by the id of what is known to be in the making

    def look(self, now: float) -> float:
        """As Looked.look."""
        loop, due = self._loop(), math.inf
        if loop is None:
            return due
        known, num_given_up = self._asked, 0
        self._asked = {}
        for task, making in loop.made():
            stage, begin = making.stage, making.begin  # in this order: the other way round it is written
            seconds = making.part.segment.limits.get(stage, math.inf)
            num_given_up += making.is_given_up
            if making.is_given_up or begin + seconds == math.inf:
                continue
            if begin + seconds > now:
                due = min(due, begin + seconds)
                continue
            asked = known.get(id(making))
            if asked is None or asked.begin != begin:
                asked = _Asked(begin, now)
                self._give_up(loop, task, making, begin, making.part.batch, making.slot, seconds)
            elif asked.at + BLOCKED_SECONDS <= now:
                raise self._blocked(loop, stage)
            self._asked[id(making)] = asked
            due = min(due, asked.at + BLOCKED_SECONDS)
        if num_given_up >= MOST_PER_THREAD * max(1, loop.num_coroutines):
            raise RuntimeError(
                f"StageLoader: {num_given_up} coroutines were cancelled because they took too long, and did not end. "
                "What they wait for must let asyncio.CancelledError through."
            )
        return due

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """As Looked.give_up."""
        loop = self._loop()
        for task, making in () if loop is None else loop.made():
            if making.part.batch is batch and making.slot == slot and not making.is_given_up:
                assert loop is not None
                self._give_up(loop, task, making, making.begin, batch, slot, seconds)
                return True
        return False

    def _give_up(
        self, loop: EventLoop, task: Any, making: Making, begin: float, batch: Batch, slot: int, seconds: float
    ) -> None:
        where, place = self._where(batch, slot, making.stage), making.part.segment.place
        assert isinstance(place, Concurrently)
        error = partial(_of_coroutine, task, where, loop.thread.name, batch, slot, seconds)
        loop.tell(place.give_up, task, making, begin, error)

    def _blocked(self, loop: EventLoop, stage: str) -> RuntimeError:
        return RuntimeError(
            f"StageLoader: a coroutine of stage {stage!r} took too long and cannot be cancelled: the event loop "
            f"has not run for {BLOCKED_SECONDS:g} seconds: an async function must not call what blocks. Call that with "
            f"asyncio.to_thread, or make the stage's function a plain one. Thread {loop.thread.name} is here:\n"
            f"{self._stack(loop)}"
        )


def _of_coroutine(
    task: Any, where: str, thread: str, batch: Batch, slot: int, seconds: float, making: Making
) -> StageTimeout:
    """In the loop's thread, where the coroutine waits at this moment."""
    who = f"in a coroutine in thread {thread}"
    return timed_out(where, who, stack_of_task(task), batch, slot, making.stage, seconds)


def stack_of_task(task: Any) -> str:
    """Where a task waits, innermost call last. Called in its loop's thread."""
    lines: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        by_hand = awaited if frame is None else frame.f_locals.get("self")
        if isinstance(by_hand, ByHand):
            awaited = by_hand.awaits
            continue
        if frame is not None and frame.f_globals.get("__name__") != Concurrently.__module__:
            lines += traceback.StackSummary.extract([(frame, frame.f_lineno)]).format()
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return "".join(lines)


class Futures:
    """What executors of the user's have. A stage with a time-out is given to them by itself, so that it is known which
    one a sample is in.

    A future tells whether it runs, but not since when: the time of a sample begins when it is seen to run. Of an
    executor whose futures never say so, it begins when the sample was given to it.
    """

    def __init__(self, places: Callable[[], Iterable[InExecutor]], where: Where, stuck: Stuck) -> None:
        self._places, self._where, self._stuck = places, where, stuck
        self._since: dict[Future[Any], tuple[float, bool]] = {}  # when it was seen first, and whether it ran then

    def look(self, now: float) -> float:
        """As Looked.look."""
        known, due = self._since, math.inf
        self._since = {}
        for place in self._places():
            self._check(place)
            given = place.given
            if any(future.running() for future, _, _ in given):
                self._stuck.tellers.add(place.executor)
            for future, part, slot in given:
                seconds = part.segment.limits.get(part.segment.stage)
                if seconds is None or future.done():
                    continue
                is_running = future.running()
                since, ran_then = known.get(future, (now, is_running))
                if is_running and not ran_then:
                    since = now
                self._since[future] = since, is_running
                if now - since >= seconds and (is_running or place.executor not in self._stuck.tellers):
                    self._give_up(place, future, part.batch, slot, part.segment.stage, seconds)
            due = min(due, now + LOOK_SECONDS)
        return due

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """As Looked.give_up."""
        for place in self._places():
            for future, part, at in place.given:
                if part.batch is batch and at == slot:
                    return self._give_up(place, future, batch, slot, part.segment.stage, seconds)
        return False

    def _give_up(
        self, place: InExecutor, future: Future[Any], batch: Batch, slot: int, stage: str, seconds: float
    ) -> bool:
        who = f"in an executor, a {place.site.executor}"
        error = timed_out(self._where(batch, slot, stage), who, "", batch, slot, stage, seconds)
        if not place.give_up(future, error):
            return False
        if not future.cancelled():
            self._stuck.futures.setdefault(place.executor, set()).add(future)
        return True

    def _check(self, place: InExecutor) -> None:
        """Raise RuntimeError if nobody is left in the executor who could make anything."""
        stuck = self._stuck.futures.get(place.executor)
        if stuck:
            stuck -= {future for future in stuck if future.done()}
            if place.num_workers is not None and len(stuck) >= place.num_workers:
                raise RuntimeError(
                    f"StageLoader: all {place.num_workers} workers of an executor, a {place.site.executor}, are stuck "
                    "in samples that took too long. It is yours, so the loader cannot replace them. Leave executor "
                    "out, or pass executor='process': those are replaced."
                )
