"""Measuring: a run and its pool in, what each stage is like out, measured while the consumer waits.

1. While the consumer waits for its first batch, one thread alone works, and the consumer is the heartbeat; it goes on
until enough was seen, or all that may be in flight is made. 2. What is missing is measured in later waits. 3. Where the
consumer hardly ever waits, the other threads are let in again, and once the threads have used a second of CPU time, the
consumer is held, as in the first place.

Guarantees: the consumer is kept for MOST_SECONDS at the very most, all epochs together; nothing is measured while it is
elsewhere, where its own work would look like that of a stage.
"""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from torchstage.engine.heartbeat import BEAT_SECONDS, Beats, Reading, Timeline, readings, waiting_seconds
from torchstage.engine.pipeline import Pool, Run
from torchstage.engine.segment import Worker

QUICK_SECONDS, ENOUGH_SECONDS = 0.15, 0.3  # of beats: for what is clear, and for what is not
MOST_SECONDS = 0.55  # that the consumer may be kept, in all
FEW_SECONDS = 5e-3  # a window that is made in less is not worth a look
CHEAP_SECONDS = 100e-6  # a sample: to be told of each takes a tenth of that
ENOUGH_BEATS = 80  # of whatever length
SHORT_SECONDS = 60e-6  # no sleep is shorter
PATIENCE_SECONDS = 2.0  # how long the other threads are kept out while the consumer hardly waits
CPU_SECONDS = 1.0  # what is used so far is worth a look
LOOK_SECONDS = 0.05
NOISY = 1.5  # cores that one working thread keeps busy: some library has threads of its own


@dataclass(frozen=True, slots=True)
class Measured:
    """Stages by their names. ``others_share``: of the time, how much other Python threads of the process worked.
    ``num_cores_used``: by one loader thread and the libraries' threads that it keeps busy; None where it is not known.
    """

    readings: dict[str, Reading]
    others_share: float
    num_cores_used: float | None
    num_beats: int
    beat_seconds: float


class Measuring:
    """One measurement, in one run at a time. Used in the consumer's thread alone. ``budget_seconds``: how long the
    consumer may be kept."""

    def __init__(self, pool: Pool, run: Run, budget_seconds: float) -> None:
        self._pool, self._run_ref = weakref.ref(pool), weakref.ref(run)  # a loader must not keep what was dropped
        self._budget_seconds = budget_seconds
        self.beats = Beats()
        self.timeline = Timeline()
        self._is_listening = self._was_quick_look = False
        self._is_first = True
        self._lost_seconds = 0.0
        self._lost_at: float | None = None  # also for Ctrl-C in ``begin``
        self._is_lost_known = True
        self._next_look = 0.0

    @property
    def pool(self) -> Pool | None:
        """None: it is gone."""
        return self._pool()

    @property
    def is_dead(self) -> bool:
        """Whether its run is over."""
        pool, run = self._pool(), self._run_ref()
        return pool is None or run is None or pool.is_closed or run.is_closed

    def is_of(self, run: Run) -> bool:
        """Whether that is what it looks at."""
        return self._run_ref() is run

    def begin(self, pool: Pool, run: Run) -> None:
        """Keep the other threads out and listen, and have the consumer wait for it."""
        pool.parking.hold_out()
        pool.ledger.probes.add(self.timeline)
        self._probes = pool.ledger.probes
        self.beats.others = _clocks_of_others(pool.workers)
        self.beats.holds, run.beats = True, self.beats
        self._set_beat(pool, run)
        self._is_listening, self._since = True, perf_counter()
        self._lost_at = self._lost_now()

    def _set_beat(self, pool: Pool, run: Run) -> None:
        """Where all that may be in flight is made sooner than a beat is over, beats are shorter than that."""
        seconds = pool.meter.sample_seconds
        window = (seconds or 1.0) * sum(batch.size for batch in run.in_flight)
        self._is_short = 0 < window < BEAT_SECONDS[1]
        longest = max(2 * SHORT_SECONDS, window)
        self.beats.range_seconds = (SHORT_SECONDS, longest) if self._is_short else BEAT_SECONDS

    def _stop_listening(self) -> None:
        if self._is_listening:
            self._is_listening = False
            pool, run = self._pool(), self._run_ref()
            if run is not None:
                run.beats = None
            self._probes.remove(self.timeline)
            lost = self._lost_now()
            self._is_lost_known = self._is_lost_known and lost is not None and self._lost_at is not None
            self._lost_seconds += (lost or 0.0) - (self._lost_at or 0.0)
            if pool is not None:
                pool.parking.let_in()

    def _lost_now(self) -> float | None:
        pool = self._pool()
        workers = [] if pool is None else pool.workers
        return waiting_seconds([w.thread.native_id for w in workers if w.thread.native_id is not None])

    def attend(
        self, pool: Pool, run: Run, is_clear: Callable[[Measured], bool], is_known: Callable[[Measured], bool]
    ) -> bool:
        """Look whether it is over. True if it is: the other threads are in again, and are to be called.

        ``is_clear(measured)``: whether what was seen in the quick time says enough; ``is_known(measured)``: whether
        what was seen in the usual time says anything."""
        now, beats = perf_counter(), self.beats
        if not self._is_listening:
            if now >= self._next_look and not self.is_dead:
                self._next_look = now + LOOK_SECONDS
                if pool.parking.cpu_seconds() >= CPU_SECONDS:
                    self.begin(pool, run)
            return False
        if beats.beat_seconds >= QUICK_SECONDS and not self._was_quick_look:
            self._was_quick_look = True
            if is_clear(self.measured()):
                self._stop_listening()
                return True
        is_enough = beats.beat_seconds >= ENOUGH_SECONDS or (self._is_short and len(beats.beats) >= ENOUGH_BEATS)
        if (is_enough and is_known(self.measured())) or beats.waited_seconds >= self._budget_seconds:
            self._stop_listening()
            return True
        if (self._is_first and self._is_soon_made(pool, run)) or (not beats.holds and _is_cheap(pool)):
            self._pause(run)
        elif self._is_first and all(batch.done for batch in run.in_flight):
            self._is_first = beats.holds = False
        elif not beats.holds and now - self._since > PATIENCE_SECONDS:
            self._pause(run)
        return False

    def _is_soon_made(self, pool: Pool, run: Run) -> bool:
        """Whether all that may be in flight is made in no time."""
        if _is_cheap(pool):
            return True
        batches = list(run.in_flight)
        num_done = sum(batch.done for batch in batches)
        return num_done > 0 and (perf_counter() - self._since) * len(batches) / num_done < FEW_SECONDS

    def _pause(self, run: Run) -> None:
        """Let the other threads in until it is worth another look."""
        self._is_first = self.beats.holds = False
        self._stop_listening()
        run.call_threads()

    def end(self) -> None:
        """There is nothing left to look at."""
        self._stop_listening()

    def measured(self) -> Measured:
        """What was seen so far."""
        beats, timeline = self.beats, self.timeline
        waited = beats.waited_seconds or 1e-9
        others_share = min(1.0, beats.others_cpu_seconds / waited)
        busy = sum(timeline.wall_seconds.values())
        lost = self._lost_seconds + ((self._lost_now() or 0.0) - (self._lost_at or 0.0) if self._is_listening else 0.0)
        lost_share = min(0.75, lost / busy) if self._is_lost_known and busy > 0 and lost > 0 else 0.0
        found = readings(timeline, beats.beats, lost_share, beats.stops)
        cores = (beats.process_cpu_seconds - beats.others_cpu_seconds) / waited
        return Measured(
            {stage: _without_others(reading, others_share) for stage, reading in found.items()},
            others_share,
            cores if len(beats.beats) > 1 else None,
            len(beats.beats),
            beats.beat_seconds,
        )


def _is_cheap(pool: Pool) -> bool:
    seconds = pool.meter.sample_seconds
    return seconds is not None and seconds < CHEAP_SECONDS


def _without_others(reading: Reading, others_share: float) -> Reading:
    """What a stage is like without the Python threads that worked beside it: at worst, they held the GIL all the time
    that they used, and the stage waited for it as long."""
    held, share = reading.held_share, others_share if others_share > 0.05 else 0.0
    wall = max(reading.cpu_seconds, reading.wall_seconds * (1 - share))
    if held is None:
        return Reading(wall, reading.cpu_seconds, reading.num_samples, reading.num_beats, None, reading.beat_seconds)
    held_seconds = min(reading.cpu_seconds, max(0.0, held - share) * reading.wall_seconds)
    share = held_seconds / wall if wall > 0 else 0.0
    return Reading(wall, reading.cpu_seconds, reading.num_samples, reading.num_beats, share, reading.beat_seconds)


def _clocks_of_others(workers: Sequence[Worker]) -> list[int]:
    """CPU clocks of the Python threads that are neither the loader's nor the caller."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return []
    known = {worker.thread.ident for worker in workers} | {threading.get_ident()}
    others = [t for t in threading.enumerate() if t.ident not in known and not t.name.startswith("torchstage-")]
    return [time.pthread_getcpuclockid(t.ident) for t in others if t.ident is not None and t.is_alive()]
