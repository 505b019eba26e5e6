"""Event loop: samples in from any thread, coroutines of them run in one thread, at most so many at once.

Guarantees: ``call``, ``leave`` and ``abandon`` take no lock and wait for nothing; a coroutine whose batch was dropped
is cancelled, and the thread ends only when each has finished; a sample that was taken is settled, or belongs to a
dropped batch.
"""

import asyncio
import contextvars
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from torchstage.engine.segment import Worker, alive, join
from torchstage.engine.ticket import Part, caught


class EventLoop(Worker):
    """One thread with an event loop, an annex of a pool."""

    def __init__(self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._new_loop = new_loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = self._is_stopping = False
        self._tasks: dict[asyncio.Task[None], Part] = {}
        self._context = contextvars.Context()
        self.number = 0
        self.batch = None
        self.slot = -1
        self.is_set_up = False
        self.entered: Callable[[], None] | None = None
        self.setup_error: BaseException | None = None
        self._set_up_is_over: SimpleQueue[None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

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
        stages = sorted({part.segment.stage for part in list(self._tasks.values())})
        return f"stage {', '.join(map(repr, stages))}" if stages else "no stage"

    def start(self, set_up: Callable[[int], Callable[[], None] | None]) -> None:
        """Start the thread, if it has not started, and wait until ``set_up(0)`` has run in it. Raises what that
        raised."""
        if self._loop is None:
            self._loop = self._new_loop()
            super().start(set_up)

    def _run(self) -> None:
        loop = self._loop
        assert loop is not None
        try:
            self._context = contextvars.copy_context()
            try:
                self._set_up(0)
            except BaseException as error:
                self.setup_error = error
                self._is_over = True
            del self._set_up
            self.is_set_up = True
            self._set_up_is_over.put(None)
            if not self._is_over:
                asyncio.set_event_loop(loop)
                loop.run_forever()
            self._finish(loop)
        finally:
            alive.discard(self)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what is left, wait until it has ended, and let user code's own clean-up run."""
        try:
            while tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

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

    def begin(self, work: Coroutine[Any, Any, None], part: Part) -> None:
        """In the loop's thread: run this, for a sample of that part."""
        assert self._loop is not None
        task = self._loop.create_task(work)
        self._tasks[task] = part
        task.add_done_callback(self._tasks.pop)

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Run a coroutine in the loop and wait for it, in another thread. Its error is raised here."""
        if self._loop is None or self._is_over:
            raise RuntimeError("the event loop has ended")
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()

    def leave(self) -> None:
        """Cancel what belongs to dropped batches. Safe in a finalizer."""
        self.tell(self._cancel_dropped)

    def _cancel_dropped(self) -> None:
        for task, part in list(self._tasks.items()):
            if part.batch.is_dropped:
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
        self._is_over = True


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class Concurrently:
    """The place of a segment of coroutines: at most ``concurrency`` of them at once, in an event loop."""

    def __init__(self, loop: EventLoop, concurrency: int) -> None:
        self._loop = loop
        self._concurrency = concurrency
        self._num_running = 0
        self._waiting: deque[Part] = deque()

    def call(self, part: Part, num_samples: int) -> None:
        """As Place.call."""
        self._loop.tell(self._take, part)

    def _take(self, part: Part) -> None:
        self._waiting.append(part)
        self._begin()

    def _begin(self) -> None:
        while self._waiting and self._num_running < self._concurrency and not self._loop.is_over:
            part = self._waiting[0]
            try:
                slot = part.todo.pop()
            except IndexError:
                self._waiting.popleft()
                continue
            self._num_running += 1
            self._loop.begin(self._made(part, slot), part)

    async def _made(self, part: Part, slot: int) -> None:
        stage = part.segment.stage
        try:
            self._loop.enter(part.batch.chain.enter)
            value = part.take(slot)
            for leg in part.segment.legs:
                if leg.begin is not None:
                    leg.begin(part.batch.items[slot])
                for stage, step in leg.steps:  # noqa: B007  # named after an error
                    value = step(value)
                    if inspect.isawaitable(value):
                        value = await value
            part.conclude(slot, value)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and part.batch.is_dropped:
                raise
            part.fail(slot, caught(error, stage, slot))
        finally:
            self._num_running -= 1
            self._begin()
