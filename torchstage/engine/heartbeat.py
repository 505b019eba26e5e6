"""Heartbeat: a consumer that waits and a loader thread at work in, how much of each stage holds the GIL out.

The consumer sleeps for a short, random while, over and over. Going to sleep is one switch of its thread; a second one
says that it had to wait for the GIL when it woke. Who held it: the stage that was running then, of which the times are
kept meanwhile.

Guarantees: nothing is concluded from a moment at which two threads were in stages; what is kept is bounded.
"""

import threading
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter, process_time, thread_time
from typing import NamedTuple

from torchstage.engine.ledger import had_to_wait, num_switches
from torchstage.engine.parking import cpu_seconds
from torchstage.engine.told import Listener, Ran

BEAT_SECONDS = (0.5e-3, 3e-3)
STOPPED_SECONDS = 50e-3  # a sleep that lasts so much longer while hardly anything runs: the whole process was stopped
STOPPED_CORES = 0.2
MAX_STOPS = 3  # a machine where it happens more often is busy: then it counts as waiting
LAG_SECONDS = 60e-6  # from the time-out until a sleeper asks for the GIL: a timer's slack and a switch
MAX_SPANS = 20_000  # kept, of the latest: in the 0.3 s that are measured, of stages of 20 us each


class Beat(NamedTuple):
    """The consumer slept from ``begin`` to ``end``, for ``asked`` seconds and a wait for the GIL if it ``is_late``."""

    begin: float
    asked: float
    end: float
    is_late: bool

    @property
    def at(self) -> float:
        """When it asked for the GIL."""
        return self.begin + self.asked + LAG_SECONDS if self.is_late else self.end


class Span(NamedTuple):
    """A thread was in a stage."""

    begin: float
    end: float
    stage: str
    thread: int


@dataclass(frozen=True, slots=True)
class Reading:
    """What was seen of a stage, summed over its samples. ``held_share``: of its wall time, how much it held the GIL,
    0 to 1; None where too few beats came while it ran."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    num_samples: int = 0
    num_beats: int = 0
    held_share: float | None = None
    beat_seconds: float = 0.0  # of those beats


class Timeline(Listener):
    """When each thread was in which stage."""

    def __init__(self) -> None:
        self.spans: deque[Span] = deque(maxlen=MAX_SPANS)
        self.num_samples: Counter[str] = Counter()
        self.wall_seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self.tids: set[int] = set()
        self._inside: dict[int, list[tuple[str, float, float]]] = {}

    def enter(self, stage: str) -> None:
        thread = threading.get_ident()
        inside = self._inside.get(thread)
        if inside is None:
            inside = self._inside[thread] = []
            self.tids.add(threading.get_native_id())
        inside.append((stage, perf_counter(), thread_time()))

    def leave(self) -> None:
        thread, now = threading.get_ident(), perf_counter()
        inside = self._inside.get(thread)
        if inside:
            stage, begin, cpu_begin = inside.pop()
            self.spans.append(Span(begin, now, stage, thread))
            self.wall_seconds[stage] += now - begin
            self.cpu_seconds[stage] += thread_time() - cpu_begin

    def ran(self, one: Ran) -> None:
        if one.error is None:
            self.num_samples[one.stage] += one.num_samples

    def listed(self, now: float) -> list[Span]:
        """All spans that are kept, by their begin; those that are not over yet, until now."""
        open_ones = [
            Span(begin, now, stage, thread)
            for thread, inside in list(self._inside.items())
            for stage, begin, _ in list(inside)
        ]
        while True:
            with suppress(RuntimeError):  # another one was added meanwhile
                return sorted([*self.spans, *open_ones])


class Beats:
    """The beats of one measurement. ``holds``: whether the consumer is to wait for the sake of it, although the batch
    whose turn it is is made. Used in the consumer's thread alone."""

    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self.beats: list[Beat] = []
        self.range_seconds = BEAT_SECONDS
        self.stops: list[tuple[float, float]] = []  # when nothing of this process ran
        self.holds = False
        self.num_holds = 0  # sleeps with a batch at hand
        self.beat_seconds = 0.0
        self.waited_seconds = 0.0  # with sleeps that were cut short
        self.process_cpu_seconds = 0.0  # of the whole process, during all of them
        self.others: list[int] = []  # CPU clocks of threads that are neither the loader's nor the consumer's
        self.others_cpu_seconds = 0.0

    def sleep(self, wait: Callable[[float], bool]) -> tuple[Beat | None, bool]:
        """One sleep: the beat that it is, and whether something was announced. ``wait(seconds)`` sleeps, and is true if
        it was cut short by an announcement.

        Whether a beat is late is asked for the moment that was drawn, never for that of an announcement, which comes
        when a stage has just ended. So who was woken before that moment, and has waited for the GIL since, is late;
        who came earlier goes on sleeping if it waits for the sake of it, and else has no beat.
        """
        asked = self._random.uniform(*self.range_seconds)
        others = self._others_seconds()
        cpu, begin = process_time(), perf_counter()
        due, since, is_announced = begin + asked, begin, False
        while True:
            switches = num_switches()
            is_cut_short = wait(due - since)
            end, switches = perf_counter(), num_switches() - switches
            is_late = had_to_wait(end - since, due - since, switches)
            is_announced |= is_cut_short
            if not is_cut_short or end >= due or not self.holds:
                break
            since = end
        cpu = process_time() - cpu
        if end - due > STOPPED_SECONDS and cpu < STOPPED_CORES * (end - begin):
            self.stops.append((begin, end))
            self.waited_seconds += asked if len(self.stops) <= MAX_STOPS else end - begin
            return None, is_announced
        self.process_cpu_seconds += cpu
        self.others_cpu_seconds += max(0.0, self._others_seconds() - others)
        self.waited_seconds += end - begin
        if is_cut_short and (end < due or not is_late):
            return None, True
        beat = Beat(begin, asked, end, is_late)
        self.beats.append(beat)
        self.beat_seconds += end - begin
        return beat, is_announced

    def _others_seconds(self) -> float:
        return sum(cpu_seconds(clock) or 0.0 for clock in self.others)


def readings(
    timeline: Timeline, beats: Sequence[Beat], lost_share: float = 0.0, stops: Sequence[tuple[float, float]] = ()
) -> dict[str, Reading]:
    """What each stage is like. ``lost_share``: of its wall time, how much the thread waited for a core: that is no time
    of the stage's own. It was stopped with the GIL as often as without, so that the share of time with it is the same.
    ``stops``: when the process was stopped.
    """
    spans = timeline.listed(perf_counter())
    seen = _attributed(spans, beats)
    stopped = _stopped_seconds(spans, stops)
    found: dict[str, Reading] = {}
    for stage in {*timeline.wall_seconds, *seen}:
        wall = timeline.wall_seconds[stage] - stopped.get(stage, 0.0)
        cpu = timeline.cpu_seconds[stage]
        of_stage = seen.get(stage, [])
        found[stage] = Reading(
            max(cpu, wall * (1 - lost_share)),
            cpu,
            timeline.num_samples[stage],
            len(of_stage),
            _held_share(of_stage) if of_stage else None,
            sum(beat.end - beat.begin for beat in of_stage),
        )
    return found


def _stopped_seconds(spans: Sequence[Span], stops: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Of each stage's time, how much the process was stopped."""
    found: dict[str, float] = {}
    for begin, end in stops:
        for span in spans:
            overlap = min(end, span.end) - max(begin, span.begin)
            if overlap > 0:
                found[span.stage] = found.get(span.stage, 0.0) + overlap
    return found


def _attributed(spans: Sequence[Span], beats: Sequence[Beat]) -> dict[str, list[Beat]]:
    """The beats by the one stage that was running when they were due."""
    threads = sorted({span.thread for span in spans})
    of_thread = {thread: [span for span in spans if span.thread == thread] for thread in threads}
    begins_of = {thread: [span.begin for span in own] for thread, own in of_thread.items()}
    found: dict[str, list[Beat]] = {}
    for beat in beats:
        stages = [
            stage for thread in threads if (stage := _at(of_thread[thread], begins_of[thread], beat.at)) is not None
        ]
        if len(stages) == 1:
            found.setdefault(stages[0], []).append(beat)
    return found


def _at(spans: Sequence[Span], begins: Sequence[float], at: float) -> str | None:
    """The stage at that time: of stages inside each other, the inner one."""
    number = bisect_right(begins, at) - 1
    for span in reversed(spans[max(0, number - 2) : number + 1]):
        if span.end >= at:
            return span.stage
    return None


def _held_share(beats: Sequence[Beat]) -> float:
    """Of the time of these beats, how much the GIL was held. That of the sleeps is known by their ends; the waits after
    them, it was held throughout."""
    asked = sum(beat.asked for beat in beats)
    waited = sum(beat.end - beat.begin - beat.asked for beat in beats if beat.is_late)
    late_share = sum(beat.is_late for beat in beats) / len(beats)
    return (asked * late_share + waited) / (asked + waited)


def waiting_seconds(tids: Sequence[int]) -> float | None:
    """How long these threads of this process were kept from the cores so far, by others that ran. None: not known."""
    total = 0
    for tid in tids:
        try:
            total += int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return total / 1e9
