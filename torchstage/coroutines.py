"""Coroutines: an async stage and a sample in, a coroutine that draws from that sample's own generators out.

One thread runs many samples at once, so here a scope belongs to the coroutine: it is entered whenever the coroutine goes
on, and left whenever it waits.

Guarantees: a draw belongs to its sample, however the coroutines take turns.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

from torchstage import rng
from torchstage.order import Placed
from torchstage.seeds import Seeds

Draws = tuple[Seeds, Any, int]  # of which epoch, dataset index and salt

coming: ContextVar[Draws | None] = ContextVar("coming", default=None)  # the sample that is made in this context
_idle: list[rng.Scope] = []  # scopes that nobody draws from: it takes 20 us to make one


def remember(seeds: Seeds | None) -> Callable[[Any], None]:
    """What is told which sample comes, before its stages are called in the same context."""

    def begin(item: Any) -> None:
        if seeds is not None:
            index, salt = (item.index, item.salt) if type(item) is Placed else (item, 0)
            coming.set((seeds, index, salt))

    return begin


def drawing(function: Callable[[Any], Awaitable[Any]], draws: str) -> Callable[[Any], Awaitable[Any]]:
    """``function``, whose coroutine draws for the sample that was told last."""

    def begun(value: Any) -> Awaitable[Any]:
        sample = coming.get()
        made = function(value)
        return made if sample is None else _Drawing(made, sample, draws)

    return begun


class _Drawing:
    """An awaitable that goes on inside a scope."""

    def __init__(self, made: Awaitable[Any], sample: Draws, draws: str) -> None:
        self._made = made
        self._sample = sample
        self._draws = draws

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            scope = _idle.pop()
        except IndexError:
            scope = rng.Scope()
        seeds, index, salt = self._sample
        scope.begin(seeds, self._draws, index, salt)
        steps: Any = self._made.__await__()
        go_on, argument = steps.send, None
        try:
            while True:
                with rng.drawing_from(scope):
                    try:
                        waits_for = go_on(argument)
                    except StopIteration as end:
                        return end.value
                try:
                    go_on, argument = steps.send, (yield waits_for)
                except BaseException as error:  # cancelled, or what it waited for failed: the coroutine's own business
                    go_on, argument = steps.throw, error
        finally:
            _idle.append(scope)


# Waiting for one --------------------------------------------------------------------------------------------


class _ThisThread(threading.local):
    loop: "_OwnLoop | None" = None


class _OwnLoop:
    """A thread's event loop, kept so that what one coroutine has opened serves the next. It ends with the thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __del__(self) -> None:
        if not self.loop.is_running():
            self.loop.close()


_this_thread = _ThisThread()


def run_here(awaitable: Awaitable[Any]) -> Any:
    """Wait for a coroutine in the calling thread; where an event loop runs there already (a notebook), in another."""
    if asyncio._get_running_loop() is not None:  # pyright: ignore[reportPrivateUsage]  # the public one raises
        with ThreadPoolExecutor(1) as other:
            return other.submit(copy_context().run, run_here, awaitable).result()
    if _this_thread.loop is None:
        _this_thread.loop = _OwnLoop()
    return _this_thread.loop.loop.run_until_complete(_awaited(awaitable))


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _forget_this_thread() -> None:
    """In a forked child: the loop's files are shared with the parent's."""
    _this_thread.loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_this_thread)
