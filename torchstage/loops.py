"""Loops: a coroutine in, its result out, in a thread that has no event loop of its own to offer or is inside one.

An owner (a dataset) has one event loop a thread, so that what its coroutines keep open (connections, say) serves the
next call as well.

Guarantees: a loop is closed when its thread ends, its owner goes, or the interpreter ends, whichever comes first, with
the tasks left on it cancelled; a process made by fork begins with none. Nothing of asyncio's own state is changed: no
policy, no current loop.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

CLOSE_SECONDS = 1.0  # for tasks that were cancelled at the end, to clean up

# (process, id of the owner): each thread's loop, and what takes it away with the owner.
_loops_of: dict[tuple[int, int], tuple[threading.local, "weakref.finalize[..., Any]"]] = {}
_abandoned: list[asyncio.AbstractEventLoop] = []  # nobody may close these, not even asyncio: see _Loop.close


def run(owner: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The coroutine's result or error, from the owner's loop for this thread. If another loop is running in this
    thread, as in Jupyter, a thread made for it runs ours in the meantime."""
    key = (os.getpid(), id(owner))
    local, _ = _loops_of.get(key) or _enter(owner, key)
    loop: _Loop | None = getattr(local, "loop", None)
    if loop is None:
        loop = local.loop = _Loop()
    try:
        return loop.run(coroutine) if _is_free() else loop.run_in_a_thread(coroutine)
    finally:
        del local, loop  # an error's traceback keeps this frame: the loop is to go with its owner all the same


def leave(owner: Any) -> None:
    """Close the owner's event loops before it goes: this thread's now, those of others when they are out of them."""
    left = _loops_of.pop((os.getpid(), id(owner)), None)
    if left is not None:
        local, finalizer = left
        finalizer.detach()
        loop: _Loop | None = getattr(local, "loop", None)
        if loop is not None:
            loop.close()


def _enter(owner: Any, key: tuple[int, int]) -> tuple[threading.local, "weakref.finalize[..., Any]"]:
    mine = threading.local(), weakref.finalize(owner, _loops_of.pop, key, None)
    entry = _loops_of.setdefault(key, mine)
    if entry is not mine:  # another thread was first
        mine[1].detach()
    return entry


def _is_free() -> bool:
    """Whether no loop is running in this thread."""
    return asyncio._get_running_loop() is None  # the public one raises where there is none


class _Loop:
    """One event loop, used by one thread at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # Ctrl-C: what was interrupted must not go on within the next call
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task], timeout=CLOSE_SECONDS))
            raise
        finally:
            del self, task  # likewise

    def run_in_a_thread(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = self._loop.create_task(coroutine)  # here: it takes this thread's context variables
        turn, ended = [None], threading.Event()  # the turn is taken by the thread that runs the loop, or nobody runs it
        errors: list[BaseException] = []

        def target() -> None:
            try:
                turn.pop()
                self._loop.run_until_complete(task)
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=target, name="torchstage-loop")
        try:
            thread.start()
            thread.join()
        except BaseException:  # Ctrl-C, even while the thread is starting
            try:
                turn.pop()
                task.cancel()  # it ends in the next call
            except IndexError:
                self._loop.call_soon_threadsafe(task.cancel)
                ended.wait()
            raise
        try:
            if errors:
                raise errors[0]
            return task.result()
        finally:
            errors.clear()  # their tracebacks hold this frame

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        loop = self._loop
        if loop.is_closed():
            return
        if loop.is_running() or self._process != os.getpid():
            # In a process made by fork the loop's selector is the parent's too: closing ours would end its waiting.
            _abandoned.append(loop)
            return
        if _is_free():
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=CLOSE_SECONDS))
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
