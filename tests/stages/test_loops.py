"""Loops: one event loop a thread for each owner, from anywhere, and closed whatever ends first."""

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import Any

import pytest

from torchstage import loops


class Owner:
    pass


async def loop_here() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def in_a_thread(function: Any) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def from_inside_a_loop(function: Any) -> Any:
    """As a notebook calls it: in a thread whose own loop is running."""

    async def cell() -> Any:
        return function()

    loop = asyncio.new_event_loop()  # not asyncio.run, which keeps Ctrl-C from blocking calls
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()


def test_calls_of_one_thread_share_a_loop():
    owner = Owner()
    first = loops.run(owner, loop_here())
    assert loops.run(owner, loop_here()) is first
    assert not first.is_closed()


def test_each_thread_has_its_own_which_ends_with_it():
    owner = Owner()
    other = in_a_thread(lambda: loops.run(owner, loop_here()))
    assert other.is_closed()
    assert loops.run(owner, loop_here()) is not other


def test_each_owner_has_its_own_which_ends_with_it():
    owner, other = Owner(), Owner()
    of_owner, of_other = loops.run(owner, loop_here()), loops.run(other, loop_here())
    assert of_owner is not of_other
    del owner
    gc.collect()
    assert (of_owner.is_closed(), of_other.is_closed()) == (True, False)


def test_an_owner_that_goes_ends_the_loops_of_other_threads_too():
    owners = [Owner()]
    made, dropped = threading.Event(), threading.Event()
    seen: list[Any] = []

    def live_on() -> None:
        seen.append(loops.run(owners[0], loop_here()))
        made.set()
        dropped.wait()

    thread = threading.Thread(target=live_on)
    thread.start()
    made.wait()
    owners.clear()
    gc.collect()
    closed = seen[0].is_closed()
    dropped.set()
    thread.join()
    assert closed


def test_an_owner_that_leaves_may_begin_again_any_number_of_times():
    owner = Owner()
    kept = len(weakref.finalize._registry)
    for _ in range(3):
        loop = loops.run(owner, loop_here())
        loops.leave(owner)
        assert loop.is_closed()
    loops.leave(owner)  # there is nothing to close
    assert len(weakref.finalize._registry) == kept


def test_asyncios_own_state_is_left_as_it_was():
    def current_after_a_call() -> str:
        owner = Owner()
        loops.run(owner, loop_here())
        try:
            return str(asyncio.get_event_loop())
        except RuntimeError as error:
            return str(error)

    assert asyncio._get_running_loop() is None
    assert "There is no current event loop in thread" in in_a_thread(current_after_a_call)


def test_inside_a_running_loop_another_thread_runs_ours():
    owner = Owner()
    outside = loops.run(owner, loop_here())

    async def where() -> tuple[Any, str]:
        return asyncio.get_running_loop(), threading.current_thread().name

    assert from_inside_a_loop(lambda: loops.run(owner, where())) == (outside, "torchstage-loop")


def test_an_owner_that_goes_inside_a_running_loop_ends_its_loop():
    kept = [Owner()]
    loop = loops.run(kept[0], loop_here())

    def drop() -> bool:
        kept.clear()
        gc.collect()
        return loop.is_closed()

    assert from_inside_a_loop(drop)


async def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("call", [lambda run: run(), from_inside_a_loop], ids=["outside", "inside"])
@pytest.mark.parametrize("kind", [KeyError, StopAsyncIteration, KeyboardInterrupt, SystemExit])
def test_an_error_is_the_very_object_with_the_users_frame(call, kind):
    owner, error = Owner(), kind()
    with pytest.raises(kind) as caught:
        call(lambda: loops.run(owner, fail(error)))
    assert caught.value is error
    assert "fail" in [entry.name for entry in caught.traceback]
    assert not loops.run(owner, loop_here()).is_closed()  # the next call is as good as the first


name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")


@pytest.mark.parametrize("call", [lambda run: run(), from_inside_a_loop], ids=["outside", "inside"])
def test_context_variables_of_the_caller_are_seen(call):
    async def who() -> str:
        return name.get()

    def called() -> str:
        token = name.set("the caller")
        try:
            return loops.run(owner, who())
        finally:
            name.reset(token)

    owner = Owner()
    assert loops.run(owner, who()) == "nobody"
    assert call(called) == "the caller"


def test_tasks_left_on_the_loop_are_cancelled_at_its_end():
    ended: list[str] = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async def begin() -> None:
        kept.append(asyncio.create_task(for_ever()))
        await asyncio.sleep(0)

    kept: list[Any] = []
    owner = Owner()
    loops.run(owner, begin())
    assert ended == []
    del owner
    gc.collect()
    assert ended == ["cleaned up"]


def test_what_is_left_half_iterated_is_finished_at_the_end():
    ended: list[str] = []

    async def numbers() -> Any:
        try:
            for number in range(3):
                yield number
        finally:
            ended.append("finished")

    async def first() -> int:
        return await kept.__anext__()

    owner, kept = Owner(), numbers()
    assert loops.run(owner, first()) == 0
    del owner
    gc.collect()
    assert ended == ["finished"]


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs a signal to one thread")
@pytest.mark.parametrize("call", [lambda run: run(), from_inside_a_loop], ids=["outside", "inside"])
def test_ctrl_c_cancels_what_is_waited_for(call):
    ended: list[str] = []

    async def wait_for_ctrl_c() -> None:
        # A call of its own: in this thread it would be raised right here, not where the loop waits.
        asyncio.get_running_loop().call_soon(signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    owner = Owner()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            call(lambda: loops.run(owner, wait_for_ctrl_c()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended == ["cancelled"]
    assert loops.run(owner, asyncio.sleep(0, "next")) == "next"


def test_ctrl_c_before_the_thread_began_leaves_nothing_running(monkeypatch):
    begun: list[str] = []

    async def begin() -> None:
        begun.append("begun")

    def interrupted(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    owner = Owner()
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        from_inside_a_loop(lambda: loops.run(owner, begin()))
    monkeypatch.undo()
    assert loops.run(owner, asyncio.sleep(0, "next")) == "next"
    assert begun == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_begins_with_none_and_leaves_the_parents_alone():
    """Both loops would wait on one kernel object: what a child takes off it, the parent would never hear of again."""
    owner = Owner()
    loop = loops.run(owner, loop_here())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if loops.run(owner, loop_here()) is not loop else 2
            del owner, loop
            gc.collect()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    async def woken() -> str:
        future = asyncio.get_running_loop().create_future()
        waker = threading.Thread(target=asyncio.get_running_loop().call_soon_threadsafe, args=(future.set_result, "up"))
        waker.start()
        result = await future
        waker.join()
        return result

    assert loops.run(owner, asyncio.wait_for(woken(), 10)) == "up"


def test_the_interpreter_ends_without_a_warning():
    script = f"""
        import asyncio, importlib.util, sys, threading
        spec = importlib.util.spec_from_file_location("loops", {loops.__file__!r})
        loops = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loops)
        class Owner: pass
        owner = Owner()
        async def begin():
            global task
            task = asyncio.create_task(asyncio.sleep(100))
            return "done"
        print(loops.run(owner, begin()))
        thread = threading.Thread(target=lambda: print(loops.run(owner, begin())))
        thread.start()
        thread.join()
    """
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("done\ndone\n", "")
