"""Deaths of processes: the job is tried once more, nobody else's is lost, and what keeps dying is said."""

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from processes_programs import (
    Failing,
    Running,
    call,
    die_at,
    die_once,
    double,
    short_or_killed,
    stray,
    touch_own,
    wait_for,
    who,
    zeros,
)

from torchstage.executors.processes import ProcessDied


def pids_of(processes):
    return [member.birth.pid for member in processes._staff._ranks.members.values() if member.birth.pid is not None]


def test_a_job_whose_process_died_is_done_by_another(hire, tmp_path):
    processes = hire(die_once)
    futures = [processes.submit((number, tmp_path)) for number in range(6)]
    assert [future.result() for future in futures] == list(range(6))


def test_a_job_that_kills_twice_fails_and_says_where_it_was(hire):
    processes = hire(die_at)
    futures = {job: processes.submit(job) for job in (10, 2, 11, 12, 13)}
    with pytest.raises(
        ProcessDied, match=r"at sample 2 .* 0 \(signal 9 \(SIGKILL\): often the system is out"
    ) as caught:
        futures.pop(2).result()
    assert (caught.value.at, caught.value.cause[:18]) == (2, "signal 9 (SIGKILL)")
    assert isinstance(caught.value.pid, int)
    assert {job: future.result() for job, future in futures.items()} == {job: job for job in futures}


def test_a_job_that_ends_its_process_by_exit_says_the_code(hire):
    with pytest.raises(ProcessDied, match="exit code 5") as caught:
        hire(call).submit((os._exit, 5)).result()
    assert caught.value.at is None


def test_an_abort_in_c_is_named(hire):
    with pytest.raises(ProcessDied, match=r"signal 6 \(SIGABRT\)"):
        hire(call).submit((os.abort,)).result()


def test_jobs_that_came_in_one_message_with_a_killer_are_not_charged(hire):
    """They wait while the processes start, and short jobs before have shown that they fit into one message."""
    processes = hire(die_at)
    for _ in range(3):
        for future in [processes.submit(10) for _ in range(100)]:
            future.result()
    futures = [(job, processes.submit(job)) for job in [*range(10, 200), 1, *range(200, 400)]]
    for job, future in futures:
        if job == 1:
            with pytest.raises(ProcessDied):
                future.result()
        else:
            assert future.result() == job


def test_what_dies_again_and_again_is_said_to_every_job(hire):
    processes = hire(call)
    futures = [processes.submit((os._exit, 9)) for _ in range(30)]
    errors = [future.exception() for future in futures]
    assert all(isinstance(error, ProcessDied) for error in errors)
    assert "9 processes died in 0 jobs, the last one by exit code 9" in str(errors[-1])
    with pytest.raises(ProcessDied, match="processes died"):
        processes.submit((abs, 1)).result()


def test_an_occasional_death_is_forgiven_for_ever(hire, tmp_path):
    processes = hire(call)
    for number in range(15):
        assert isinstance(processes.submit((os._exit, 1)).exception(), ProcessDied) if number % 4 == 0 else True
        for future in [processes.submit((abs, 1)) for _ in range(100)]:
            assert future.result() == 1


def test_a_program_that_cannot_start_is_the_error_of_its_jobs_and_of_no_others(hire):
    processes = hire()
    assert processes.submit(1).result() == 2
    processes.send(Failing(int, ("three",)), {})
    futures = [processes.submit(number) for number in range(5)]
    for future in [*futures, processes.submit(0)]:
        with pytest.raises(ValueError, match="invalid literal for int") as caught:
            future.result()
        assert "in start" in str(caught.value.__cause__)
    processes.send(Running(double), {})
    assert processes.submit(1).result() == 2


def test_a_program_that_kills_its_process_as_it_starts_is_not_tried_for_ever(hire):
    processes = hire()
    processes.send(Failing(os._exit, (4,)), {})
    with pytest.raises(ProcessDied, match=r"4 processes died while they started, the last one by exit code 4"):
        processes.submit(1).result()


def test_a_process_killed_between_jobs_is_replaced(hire):
    processes = hire(who)
    for _ in range(3):
        pid, _, _ = processes.submit(None).result()
        os.kill(pid, signal.SIGKILL)
        for _ in range(10):
            assert processes.submit(None).result()[0] != pid or Path(f"/proc/{pid}").exists()


def test_slots_of_the_dead_are_used_again(hire, tmp_path):
    processes = hire(zeros, max_slots=4)
    for _ in range(6):
        with contextlib.suppress(ProcessLookupError, IndexError):  # it is being replaced
            os.kill(pids_of(processes)[0], signal.SIGKILL)
        tensors = [processes.submit((50_000, 2)) for _ in range(10)]
        assert all(float(future.result().sum()) == 200_000 for future in tensors)
    assert all(processes.submit((50_000,)).result() is not None for _ in range(4))


def test_what_a_process_leaves_running_is_ended_with_it(hire, tmp_path):
    path = tmp_path / "pid"
    with pytest.raises(ProcessDied):
        hire(call).submit((stray, path)).result()
    pid = int(path.read_text())
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.002)


@pytest.mark.stress
def test_random_kills_lose_no_job_and_give_none_twice(hire):
    """200 jobs of 0 to 4 ms, and 40 kills 5 ms apart. A job is charged only for a death in it: one of
    two kills in the same job is said as such, and all others come back."""
    rng = random.Random(5)
    processes = hire(short_or_killed, num_processes=3)
    jobs = [(number, rng.random() * 0.004) for number in range(200)]
    processes.submit((0, 0.0)).result()
    processes._staff._deaths.num_done = 10_000  # so many deaths are forgiven
    is_over = threading.Event()
    num_kills = 0

    def kill() -> None:
        nonlocal num_kills
        while num_kills < 40 and not is_over.wait(0.01 * rng.random()):
            if pids := pids_of(processes):
                try:
                    os.kill(rng.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                num_kills += 1

    calls = []
    killer = threading.Thread(target=kill)
    killer.start()
    futures = [processes.submit(job) for job in jobs]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: calls.append(number))
    results = [future.exception() or future.result() for future in futures]
    is_over.set()
    killer.join()
    assert num_kills > 10
    died = [result for result in results if isinstance(result, ProcessDied)]
    assert {str(error) for error in died if error.pid is None} == set()
    assert len(died) <= num_kills / 2
    assert [r for r in results if not isinstance(r, ProcessDied)] == [
        number for number, result in enumerate(results) if not isinstance(result, ProcessDied)
    ]
    assert sorted(calls) == list(range(200))
    assert processes._staff._backlog.versions() == []


def test_a_killed_process_gives_no_result_that_is_half_there(hire, tmp_path):
    processes = hire(call)
    large = np.ones(2_000_000)
    futures = [processes.submit((touch_own, tmp_path, wait_for, tmp_path / "go")) for _ in range(2)]
    while len(names := list(tmp_path.iterdir())) < 2:
        time.sleep(0.002)
    os.kill(int(names[0].name), signal.SIGKILL)
    (tmp_path / "go").touch()
    assert [future.result() for future in futures] == [str(tmp_path / "go")] * 2
    assert float(processes.submit((np.sum, large)).result()) == 2_000_000
