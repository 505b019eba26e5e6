"""Parking: the CPU clocks of a pool's threads in, how many of them may run out.

Guarantees: threads are parked only while the running ones together use the cores; waiting work keeps all its threads;
``open`` wakes every parked thread and takes no lock.

Why: more CPU-bound threads than cores cost a fifth of the throughput, while sleeping or reading threads cost nothing,
and nobody can know from outside which case a dataset is. So it is measured: thread CPU seconds a second.
"""

import math
import os
import threading
import time
from pathlib import Path
from queue import SimpleQueue

PERIOD_SECONDS = 0.05  # long against a scheduler's time slice, short against an epoch
LONE_SECONDS = 20e-6  # a sample this cheap is interpreter and dispatch: it holds the GIL nearly all the time
CROWDED, ROOMY = 0.9, 0.8  # share of the cores in use: above the first threads are parked, below the second taken up


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the CPU quota of its control group where one is set."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return cores if quota == "max" else max(1, min(cores, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def cpu_seconds(clock: int) -> float | None:
    """CPU seconds that the thread of this clock used so far; None once it has ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return None


class Parking:
    """Decides how many of a pool's threads run. ``limit`` of them may; the others wait here until they are called."""

    def __init__(self, num_threads: int, num_cores: int) -> None:
        self.num_cores = num_cores
        self.limit = num_threads
        self.running = 0
        self.is_open = False  # for good: the pool is closed
        self.next_look = 0.0
        self._num_threads = num_threads
        self._num_parked = 0
        self._lock = threading.Lock()
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._clocks: list[int] = []
        self._last_look = 0.0
        self._last_cpu: dict[int, float] = {}

    def join(self) -> None:
        """Called once by each thread as it starts: it runs from now on, and the others may read its CPU clock."""
        with self._lock:
            self.running += 1
        if hasattr(time, "pthread_getcpuclockid"):
            self._clocks.append(time.pthread_getcpuclockid(threading.get_ident()))

    def wait_for_room(self) -> None:
        """Park the calling thread if more threads run than may; return when it is called again.

        No thread is forgotten when the pool closes: 1. a thread finds the parking not open yet, 2. ``open`` is called
        and puts a token for each thread, 3. the thread reaches the gate and takes one. Later it finds the parking open.
        """
        with self._lock:
            if self.is_open or self.running <= max(1, self.limit):
                return
            self.running -= 1
            self._num_parked += 1
        self._gate.get()

    def look(self, now: float, sample_seconds: float | None) -> None:
        """Measure what the threads use and set the limit; at most once a period, by whichever thread comes by.

        The limit goes down by half of what lies above the cores and up by a quarter: for threads that compute it ends
        at the cores; for threads that mostly wait it settles where they use eight to nine tenths of the cores. Where a
        sample is so cheap that it can only be Python at work, one thread runs: two would wait for each other's GIL.
        """
        if now < self.next_look or self.is_open:
            return
        with self._lock:
            if now < self.next_look:
                return
            self.next_look = now + PERIOD_SECONDS
            used_share = self._used_cores(now) / self.num_cores
            if sample_seconds is not None and sample_seconds < LONE_SECONDS:
                self.limit = 1
            elif used_share >= CROWDED and self.limit > self.num_cores:
                self.limit = max(self.num_cores, self.limit - max(1, (self.limit - self.num_cores) // 2))
            elif used_share < ROOMY or self.limit < self.num_cores:
                self.limit = min(self._num_threads, max(self.num_cores, self.limit + max(1, self.limit // 4)))
            while self._num_parked and self.running < self.limit:
                self._num_parked -= 1
                self.running += 1
                self._gate.put(None)

    def _used_cores(self, now: float) -> float:
        elapsed, self._last_look = now - self._last_look, now
        used = 0.0
        for clock in self._clocks:
            seconds = cpu_seconds(clock)
            if seconds is not None:
                used += seconds - self._last_cpu.get(clock, seconds)
                self._last_cpu[clock] = seconds
        return used / elapsed

    def open(self) -> None:
        """Call every parked thread, for good. Takes no lock, so that a finalizer may call it."""
        self.is_open = True
        for _ in range(self._num_threads):
            self._gate.put(None)
