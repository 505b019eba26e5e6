"""Orphans: however the parent ends, nothing of it goes on, and nothing is left behind.

The parents here are programs of their own, started side by side.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

PARENT = """
import sys, time
from pathlib import Path
from processes_programs import Running, call, hold_gil, spin, touch_own, wait_for
from torchstage.executors.processes import Processes

folder = Path(sys.argv[1])
works = {{"python": (spin,), "sleep": (time.sleep, 1000), "c": (hold_gil,)}}
processes = Processes(2)
processes.send(Running(call), {{}})
futures = [processes.submit((touch_own, folder, *works[sys.argv[2]])) for _ in range(2)]
while len(list(folder.iterdir())) < 2:
    time.sleep(0.002)
print("there", flush=True)
{end}
"""

WAIT = "time.sleep(1000)"


def start(end: str, *arguments: str, **options) -> "subprocess.Popen[str]":
    """A parent whose processes are all in a job that does not end."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{HERE}"}
    command = [sys.executable, "-W", "error", "-c", PARENT.format(end=end), *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def descendants(pid: int) -> set[int]:
    """All that the process has started, as far as it goes."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found |= {int(folder.name)} | descendants(int(folder.name))
    return found


def wait_until_gone(pids: set[int], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while alive := {pid for pid in pids if is_alive(pid)}:
        assert time.monotonic() < deadline, f"these are alive: {alive}"
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """A zombie is not: whoever is to reap it may be busy."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def names_left() -> set[str]:
    """What bears our name where others leave files."""
    return {str(path) for folder in ("/dev/shm", "/tmp") for path in Path(folder).glob("*torchstage*")}


def test_a_parent_that_is_killed_leaves_no_process_and_no_file(tmp_path):
    """One after the other, whatever its processes do; those of the others go on."""
    before, parents, works = names_left(), [], ["python", "sleep", "c"]
    for number, work in enumerate(works):
        folder = tmp_path / str(number)
        folder.mkdir()
        parents.append(start(WAIT, str(folder), work))
    try:
        for parent in parents:
            assert parent.stdout.readline() == "there\n", parent.stderr.read()
        families = [descendants(parent.pid) for parent in parents]
        assert [len(family) for family in families] == [3] * len(works)  # a nursery and two processes
        for number, parent in enumerate(parents):
            parent.kill()
            parent.wait()
            wait_until_gone(families[number])
            assert all(is_alive(pid) for family in families[number + 1 :] for pid in family)
    finally:
        for parent in parents:
            parent.kill()
            parent.communicate()
    assert names_left() <= before


def test_a_program_that_is_terminated_ends_with_its_processes_and_says_nothing(tmp_path):
    parent = start(WAIT, str(tmp_path), "sleep")
    try:
        assert parent.stdout.readline() == "there\n", parent.stderr.read()
        parent.terminate()
        _, said = parent.communicate(timeout=30)
        assert (parent.returncode, said) == (-signal.SIGTERM, "")
        wait_until_gone({int(path.name) for path in tmp_path.iterdir()})
    finally:
        parent.kill()


@pytest.mark.timing
def test_ctrl_c_is_the_parents_to_answer(tmp_path):
    """It goes to the whole group. The parent sees it, its processes do not, and end soon after the program has run out
    with their jobs under way."""
    end = "\ntry:\n    print('waits', flush=True)\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n"
    end += "    print([f.done() for f in futures], flush=True)"
    parent = start(end, str(tmp_path), "sleep", start_new_session=True)
    try:
        assert parent.stdout.readline() == "there\n", parent.stderr.read()
        assert parent.stdout.readline() == "waits\n", parent.stderr.read()
        os.killpg(parent.pid, signal.SIGINT)
        begin = time.monotonic()
        answer, said = parent.communicate(timeout=30)
        assert (parent.returncode, answer, said) == (0, "[False, False]\n", "")
        assert time.monotonic() - begin < 5
        wait_until_gone({int(path.name) for path in tmp_path.iterdir()})
    finally:
        parent.kill()


def test_a_nursery_that_is_killed_is_replaced(tmp_path):
    """With it go its processes. The jobs are done by those of the next."""
    end = """
import os, signal
from torchstage.executors.processes import nursery_belongings
from processes_programs import double
processes.shutdown(cancel_futures=True)
processes = Processes(2)
processes.send(Running(double), {})
assert processes.submit(1).result() == 2
before = nursery_belongings()
os.kill(before[0], signal.SIGKILL)
futures = [processes.submit(number) for number in range(50)]
print([future.result() for future in futures] == list(range(0, 100, 2)), flush=True)
while nursery_belongings() in (None, before) or processes.num_up < 2:
    time.sleep(0.002)
processes.shutdown()
"""
    parent = start(end, str(tmp_path), "sleep")
    try:
        answer, said = parent.communicate(timeout=60)
        assert (answer, said) == ("there\nTrue\n", "")
    finally:
        parent.kill()
