"""Processes at odd moments: what comes just then neither waits for ever nor spoils what others made."""

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from processes_programs import Running, double, gate, scaled

from torchstage.executors import light
from torchstage.executors.backlog import Backlog, Job
from torchstage.executors.processes import Processes
from torchstage.executors.wire import Full, close_all, receive

LONG = 60.0


def test_a_garbage_collection_while_the_lock_is_held_may_find_the_processes(nursery: None) -> None:
    processes = Processes(1)
    processes.send(Running(double), {})
    assert processes.submit(1).result(LONG) == 2
    staff, main = processes._staff, threading.current_thread()
    send, is_collected = staff._backlog.send, threading.Event()

    def collecting() -> None:
        if threading.current_thread() is not main:
            assert staff._lock.locked()
            gc.collect()
            is_collected.set()
        send()

    staff._backlog.send = collecting  # type: ignore[method-assign]
    gc.disable()
    try:
        circle: list[Any] = [processes]
        circle.append(circle)
        del processes, circle
        staff.submit(light.packed(2))  # its answer comes when they are garbage
        assert is_collected.wait(LONG)
    finally:
        gc.enable()
    staff.join(LONG)
    assert staff._thread is not None
    assert not staff._thread.is_alive()


@pytest.mark.timing
def test_programs_are_sent_while_a_process_is_in_user_code(hire: Callable[..., Processes], tmp_path: Any) -> None:
    processes = hire(gate, tmp_path / "open", num_processes=2)
    slow = processes.submit("wait")
    for number in range(600):  # more than its line has room for
        processes.send(Running(scaled, number), {})
    assert processes.submit(2).result(LONG) == 1198
    (tmp_path / "open").touch()
    assert slow.result(LONG) == "wait"
    processes.send(Running(scaled, -1), {})
    begin = time.monotonic()
    while processes.num_up < 2:  # both have heard of it
        assert time.monotonic() - begin < LONG
        time.sleep(0.001)
    assert {processes.submit(n).result(LONG) for n in range(20)} == {-n for n in range(20)}


@pytest.mark.parametrize("is_certain", [True, False])
def test_pages_are_read_when_nothing_more_can_be_received(is_certain: bool) -> None:
    backlog = Backlog(2, 4)
    try:
        jobs = [Job(Future(), 1, number) for number in range(3)]
        for job in jobs:
            backlog.add(job)
        first = receive(backlog.takers, wait=False)  # by a process that works on it
        assert first is not None
        close_all(first[1])
        fate: list[str] = []

        def tell() -> tuple[list[int], bool]:
            try:
                receive(backlog.takers, wait=False)
            except Full:
                fate.append("nothing")
            return [1], is_certain

        assert backlog.died(0, 0, tell) is None
        assert fate == ["nothing"], "a process could have begun a message that is taken for nobody's"
        assert list(backlog._waiting) == jobs[1:]
    finally:
        backlog.drop()
        backlog.end()


def test_memory_that_a_living_process_may_refer_to_is_not_lent_again() -> None:
    backlog = Backlog(2, 4)
    try:
        backlog.add(Job(Future(), 1, "answered, but the answer was not heard yet"))
        packet = receive(backlog.takers, wait=False)
        assert packet is not None
        close_all(packet[1])
        lent = backlog._messages[1].slots[0]
        assert lent is not None
        backlog.died(0, 0, lambda: ([], True))
        backlog.send()
        (message,) = backlog._messages.values()
        assert message.number == 2
        assert message.slots[0] is not lent
    finally:
        backlog.drop()
        backlog.end()


def test_a_system_without_threads_left_is_told_and_tried_again(nursery: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    processes = Processes(1)
    try:
        processes.send(Running(double), {})
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="new thread"):
                processes.start()
        assert processes.submit(4).result(LONG) == 8
    finally:
        processes.shutdown(cancel_futures=True)
