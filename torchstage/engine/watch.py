"""Watch: one sample through its stages in, the time of each stage out.

Guarantees: a watch is used in one thread at a time. CPU time is asked for once in ``CPU_PERIOD_SECONDS``, as that
costs a call into the system; in between, laps have none.
"""

import threading
from time import perf_counter, thread_time
from typing import Any

CPU_PERIOD_SECONDS = 5e-3  # asking costs 0.3 to 3 us a stage

Laps = list[tuple[float, float | None]]  # wall seconds and, where asked for, CPU seconds of one stage after another


class Watch:
    """Times one sample through its stages. Used in one thread at a time."""

    probe: Any = None  # what is told of each stage

    __slots__ = ("_at", "_cpu_at", "_cpu_due", "_given", "_stopped_at", "is_on", "laps", "lost_seconds")

    def __init__(self) -> None:
        self.is_on = False
        self.laps: Laps = []
        self.lost_seconds = 0.0  # that belong to no stage, since ``take_lost``
        self._at = 0.0
        self._cpu_at: float | None = None
        self._cpu_due = 0.0
        self._stopped_at: float | None = None
        self._given: tuple[float, float | None] | None = None

    def begin(self, batch: Any = None, slot: int = -1, segment: Any = None) -> None:
        """A sample comes to its first stage; without a segment, a whole batch. Which one, others may want to know."""
        self.laps = []
        self.is_on = True
        self._stopped_at = self._given = None
        self._at = now = perf_counter()
        self._cpu_at = thread_time() if now >= self._cpu_due else None

    def lap(self) -> None:
        """It is through one more stage."""
        now = end = perf_counter()
        cpu_seconds = None
        if self._stopped_at is not None:
            end, self._stopped_at = self._stopped_at, None
            self.lost_seconds += now - end
        elif self._cpu_at is not None:
            cpu_now = thread_time()
            cpu_seconds, self._cpu_at = cpu_now - self._cpu_at, cpu_now
        self.laps.append(self._given or (end - self._at, cpu_seconds))
        self._given = None
        self._at = now

    def skip(self) -> None:
        """What took the time until here is not the next stage."""
        now = perf_counter()
        self.lost_seconds += now - self._at
        self._at = now
        if self._cpu_at is not None:
            self._cpu_at = thread_time()

    def stop(self) -> None:
        """The stage that it is in has ended here, whatever comes before the lap."""
        self._stopped_at = perf_counter()

    def give(self, laps: Laps, place: Any = None) -> None:
        """The next stages were timed elsewhere, in this place if that is known. The caller's own lap, which comes next,
        is that of the last one."""
        if laps:
            self.laps += laps[:-1]
            self._given = laps[-1]

    def fail(self, error: BaseException | None = None) -> None:
        """The stage that the sample is in failed, if it is in any."""
        self.is_on = False

    def end(self) -> Laps:
        """The sample is through all stages, or failed in one: its laps."""
        self.is_on = False
        if self._cpu_at is not None:
            self._cpu_due = self._at + CPU_PERIOD_SECONDS
        return self.laps

    def take_lost(self) -> float:
        """Seconds that belong to no stage, since this was asked last."""
        lost, self.lost_seconds = self.lost_seconds, 0.0
        return lost


class _Here(threading.local):
    watch: Watch | None = None


here = _Here()  # the watch of the calling thread, for functions that stand for several stages


class Timing:
    """Around what a thread does that is timed by this watch. No generator: it would write to errors that pass."""

    __slots__ = ("_before", "_watch")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._before, here.watch = here.watch, self._watch

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        here.watch = self._before
        self._watch.fail(error)


def watch_here() -> Watch | None:
    """The calling thread's watch, if a sample is being timed in it."""
    watch = here.watch
    return watch if watch is not None and watch.is_on else None
