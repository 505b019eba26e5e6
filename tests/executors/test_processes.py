"""Processes: jobs are done by whichever process is free, programs follow one another, and all ends when it should."""

import gc
import multiprocessing
import os
import sys
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest
import torch
from processes_programs import (
    Running,
    born_child,
    call,
    conditions,
    double,
    hold_gil,
    scaled,
    spin,
    touch,
    touch_own,
    wait_for,
    who,
    zeros,
)

from torchstage.executors.processes import Processes


def test_jobs_come_back_as_what_the_program_made_of_them(hire):
    processes = hire()
    futures = [processes.submit(job) for job in range(500)]
    assert [future.result() for future in futures] == list(range(0, 1000, 2))


def test_the_first_job_starts_the_processes_and_each_has_its_number(hire, tmp_path):
    processes = hire(call)
    futures = [processes.submit((touch_own, tmp_path, wait_for, tmp_path / "go")) for _ in range(2)]
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.002)
    (tmp_path / "go").touch()
    wait(futures)
    processes.send(Running(who), {})
    seen = {processes.submit(None).result() for _ in range(100)}
    assert {number for _, number, _ in seen} <= {0, 1}
    assert {num_processes for _, _, num_processes in seen} == {2}
    assert os.getpid() not in {pid for pid, _, _ in seen}


def test_a_job_goes_to_a_process_that_is_free_and_not_behind_a_long_one(hire, tmp_path):
    processes = hire(call)
    long = processes.submit((wait_for, tmp_path / "go"))
    assert [processes.submit((abs, -number)).result() for number in range(50)] == list(range(50))
    assert not long.done()
    (tmp_path / "go").touch()
    assert long.result() == str(tmp_path / "go")


def test_large_jobs_and_results_arrive_whole(hire):
    processes = hire()
    large = np.arange(3_000_000, dtype=np.int32)
    assert np.array_equal(processes.submit(large).result(), large * 2)
    assert processes.submit("ab" * 1_000_000).result() == "ab" * 2_000_000


def test_results_lie_in_memory_that_is_used_again_and_never_under_a_result(hire):
    processes = hire(zeros, max_slots=4)
    kept = [processes.submit((64, 1024, number % 3 + 1)).result() for number in range(12)]
    for tensor in kept:
        assert torch.all(tensor == 3)
    again = [processes.submit((100_000,)).result() for _ in range(12)]
    assert all(torch.all(tensor == 1) for tensor in again)
    assert all(torch.all(tensor == 3) for tensor in kept)


def test_a_program_sent_anew_runs_the_jobs_that_are_submitted_after_it(hire):
    processes = hire(scaled, 10)
    first = [processes.submit(job) for job in range(20)]
    processes.send(Running(scaled, 1000), {})
    second = [processes.submit(job) for job in range(20)]
    assert [future.result() for future in first] == [10 * job for job in range(20)]
    assert [future.result() for future in second] == [1000 * job for job in range(20)]
    while processes.num_up < 2:
        time.sleep(0.002)
    pids = {member.birth.pid for member in processes._staff._ranks.members.values()}
    for number in range(30):
        processes.send(Running(scaled, number), {})
        assert processes.submit(3).result() == 3 * number
    assert {member.birth.pid for member in processes._staff._ranks.members.values()} == pids


def test_whoever_asks_is_told_once_when_the_first_process_has_the_program(hire):
    processes = hire()
    assert processes.num_up == 0
    is_up = threading.Event()
    calls = []
    processes.when_up(lambda: (calls.append(1), is_up.set()))
    processes.start()
    processes.start()
    assert is_up.wait(60)
    while processes.num_up < 2:
        time.sleep(0.002)
    assert processes.num_up == 2
    assert calls == [1]
    processes.when_up(lambda: calls.append(2))
    assert calls == [1, 2]


def test_a_process_is_born_with_what_the_parent_has_now(hire, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSTAGE_TEST", "now")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.1"])
    monkeypatch.chdir(tmp_path)
    found = hire(conditions).submit(None).result()
    assert found.pop("path")[0] == str(tmp_path)
    assert found == {
        "argv": ["train.py", "--lr", "0.1"],
        "folder": str(tmp_path),
        "environment": "now",
        "interrupt": True,
        "terminate": True,
        "is_daemon": True,
        "parent": os.getpid(),
        "is_parent_alive": True,
        "name": found["name"],
        "stdin": "",
        "num_threads": 1,
        "has_main": False,
        "optimize": 0,
    }
    assert found["name"] in ("torchstage-0", "torchstage-1")


def test_a_process_may_have_no_children_of_multiprocessing(hire):
    with pytest.raises(AssertionError, match="daemonic processes are not allowed to have children"):
        hire(born_child).submit(None).result()


def test_nothing_of_multiprocessings_own_state_changes(hire):
    before = multiprocessing.get_start_method(allow_none=True), multiprocessing.active_children()
    processes = hire()
    processes.submit(1).result()
    assert (multiprocessing.get_start_method(allow_none=True), multiprocessing.active_children()) == before


def test_one_can_ask_where_a_job_is(hire, tmp_path):
    processes = hire(call)
    processes.start()
    waiting = processes.submit((touch_own, tmp_path, wait_for, tmp_path / "go"))
    while not (names := [path.name for path in tmp_path.iterdir()]):
        time.sleep(0.002)
    assert processes.where(waiting) == (int(names[0]), None)
    (tmp_path / "go").touch()
    waiting.result()
    assert processes.where(waiting) is None


def test_shutdown_finishes_what_was_submitted(hire):
    processes = hire(num_processes=1)
    futures = [processes.submit(job) for job in range(300)]
    processes.shutdown()
    assert [future.result(timeout=0) for future in futures] == list(range(0, 600, 2))
    with pytest.raises(RuntimeError, match="after shutdown"):
        processes.submit(1)


@pytest.mark.timing
def test_shutdown_cancels_what_waits_and_ends_what_hangs(hire, tmp_path):
    for hangs in (spin, hold_gil):
        processes = hire(call, num_processes=1)
        mark = tmp_path / hangs.__name__
        running = processes.submit((touch, mark, hangs))
        waiting = [processes.submit((abs, 1)) for _ in range(10)]
        wait_for(mark)
        begin = time.monotonic()
        processes.shutdown(cancel_futures=True)
        assert time.monotonic() - begin < 4
        assert running.cancelled()
        assert all(future.cancelled() for future in waiting)


def test_a_cancelled_job_is_not_run(hire, tmp_path):
    processes = hire(call, num_processes=1)
    first = processes.submit((touch_own, tmp_path, wait_for, tmp_path / "go"))
    others = [processes.submit((touch, tmp_path / f"ran{number}")) for number in range(20)]
    assert all(future.cancel() for future in others[10:])
    (tmp_path / "go").touch()
    first.result()
    wait(others)
    assert [(tmp_path / f"ran{number}").exists() for number in range(20)] == [True] * 10 + [False] * 10


def test_processes_that_are_dropped_end(nursery):
    processes = Processes(1)
    processes.send(Running(who), {})
    pid, _, _ = processes.submit(None).result()
    del processes
    gc.collect()
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.002)


def test_processes_that_never_started_leave_nothing(nursery):
    processes = Processes(2)
    processes.send(Running(double, np.zeros(100_000)), {})
    processes.shutdown()


def test_a_job_without_a_program_is_refused(nursery):
    with Processes(1) as processes, pytest.raises(RuntimeError, match="Call send"):
        processes.submit(1)


def test_no_process_at_all_is_refused():
    with pytest.raises(ValueError, match="num_processes must be at least 1, got 0"):
        Processes(0)


def test_with_fork_the_program_is_inherited():
    handle = Path(__file__).open()  # noqa: SIM115  # what cannot be pickled
    try:
        with Processes(2, context=multiprocessing.get_context("fork")) as processes:
            for factor in (2, 3):
                processes.send(Running(lambda here, job, factor=factor: (handle.name, factor * job)), {})
                futures = [processes.submit(job) for job in range(10)]
                assert [future.result() for future in futures] == [(__file__, factor * job) for job in range(10)]
    finally:
        handle.close()


def test_a_context_of_the_users_is_used_as_given():
    with Processes(1, context=multiprocessing.get_context("spawn")) as processes:
        processes.send(Running(who), {})
        pid, number, num_processes = processes.submit(None).result()
        assert pid in {child.pid for child in multiprocessing.active_children()}
        assert (number, num_processes) == (0, 1)


def test_a_process_made_by_fork_leaves_the_pool_alone(hire):
    processes = hire()
    processes.submit(1).result()
    pid = os.fork()
    if pid == 0:
        try:
            processes.submit(2)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert processes.submit(3).result() == 6
