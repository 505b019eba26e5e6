"""Quiet: a shared machine in, a moment in which others leave it alone out.

StageLoader's threads are batch jobs, which yield to whatever wakes; a comparison with worker processes then may say
more about a stranger's program than about either. Guarantees: waits `patience_seconds` at most.
"""

from __future__ import annotations

import time

from benchmarks.probes import machine_busy_seconds

LOOK_SECONDS = 0.5
MOST_BUSY_CORES = 0.2


def wait_for_quiet(patience_seconds: float) -> None:
    """Returns when all programs together used less than MOST_BUSY_CORES for a look, or patience has ended."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        busy_before, start = machine_busy_seconds(), time.perf_counter()
        time.sleep(LOOK_SECONDS)
        if (machine_busy_seconds() - busy_before) / (time.perf_counter() - start) < MOST_BUSY_CORES:
            return
