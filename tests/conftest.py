"""Fixtures of all tests: each test must leave no thread, no child process and no open file behind.

Only the standard library and pytest are imported here, so that the tests of this file start fast.
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

try:
    import hypothesis
except ModuleNotFoundError:  # the tests of this file run without it
    pass
else:
    # Loader tests wait for threads: the time of one example says nothing. What CI finds, it must find again.
    hypothesis.settings.register_profile("local", deadline=None)
    hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

GRACE_SECONDS = 5.0  # a dropped iterator ends its threads without waiting for them: they may need a moment
POLL_SECONDS = 0.01
HAS_PROC = Path("/proc/self/stat").exists()
HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()  # some kernels are built without

# Files that the interpreter or a driver opens once, on first use, and keeps for good.
BENIGN_FILES = ("/dev/urandom", "/dev/random", "/dev/nvidia", "/proc/")


@dataclass(frozen=True, slots=True)
class Belongings:
    """What this process owns now that a test must not leave behind."""

    threads: frozenset[threading.Thread]
    child_pids: frozenset[int]
    files: Counter[str]

    def gained_since(self, before: "Belongings") -> list[str]:
        """One line for each thread, child process and open file that was not there before."""
        return [
            *(f"thread {t.name!r} is alive" for t in self.threads - before.threads if t.is_alive()),
            *(f"child process {describe(pid)}" for pid in sorted(self.child_pids - before.child_pids)),
            *(f"{n} more open at {target}" for target, n in (self.files - before.files).items()),
        ]


def look_at_belongings() -> Belongings:
    # Order matters: asking for the children reaps those that ended, which closes their files.
    child_pids = frozenset(pid for pid in list_child_pids() if pid not in list_service_pids())
    return Belongings(frozenset(list_judged_threads()), child_pids, count_open_files())


def list_judged_threads() -> Iterator[threading.Thread]:
    """Our own threads, and everybody's that would keep the interpreter from ending."""
    for thread in threading.enumerate():
        if thread.name.startswith("torchstage-") or not thread.daemon:
            yield thread


def list_child_pids() -> Iterator[int]:
    """The children of this process, unreaped ones too, and of the process that loaders' processes are forked from.
    Without /proc, only those of multiprocessing."""
    for process in multiprocessing.active_children():
        if process.pid is not None:
            yield process.pid
    if HAS_CHILDREN:
        for pid in (os.getpid(), *([] if nursery() is None else [nursery()[0]])):
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
                    yield from map(int, path.read_text().split())
    elif HAS_PROC:
        for folder in Path("/proc").glob("[0-9]*"):
            stat = read_process_stat(int(folder.name))
            if stat is not None and int(stat[1]) == os.getpid():
                yield int(folder.name)


def nursery() -> tuple[int, int] | None:
    """The process that loaders' processes are forked from, and the socket to it: they stay from loader to loader."""
    launch = sys.modules.get("torchstage.executors.nursing")
    return None if launch is None else launch.nursery_belongings()


def list_service_pids() -> set[int | None]:
    """Helpers that are started once and kept by design."""
    from multiprocessing import forkserver, resource_tracker

    return {
        *([] if nursery() is None else [nursery()[0]]),
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }


def list_service_files() -> set[int | None]:
    """The pipes to those helpers."""
    from multiprocessing import forkserver, resource_tracker

    return {
        *([] if nursery() is None else [nursery()[1]]),
        getattr(resource_tracker._resource_tracker, "_fd", None),
        getattr(forkserver._forkserver, "_forkserver_alive_fd", None),
    }


def count_open_files() -> Counter[str]:
    """What the open file descriptors point at, and how many point there."""
    targets: Counter[str] = Counter()
    if HAS_PROC:
        services = list_service_files()
        for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - one name a descriptor, nothing to join
            try:
                target = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - targets such as pipe:[7] are no paths
            except FileNotFoundError:  # the descriptor of this very listing
                continue
            if int(descriptor) not in services and not target.startswith(BENIGN_FILES):
                targets[target] += 1
    return targets


def read_process_stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on; None where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        command = ""
    return f"{pid} ({command or 'ended, but nobody waited for it'})"


@pytest.fixture(autouse=True, scope="module")
def old_objects_set_aside() -> None:
    """Set aside what stays for good, such as imported modules and pytest's own reports, so that it is not looked
    through after each test: that took a tenth of a second, more than most tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or an open file.

    A test that failed is not judged: its traceback keeps its frames, and they keep what they hold.
    """
    before = look_at_belongings()
    yield
    if request.node.stash.get(TEST_FAILED, False):
        return
    gc.collect()
    leaks = look_at_belongings().gained_since(before)
    deadline = time.monotonic() + GRACE_SECONDS
    while leaks and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        gc.collect()
        leaks = look_at_belongings().gained_since(before)
    if leaks:
        pytest.fail("the test left behind:\n  " + "\n  ".join(leaks), pytrace=False)


@pytest.fixture
def short_switch_interval() -> Iterator[None]:
    """Threads switch as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


TEST_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "setup":
        item.stash[TEST_FAILED] = False  # a rerun is judged for itself
    if report.failed:
        item.stash[TEST_FAILED] = True
    return report


NUM_RERUNS = 2  # of what measures time. Nothing else is tried again: what fails now and then is a race, and a fault


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=NUM_RERUNS))
    gpu_tests = [item for item in items if item.get_closest_marker("cuda")]
    if not gpu_tests:
        return
    import torch

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")  # CUDA opens its files now, not during the first test
        return
    for item in gpu_tests:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """uvloop opens a pipe with its first loop, and keeps it."""
    with contextlib.suppress(ModuleNotFoundError):
        import_module("uvloop").new_event_loop().close()
