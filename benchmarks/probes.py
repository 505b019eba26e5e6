"""Probes: a running process tree in, its CPU seconds and memory out; and the loop that reads a loader.

Guarantees: time and memory are never measured at once (one look at a process of 400 MiB costs 27 ms of CPU);
what worker processes used is counted, alive or ended.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

Metrics = dict[str, float]
WATCH_INTERVAL_SECONDS = 0.1
MIB = 2**20
CAN_SEE_MEMORY = Path("/proc/self/smaps_rollup").exists()  # Linux


def tree_cpu_seconds() -> float:
    """User and system seconds of this process and its descendants, ended or (in steps of 10 ms) alive."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue  # it ended between the two looks; nothing here ends a worker while a time is taken
        total += times.user + times.system + times.children_user + times.children_system
    return total


def machine_busy_seconds() -> float:
    """Seconds that the cores were busy for anybody since the machine started; stolen time counts as busy."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already part of user and nice
    return sum(times) - idle - guest


def tree_pss_mib() -> float:
    """PSS of this process and its descendants: a page that n processes share counts 1/n in each.

    Without mapped files: libraries' pages are shared with every program that uses torch at that moment.
    """
    pids = [os.getpid(), *(process.pid for process in psutil.Process().children(recursive=True))]
    return sum(_pss_bytes(pid) for pid in pids) / MIB


def _pss_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0  # the process ended meanwhile
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


class PssWatch:
    """The tree's highest PSS above `baseline_mib` while the `with` block runs, seen by its own thread."""

    def __init__(self, baseline_mib: float) -> None:
        self._baseline_mib = baseline_mib
        self._peak_mib = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pss-watch", daemon=True)

    @property
    def added_mib(self) -> float:
        return self._peak_mib - self._baseline_mib

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()  # the last state, whatever the thread's luck

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_INTERVAL_SECONDS):
            self._look()

    def _look(self) -> None:
        self._peak_mib = max(self._peak_mib, tree_pss_mib())


def train_through(
    loader: Iterable[Any],
    num_epochs: int,
    count_samples: Callable[[Any], int],
    *,
    warm_up: bool = False,
    baseline_mib: float | None = None,
) -> Metrics:
    """Read `num_epochs` and time them; one more, untimed, is read to watch the memory. No training step.

    The one more comes after them; with `warm_up` before them, so that threads, processes and caches are there when
    time is taken. `samples_per_second` runs from the first `iter()` to the last batch;
    `samples_per_second_after_first` leaves out the first batch and the wait for it; `cpu_ms_per_sample` is the whole
    tree's over the timed epochs, start included where there is no `warm_up`; `cpu_cores` is the same for each second;
    `added_pss_mib` is the peak above `baseline_mib`, or what was there before the first `iter()` here, and missing
    where there is no /proc. `count_samples` may also check a batch; it is asked twice about the first one.
    """
    gc.collect()
    baseline_mib = memory_now_mib() if baseline_mib is None else baseline_mib
    metrics: Metrics = _memory(loader, baseline_mib) if warm_up else {}
    num_samples, num_first, first_batch_seconds = 0, 0, 0.0
    cpu_before, start = tree_cpu_seconds(), time.perf_counter()
    for _ in range(num_epochs):
        for batch in loader:
            if not num_samples:
                first_batch_seconds, num_first = time.perf_counter() - start, count_samples(batch)
            num_samples += count_samples(batch)
    seconds, cpu_seconds = time.perf_counter() - start, tree_cpu_seconds() - cpu_before
    metrics |= {
        "seconds": seconds,
        "first_batch_seconds": first_batch_seconds,
        "num_samples": num_samples,
        "samples_per_second": num_samples / seconds,
        "samples_per_second_after_first": (num_samples - num_first) / (seconds - first_batch_seconds),
        "cpu_seconds": cpu_seconds,
        "cpu_ms_per_sample": 1e3 * cpu_seconds / num_samples,
        "cpu_cores": cpu_seconds / seconds,
    }
    return metrics if warm_up else metrics | _memory(loader, baseline_mib)


def memory_now_mib() -> float:
    """The tree's PSS, as a baseline; 0 where there is no /proc."""
    return tree_pss_mib() if CAN_SEE_MEMORY else 0.0


def _memory(loader: Iterable[Any], baseline_mib: float) -> Metrics:
    """One epoch, and the tree's peak in it above the baseline."""
    if not CAN_SEE_MEMORY:
        for _ in loader:
            pass
        return {}
    with PssWatch(baseline_mib) as watch:
        for _ in loader:
            pass
    return {"added_pss_mib": watch.added_mib}


def close(loader: Any) -> None:
    """Ends a loader that has a `close`; the others end when their last reference goes."""
    if callable(end := getattr(loader, "close", None)):
        end()
