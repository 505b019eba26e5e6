"""Parking: the CPU clocks of a pool's threads in, how many of them may run out.

Guarantees: threads are parked only while the others get as much done without them; waiting work keeps all its threads;
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
SETTLE_SECONDS = 0.15  # a change shows when each thread has finished the batch that it is on
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 30.0  # before what was not worth it is tried again: it costs SETTLE_SECONDS
LONE_SECONDS = 20e-6  # a sample this cheap is interpreter and dispatch: it holds the GIL nearly all the time
BUSY, ROOMY = 0.5, 0.8  # shares of the cores in use: from the first on fewer threads are tried, below the second more
ENOUGH, MORE = 0.92, 1.1  # what must be used after a step down, and after a step up, against before


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
        self._most = num_threads  # that may ever run at once
        self._are_held_out = False  # all but one
        self._num_parked = 0
        self._lock = threading.Lock()
        self._gate: SimpleQueue[None] = SimpleQueue()
        self._clocks: list[int] = []
        self._last_look = 0.0
        self._before: tuple[int, float] | None = None  # limit and cores used before the step that is being tried
        self._judged_at = 0.0
        self._next_try = 0.0
        self._pause_seconds = MIN_PAUSE_SECONDS
        self._last_cpu: dict[int, float] = {}

    def join(self) -> None:
        """Called once by each thread as it starts: it runs from now on, and the others may read its CPU clock."""
        with self._lock:
            self.running += 1
        if hasattr(time, "pthread_getcpuclockid"):
            self._clocks.append(time.pthread_getcpuclockid(threading.get_ident()))

    def leave(self) -> None:
        """Called for a thread that is stuck in user code and was given up: its room is another one's."""
        with self._lock:
            self.running -= 1
            self._call()

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

    def hold_out(self) -> None:
        """Let one thread alone work from here on, whichever it is; the others are parked as they come by."""
        self._are_held_out = True
        self.limit = 1

    def let_in(self) -> None:
        """Let the others work again."""
        if self._are_held_out:
            self._are_held_out = False
            self.allow(self._most)

    def allow(self, num_threads: int) -> None:
        """Let so many work at once from here on, at the most."""
        with self._lock:
            self._most = max(1, min(num_threads, self._num_threads))
            if not self._are_held_out:
                self.limit, self._before = self._most, None
                self._call()

    @property
    def most(self) -> int:
        """How many threads may work at once."""
        return self._most

    def look(self, now: float, sample_seconds: float | None) -> None:
        """Measure what the threads use and set the limit; at most once a period, by whichever thread comes by.

        Where a sample is so cheap that it can only be Python at work, one thread runs: two would wait for each other.
        """
        if now < self.next_look or self.is_open or self._are_held_out:
            return
        with self._lock:
            if now < self.next_look:
                return
            self.next_look = now + PERIOD_SECONDS
            used = self._used_cores(now)
            if sample_seconds is not None and sample_seconds < LONE_SECONDS:
                self.limit, self._before = 1, None
            elif self.limit < min(self.num_cores, self._most):
                self.limit = min(self.num_cores, self._most)
            elif self._most > self.num_cores:
                self._try_another_limit(now, used)
            self._call()

    def _call(self) -> None:
        """Call as many parked threads as there is room for. The lock is held."""
        while self._num_parked and self.running < self.limit:
            self._num_parked -= 1
            self.running += 1
            self._gate.put(None)

    def _try_another_limit(self, now: float, used: float) -> None:
        """Fewer threads are better if as much is done; more are better if more is done.

        Nothing else tells them apart: sixteen threads that use two cores may each wait for a disk seven eighths of the
        time, or all for the processor and the GIL. So one step is tried, and taken back unless it was worth it.
        """
        if self._before is not None:
            limit_before, used_before = self._before
            if now < self._judged_at:
                return
            went_down = self.limit < limit_before
            is_worth_it = used >= (ENOUGH if went_down else MORE) * used_before
            self._pause_seconds = MIN_PAUSE_SECONDS if is_worth_it else min(2 * self._pause_seconds, MAX_PAUSE_SECONDS)
            self._next_try = now if is_worth_it else now + self._pause_seconds
            if not is_worth_it:
                self.limit = limit_before
            self._before = None
        if now < self._next_try:
            return
        if used >= BUSY * self.num_cores and self.limit > self.num_cores:
            limit = self.num_cores + (self.limit - self.num_cores) // 2
        elif used < ROOMY * self.num_cores and self.limit < self._most:
            limit = min(self._most, 2 * self.limit)
        else:
            return
        self._before, self._judged_at = (self.limit, used), now + SETTLE_SECONDS
        self.limit = limit

    def cpu_seconds(self) -> float:
        """That its threads used so far, those that have ended left out."""
        return sum(cpu_seconds(clock) or 0.0 for clock in list(self._clocks))

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
