"""Reports of processes: shared memory that is too small or left over, forks of threads, ends that do not come."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
from watching import seconds_until

from torchstage import StageLoader

from .data import BlockedFromFour, Made, big, filtered_picture, slowly, with_pid

pytestmark = pytest.mark.timing  # it is about how long things take

pytest_plugins = "outside"

TESTS = Path(__file__).parents[1]
MAX_CLOSE_SECONDS = 10.0  # it takes 2; what waits for the blocked sample waits for good
PATIENCE_SECONDS = 30.0
MAX_START_SECONDS = 60.0  # of processes, which import torch: 3 s and more on a machine that has time


def processes_of(dataset, **arguments) -> StageLoader:
    own = {"batch_size": 4, "num_workers": 2, "worker_method": "multiprocessing"}
    return StageLoader(dataset, **{**own, **arguments})


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True) if process.is_running()}


# Shared memory -------------------------------------------------------------------------------------------------

SMALL_SHARED_MEMORY = """
from pathlib import Path
from reports_of_processes.data import Made, big
from torchstage import StageLoader

if __name__ == "__main__":
    for method in ("thread", "multiprocessing"):
        dataset = Made(big, 16)
        with StageLoader(dataset, batch_size=4, num_workers=2, worker_method=method, {arguments}) as loader:
            for _ in range(2):
                assert [value for batch in loader for value in batch[:, -1].tolist()] == list(range(16))
    print("left:", list(Path("/dev/shm").iterdir()))
"""


def run_in_a_namespace_with_small_shared_memory(script: Path) -> subprocess.CompletedProcess[str]:
    mount = 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", sys.executable, "-W", "error", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        capture_output=True,
        text=True,
        timeout=100,
    )


def can_mount() -> bool:
    try:
        tried = subprocess.run(
            ["unshare", "--mount", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /dev/shm"], capture_output=True
        )
    except FileNotFoundError:
        return False
    return tried.returncode == 0


@pytest.mark.parametrize("arguments", ["", "collate_fn=torch.stack"])
def test_ur_006_batches_far_bigger_than_dev_shm(arguments, tmp_path):
    """UR-006: /dev/shm holds 64 KiB, a batch has 50 MB: a worker ends with a bus error, and nothing says why."""
    if not can_mount():
        pytest.skip("no file system may be mounted here")
    script = tmp_path / "script.py"
    script.write_text("import torch\n" + SMALL_SHARED_MEMORY.format(arguments=arguments))
    ended = run_in_a_namespace_with_small_shared_memory(script)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left: []\n", "")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc")
def test_ur_006_neither_side_opens_a_file_of_dev_shm():
    def shared_files(pid: int) -> set[str]:
        process = psutil.Process(pid)
        names = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}  # noqa: PTH115
        return {name for name in {*names, *(m.path for m in process.memory_maps())} if name.startswith("/dev/shm")}

    before, children = shared_files(os.getpid()), descendants()
    with processes_of(Made(big, 16)) as loader:
        for batch in loader:
            assert batch.shape == (4, 3_125_000)
            assert shared_files(os.getpid()) <= before
            assert not any(map(shared_files, descendants() - children))


TRAINING = """
if __name__ == "__main__":
    os.environ["HOME"] = {home!r}
    from reports_of_processes.data import Made, slowly
    loader = StageLoader(Made(slowly, 400), batch_size=4, num_workers=2, worker_method="multiprocessing")
    seen = []
    for number, batch in enumerate(loader):
        seen += batch.tolist()
        if number == 5:
            print("in the middle", flush=True)
    assert seen == list(range(400))
    print("done", flush=True)
"""


@pytest.mark.timeout(300)
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
def test_ur_008_a_killed_run_leaves_nothing_and_does_not_hinder_the_next(tmp_path, outside):
    """UR-008: named shared memory of a run that was killed keeps the next one from starting. Two users at once."""
    pids: set[int] = set()
    homes = [tmp_path / name for name in ("one", "another")]
    for home in homes:
        home.mkdir()
    beside_it = outside.start(TRAINING.format(home=str(homes[1])))
    for _ in range(2):
        killed = outside.start(TRAINING.format(home=str(homes[0])))
        killed.wait_until_it_said("in the middle", MAX_START_SECONDS)
        children = psutil.Process(killed.pid).children(recursive=True)
        assert children, "it has no processes"
        pids |= {killed.pid, *(child.pid for child in children)}
        killed.send(signal.SIGKILL)
        again = outside.start(TRAINING.format(home=str(homes[0])))  # at once
        seconds_until(lambda: not any(map(_is_alive, children)), PATIENCE_SECONDS)  # noqa: B023
        assert killed.wait().status == -signal.SIGKILL
        ended = again.wait(MAX_START_SECONDS)
        assert (ended.status, ended.out, ended.err) == (0, "in the middle\ndone\n", "")
    ended = beside_it.wait(MAX_START_SECONDS)
    assert (ended.status, ended.out, ended.err) == (0, "in the middle\ndone\n", "")
    names = [path.name for folder in ("/dev/shm", "/tmp") if Path(folder).exists() for path in Path(folder).iterdir()]
    assert not [name for name in names for pid in pids if re.search(rf"(?<!\d){pid}(?!\d)", name)]
    assert not any(list(home.iterdir()) for home in homes)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# Hangs ---------------------------------------------------------------------------------------------------------


def test_ur_009_a_process_that_has_threads_is_not_forked(monkeypatch):
    """UR-009: torch's threads have run, a loader's threads are running; then processes start, and use the same
    libraries. Each run ends, and no warning about fork is given."""

    def refuse():
        raise AssertionError("this process was forked")

    monkeypatch.setattr(os, "fork", refuse)
    right = [filtered_picture(index) for index in range(16)]
    with warnings.catch_warnings(), StageLoader(Made(slowly, 4000), batch_size=4, num_workers=2) as beside_it:
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This DataLoader will create")
        threads = iter(beside_it)
        next(threads)
        for _ in range(5):
            with processes_of(Made(filtered_picture, 16)) as loader:
                assert [value for batch in loader for value in batch.tolist()] == right
            next(threads)


def test_ur_009_processes_are_started_once_and_not_for_each_epoch():
    with processes_of(Made(with_pid), collate_fn=list) as loader:
        pids: list[set[int]] = []
        for _ in range(6):
            samples = [sample for batch in loader for sample in batch]
            assert [index for index, _ in samples] == list(range(64))
            pids.append({pid for _, pid in samples} - {os.getpid()})  # threads go on until the processes are up
        assert 1 <= len(set().union(*pids)) <= 2


def test_ur_011_close_with_a_blocked_source():
    """UR-011, first case: close waits for the sample that will not come. A process can be killed."""
    before = descendants()
    loader = processes_of(BlockedFromFour())
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it may name what is blocked
        loader.close()
    assert time.monotonic() - begin < MAX_CLOSE_SECONDS
    with pytest.raises(RuntimeError, match="this iterator is closed"):
        next(iterator)
    seconds_until(lambda: not _loaders_own(before), PATIENCE_SECONDS)


def test_ur_011_the_last_reference_dropped_with_a_blocked_source():
    """UR-011, second case: a finalizer never joins."""
    before = descendants()
    iterator = iter(processes_of(BlockedFromFour()))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    begin = time.monotonic()
    del iterator
    gc.collect()
    assert time.monotonic() - begin < 1.0
    seconds_until(lambda: not _loaders_own(before), PATIENCE_SECONDS)


def _loaders_own(before: set[int]) -> list[psutil.Process]:
    """Processes that were started since and are not one that starts others."""
    new = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    return [process for process in new if _is_alive(process) and not _has_children(process)]


def _has_children(process: psutil.Process) -> bool:
    try:
        return bool(process.children())
    except psutil.NoSuchProcess:  # it ended between two looks
        return False


def test_ur_011_a_program_ends_with_a_blocked_source(outside):
    script = outside.start("""
if __name__ == "__main__":
    from reports_of_processes.data import BlockedFromFour
    iterator = iter(StageLoader(BlockedFromFour(), batch_size=4, num_workers=2, worker_method="multiprocessing"))
    print(next(iterator).tolist(), flush=True)
""")
    script.wait_until_it_said("[0, 1, 2, 3]", MAX_START_SECONDS)
    begin = time.monotonic()
    ended = script.wait(MAX_START_SECONDS)
    assert time.monotonic() - begin < MAX_CLOSE_SECONDS
    assert ended.status == 0, ended.err
    assert "Traceback" not in ended.err


def test_ur_011_close_by_another_thread_while_the_consumer_waits():
    loader = processes_of(BlockedFromFour())
    iterator = iter(loader)
    next(iterator)
    told: list[BaseException] = []
    waits = threading.Event()

    def consume():
        waits.set()
        try:
            next(iterator)
        except Exception as error:
            told.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert waits.wait(PATIENCE_SECONDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader.close()
    consumer.join(PATIENCE_SECONDS)
    assert [type(error) for error in told] == [RuntimeError]
    assert "closed" in str(told[0])


def test_torch_has_threads_of_its_own_in_these_tests():
    """Else UR-009 would be tried on a process without any."""
    torch.ones(512, 512) @ torch.ones(512, 512)
    assert len(list(Path("/proc/self/task").iterdir())) > 1 or sys.platform != "linux"
