"""Event loop: coroutines in from any thread, run in one thread of its own, what became of them out.

Guarantees: ``tell``, ``leave`` and ``abandon`` take no lock and wait for nothing; a coroutine whose batch was dropped
is cancelled, and the thread ends only when each has finished; whatever user code raises or does to the loop, it goes
on; what one coroutine sets in its context variables, no other sees.
"""

import asyncio
import contextvars
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from torchstage.engine.ledger import Ledger
from torchstage.engine.segment import Worker, alive, join
from torchstage.engine.stats import Tally
from torchstage.engine.ticket import Batch, Part
from torchstage.engine.watch import Laps

_left_behind: list[asyncio.AbstractEventLoop] = []  # in a forked child: loops whose files are the parent's to close


@dataclass(slots=True)
class Making:
    """A sample that a coroutine makes, and the stage that it is in."""

    part: Part
    slot: int
    stage: str
    laps: Laps = field(default_factory=Laps)  # of the stages that it is through
    begin: float = math.inf  # when it came to its stage, on time.perf_counter's clock; written before the stage is
    is_given_up: bool = False  # it was too long in a stage: it was cancelled, and what it brings is nobody's


class EventLoop(Worker):
    """One thread with an event loop, an annex of a pool."""

    def __init__(
        self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop], ledger: Ledger | None = None
    ) -> None:
        self._ledger = ledger or Ledger()
        self._tallies: list[Tally] = []
        self._new_loop = new_loop
        self.num_coroutines = 0  # how many samples may be in the making here at once
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = self._is_stopping = self._has_ended = False
        self._tasks: dict[asyncio.Task[None], Making] = {}
        self._owed: dict[Future[Any], Awaitable[Any]] = {}  # answers to those who wait for a coroutine
        self._context = contextvars.Context()
        self.number = 0
        self.batch = None
        self.slot = -1
        self.is_set_up = False
        self.entered: Callable[[], None] | None = None
        self.setup_error: BaseException | None = None
        self._set_up_is_over: SimpleQueue[None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def tally(self, label: str) -> Tally:
        """A new account of what is made here. In the loop's thread, which closes it when it ends."""
        tally = self._ledger.tally(label)
        self._tallies.append(tally)
        return tally

    @property
    def is_over(self) -> bool:
        """Whether nothing more is begun."""
        return self._is_over

    @property
    def has_started(self) -> bool:
        """Whether its thread was started."""
        return self._loop is not None

    def place(self) -> str:
        """Where the thread is, in words."""
        stages = sorted({making.stage for making in list(self._tasks.values())})
        return f"stage {', '.join(map(repr, stages))}" if stages else "no stage"

    def start(self, set_up: Callable[[int], Callable[[], None] | None]) -> None:
        """Start the thread, if it has not started, and wait until ``set_up(0)`` has run in it. Raises what that
        raised."""
        if self._loop is None:
            self._loop = self._new_loop()
            try:
                super().start(set_up)
            except RuntimeError:  # after Ctrl-C, too, it has no ident yet, but is about to run
                if self.thread.ident is None:  # the system has no thread left to give
                    self._loop.close()
                raise

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            self._context = contextvars.copy_context()
            is_ready = False
            try:
                self._set_up(0)
                is_ready = True
            except BaseException as error:
                self.setup_error = error
                self._is_over = True
            del self._set_up
            self.is_set_up = True
            self._set_up_is_over.put(None)
            asyncio.set_event_loop(loop)
            # For asyncio.to_thread: asyncio's own has a few threads more than cores, which would bound what waits at
            # once far below the stages' concurrency. A thread is started when there is work for it.
            loop.set_default_executor(ThreadPoolExecutor(max(1, self.num_coroutines), f"{self.thread.name}-call"))
            while is_ready and not self._is_stopping:
                # A task that user code began itself may raise them; asyncio lets them through, but the loop is whole.
                with suppress(KeyboardInterrupt, SystemExit):
                    loop.run_forever()
            self._finish(loop)
        finally:
            for tally in self._tallies:
                tally.is_over = True
            alive.discard(self)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is left, wait until it has ended, and let user code's own clean-up run."""
        self._is_stopping = True
        try:
            _cancel_all(loop)
            _run(loop, loop.shutdown_asyncgens())
            _run(loop, loop.shutdown_default_executor())
            _cancel_all(loop)  # what was asked for meanwhile
        finally:
            asyncio.set_event_loop(None)
            loop.close()
            self._has_ended = True
            for answer, awaitable in list(self._owed.items()):
                if not answer.done():  # it was asked for too late
                    _close(awaitable)
                    answer.set_exception(asyncio.CancelledError())

    def tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call the function in the loop's thread, soon; not at all if it has ended. From any thread."""
        loop = self._loop
        if loop is not None and not self._is_over:
            with suppress(RuntimeError):  # it was closed at this moment
                loop.call_soon_threadsafe(function, *arguments)

    def enter(self, enter: Callable[[], None]) -> None:
        """In the loop's thread: be set to a chain's modes. Context variables are the tasks' own."""
        if enter is not self.entered:
            self._context.run(enter)
            self.entered = enter

    def begin(
        self, make: Callable[[Making], Coroutine[Any, Any, None]], making: Making, then: Callable[[], None]
    ) -> None:
        """In the loop's thread: run the coroutine that makes this sample. ``then`` is called when it has ended in
        whatever way: one that is cancelled before its first step has no ``finally`` that would run."""
        assert self._loop is not None
        self.enter(making.part.batch.chain.enter)
        task = self._loop.create_task(make(making), context=self._context.copy())
        self._tasks[task] = making
        task.add_done_callback(partial(self._ended, then))

    def _ended(self, then: Callable[[], None], task: "asyncio.Task[None]") -> None:
        making = self._tasks.pop(task, None)
        if making is None or not making.is_given_up:  # else another one has its room
            then()

    def made(self) -> list[tuple["asyncio.Task[None]", Making]]:
        """What is in the making at this moment."""
        return list(self._tasks.items())

    def wait_for(self, awaitable: Awaitable[Any], enter: Callable[[], None] | None = None) -> Any:
        """Run a coroutine in the loop, set to a chain's modes, and wait for it, in another thread. Its error is raised
        here.

        Nobody waits for ever: 1. the answer that is owed is put down before it is looked whether the loop has ended, 2.
        the end is put down before it is looked what is owed. Whoever comes second of the two sees the other.
        """
        answer: Future[Any] = Future()
        self._owed[answer] = awaitable
        try:
            if self._loop is None or self._has_ended:
                raise RuntimeError
            self._loop.call_soon_threadsafe(self._answer, awaitable, answer, enter)
        except RuntimeError:  # it was closed at this moment
            del self._owed[answer]
            _close(awaitable)
            raise RuntimeError("the event loop has ended") from None
        try:
            return answer.result()
        finally:
            del self._owed[answer]
            del answer  # it refers to the error, whose traceback refers to this frame

    def _answer(self, awaitable: Awaitable[Any], answer: Future[Any], enter: Callable[[], None] | None) -> None:
        assert self._loop is not None
        try:
            if enter is not None:
                self.enter(enter)
            task = self._loop.create_task(_outcome(awaitable))
        except BaseException as error:
            _close(awaitable)
            answer.set_exception(error)
            return
        task.add_done_callback(partial(_tell, awaitable, answer))

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        """As ``Pool.where``."""
        made = list(self._tasks.values())
        return next(((one.stage, None) for one in made if one.part.batch is batch and one.slot == slot), None)

    def leave(self) -> None:
        """Cancel what belongs to dropped batches. Safe in a finalizer."""
        self.tell(self._cancel_dropped)

    def _cancel_dropped(self) -> None:
        for task, making in list(self._tasks.items()):
            if making.part.batch.is_dropped:
                task.cancel()

    def abandon(self) -> None:
        """Let the thread end as soon as every coroutine was cancelled. Safe in a finalizer."""
        loop = self._loop
        if loop is not None and not self._is_over:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._stop)
            self._is_over = True

    def _stop(self) -> None:
        if not self._is_stopping:  # a second time it would stop what waits for the last coroutines
            self._is_stopping = True
            assert self._loop is not None
            self._loop.stop()

    def join(self, deadline: float) -> list[Worker]:
        """As Pool.join."""
        return join([self], deadline)

    def forget(self) -> None:
        """In a forked child: the thread stayed behind, and its loop's files are not ours to close."""
        self._is_over = self._has_ended = True
        for tally in self._tallies:
            tally.leave()
        if self._loop is not None:
            _left_behind.append(self._loop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    while tasks := asyncio.all_tasks(loop):
        for task in tasks:
            task.cancel()
        _run(loop, asyncio.gather(*tasks, return_exceptions=True))


def _run(loop: asyncio.AbstractEventLoop, awaitable: Awaitable[Any]) -> None:
    future = asyncio.ensure_future(awaitable, loop=loop)
    while not future.done():
        with suppress(KeyboardInterrupt, SystemExit):  # of a task that user code began itself
            loop.run_until_complete(future)


async def _outcome(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """The value or the error: out of a task, asyncio would raise some of them in the loop itself."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


def _tell(
    awaitable: Awaitable[Any], answer: Future[Any], task: "asyncio.Task[tuple[Any, BaseException | None]]"
) -> None:
    if task.cancelled():  # before its first step
        _close(awaitable)
        answer.set_exception(asyncio.CancelledError())
        return
    value, error = task.result()
    if error is None:
        answer.set_result(value)
    else:
        answer.set_exception(error)


def _close(awaitable: Awaitable[Any]) -> None:
    """Nobody will wait for it: so that Python does not warn of that."""
    close: Any = getattr(awaitable, "close", None)
    if close is not None:
        close()
