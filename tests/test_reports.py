"""Reports: what went wrong for users of other loaders, tried on this one. Each test cites the report that it answers.

Hangs, ends of programs and memory; errors and the programming interface are in test_reports_of_use.py.
"""

import gc
import os
import queue
import signal
import subprocess
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import Dataset
from watching import loader_threads, seconds_until, seconds_until_no_loader_thread

from torchstage import StageLoader
from torchstage.iterators import CLOSE_WAIT_SECONDS

pytest_plugins = "outside"

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 8 threads on few cores

PATIENCE_SECONDS = 20.0
MAX_CLOSE_SECONDS = 8.0  # close promises 2, on a machine that has time; these would wait for PATIENCE_SECONDS


class Blocked(Dataset):
    """Each sample from index 4 on waits for something to arrive on a queue, for as long as it takes."""

    def __init__(self):
        self.source = queue.SimpleQueue()
        self.is_blocked = threading.Event()

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if index >= 4:
            self.is_blocked.set()
            self.source.get()
        return index

    def release(self):
        for _ in range(len(self)):
            self.source.put(None)


# Memory ----------------------------------------------------------------------------------------------------


def test_ur_001_an_epoch_over_a_big_list_of_strings_does_not_grow(outside):
    """UR-001, the half of threads: with worker processes, each one's reference counts copy the pages of the list."""
    ended = outside.run("""
        import warnings
        import psutil
        warnings.simplefilter("ignore")

        class Paths(Dataset):
            def __init__(self):
                self.paths = [f"images/{number:09d}.jpg" for number in range(300_000)]
            def __len__(self):
                return len(self.paths)
            def __getitem__(self, index):
                return len(self.paths[index])

        process = psutil.Process()
        alone = process.memory_info().rss
        dataset = Paths()
        list_bytes = process.memory_info().rss - alone
        for number, batch in enumerate(StageLoader(dataset, batch_size=64, num_workers=8)):
            if number == 100:
                begin = process.memory_info().rss
        growth = process.memory_info().rss - begin
        print(growth < 0.05 * begin and growth < list_bytes, growth, begin, list_bytes, process.children())
    """)
    assert ended.err == ""
    assert ended.out.startswith("True"), ended.out
    assert ended.out.endswith(" []\n")


# Shared memory and files -----------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="there is no /dev/shm")
def test_ur_006_nothing_is_opened_under_dev_shm():
    """UR-006: in a container with a small /dev/shm, large batches end the worker with a bus error."""

    def shared_files() -> set[str]:
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]  # noqa: PTH115
        mapped = Path("/proc/self/maps").read_text().split()
        return {
            *(str(path) for path in Path("/dev/shm").iterdir()),
            *(name for name in [*links, *mapped] if name.startswith(("/dev/shm", "/memfd"))),
        }

    before = shared_files()
    dataset = [torch.zeros(1 << 20) for _ in range(4)]  # four samples make a batch of 16 MiB
    for batch in StageLoader(dataset, batch_size=4, num_workers=2, sampler=[0, 1, 2, 3] * 3):
        assert batch.shape == (4, 1 << 20)
        assert shared_files() <= before


TRAINING = """
print("started", os.getpid(), flush=True)
loader = StageLoader(Numbers(seconds=0.001), batch_size=4, num_workers=2, persistent_workers=True)
for number, batch in enumerate(loader):
    if number == 5:
        print("in the middle", flush=True)
print("done", flush=True)
"""


def test_ur_008_a_killed_run_does_not_hinder_the_next(outside):
    """UR-008: named shared memory of a run that was killed keeps the next one from starting."""
    pids = set()
    for _ in range(3):
        first, beside_it = outside.start(TRAINING), outside.start(TRAINING)
        for script in (first, beside_it):
            script.wait_until_it_said("in the middle")
            pids.add(script.pid)
        first.send(signal.SIGKILL)
        assert first.wait().status == -signal.SIGKILL
        again = outside.start(TRAINING)
        for script in (again, beside_it):
            ended = script.wait()
            assert (ended.status, ended.err) == (0, "")
            assert ended.out.endswith("done\n")
    names = [path.name for folder in ("/dev/shm", "/tmp") if Path(folder).exists() for path in Path(folder).iterdir()]
    assert not [name for name in names for pid in pids if f"_{pid}_" in name]  # as torch names its shared memory


# Hangs -----------------------------------------------------------------------------------------------------


def test_ur_009_threads_never_fork(monkeypatch):
    """UR-009, the half of threads: a process that has threads and forks can deadlock; Python 3.12 warns of it."""

    def refuse(*arguments, **keywords):
        raise AssertionError("a process was started")

    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse, raising=False)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    children = psutil.Process().children()
    torch.ones(512, 512) @ torch.ones(512, 512)  # torch's own threads have run
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for persistent in (False, True):
            with StageLoader(range(64), batch_size=4, num_workers=4, persistent_workers=persistent) as loader:
                for _ in range(3):
                    assert len(list(loader)) == 16
    assert psutil.Process().children() == children


def test_ur_011_close_waits_for_less_than_two_seconds():
    assert CLOSE_WAIT_SECONDS < 2.0


@pytest.mark.timing
def test_ur_011_close_with_a_blocked_source():
    """UR-011, first case: close joins a thread that waits inside the source, and never returns."""
    dataset = Blocked()
    loader = StageLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert dataset.is_blocked.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"is still in stage 'fetch', dataset index \d"):
        loader.close()
    assert time.monotonic() - begin < MAX_CLOSE_SECONDS
    with pytest.raises(RuntimeError, match="this iterator is closed"):
        next(iterator)
    dataset.release()
    seconds_until_no_loader_thread()


@pytest.mark.timing
def test_ur_011_the_last_reference_dropped_with_a_blocked_source():
    """UR-011, second case: a finalizer never joins."""
    dataset = Blocked()
    iterator = iter(StageLoader(dataset, batch_size=4, num_workers=2))
    next(iterator)
    assert dataset.is_blocked.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    del iterator
    gc.collect()
    assert time.monotonic() - begin < 1.0
    assert loader_threads() != []
    dataset.release()
    seconds_until_no_loader_thread()


@pytest.mark.timing
def test_ur_011_close_with_a_loader_inside_a_loader_inside_a_blocked_source():
    """UR-011, third case: prefetch, map, prefetch."""
    dataset = Blocked()

    class Nested(Dataset):
        def __init__(self):
            self.inner = StageLoader(dataset, batch_size=4, num_workers=1)

        def __len__(self):
            return 8

        def __getitem__(self, index):
            return sum(batch.sum().item() for batch in self.inner)

    loader = StageLoader(Nested(), num_workers=1)
    iterator = iter(loader)

    def consume():
        with suppress(Exception):  # it is told that the iterator was closed; how, is asked elsewhere
            next(iterator)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert dataset.is_blocked.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="is still in stage 'fetch', dataset index 0") as caught:
        loader.close()
    assert time.monotonic() - begin < MAX_CLOSE_SECONDS
    assert len(caught) == 1
    dataset.release()
    seconds_until_no_loader_thread()
    consumer.join(PATIENCE_SECONDS)


def test_ur_011_next_after_close_without_threads():
    """UR-011: also with depth 0, a clear error."""
    loader = StageLoader(range(8), num_workers=0)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


@pytest.mark.timing
def test_ur_011_close_while_the_consumer_is_blocked_in_the_sampler():
    """UR-011, our own case: the sampler runs in the consumer's thread, and somebody else closes."""
    source: queue.SimpleQueue = queue.SimpleQueue()
    is_blocked = threading.Event()
    outcome: queue.SimpleQueue = queue.SimpleQueue()

    def sampler():
        is_blocked.set()
        yield source.get()

    loader = StageLoader(range(8), num_workers=2, sampler=sampler(), timeout=2)  # a way out of a wait
    iterator = iter(loader)

    def consume():
        try:
            outcome.put(next(iterator))
        except BaseException as error:
            outcome.put(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert is_blocked.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    loader.close()
    assert time.monotonic() - begin < MAX_CLOSE_SECONDS
    source.put(3)
    consumer.join(PATIENCE_SECONDS)
    assert "closed" in str(outcome.get(timeout=1))


# Ends ------------------------------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize("place", ["fetch", "decode", "collate", "the training step", "between epochs"])
def test_ur_012_an_interrupt_is_one_traceback_wherever_it_comes(place, outside):
    """UR-012: Ctrl-C ends in a fatal interpreter error instead of a KeyboardInterrupt. More in by_signals."""
    script = outside.start(f"""
        def stay(where):
            if where == {place!r}:
                print("ready", flush=True)
                time.sleep(0.3)

        class Staged(Numbers):
            def __getitem__(self, index):
                stay("fetch")
                image = torch.ones(8, 8) @ torch.ones(8, 8)
                stay("decode")
                return image

        def collate(samples):
            stay("collate")
            return torch.stack(samples)

        loader = StageLoader(Staged(16), batch_size=4, num_workers=2, collate_fn=collate)
        while True:
            for batch in loader:
                stay("the training step")
            stay("between epochs")
    """)
    script.wait_until_it_said("ready")
    script.send(signal.SIGINT)
    begin = time.monotonic()
    ended = script.wait()
    assert time.monotonic() - begin < 10
    assert ended.status == -signal.SIGINT
    assert [line for line in ended.err.splitlines() if line.startswith("KeyboardInterrupt")] == ["KeyboardInterrupt"]
    assert "Fatal Python error" not in ended.err
    assert "Exception ignored" not in ended.err
    assert not ended.left_processes


@pytest.mark.parametrize("way", ["with", "close", "drop"])
def test_ur_013_many_short_trials_leave_nothing(way):
    """UR-013: the workers of fifty short trials stay for a minute, and their memory adds up."""
    process = psutil.Process()
    data = torch.utils.data.TensorDataset(torch.zeros(64, 4096))

    def belongings():
        return len(loader_threads()), len(process.children()), process.num_fds(), process.memory_info().rss

    def trial():
        loader = StageLoader(data, batch_size=8, num_workers=4)
        for number, _ in enumerate(loader):
            if number == 2:
                break
        if way == "with":
            with loader:
                next(iter(loader))
        if way == "close":
            loader.close()
            loader.close()

    assert len(loader_threads()) == 0
    trial()
    seconds_until_no_loader_thread()
    num_threads, num_children, num_files, rss = belongings()
    for _ in range(50):
        trial()
    seconds_until(lambda: belongings()[:3] == (num_threads, num_children, num_files))
    assert belongings()[3] - rss < 32 << 20
