"""Advice: how busy each place of a loader was and how long its user waited in, what holds training back out.

Guarantees: nothing is claimed of what was not measured; where nothing stands out, no stage is named.

How it is decided. If waits are less than a twentieth of a step, the loader keeps up: training is the limit, or, where
the threads have hardly time to spare, both are. Else the place whose threads are busiest is the limit, and of it the
stage that takes the most. What helps depends on what that stage does: it holds the GIL (the consumer, while it waited,
woke now and then and mostly had to wait for the GIL; and the threads together used no more than about one core), it
uses up all cores, or it waits for something.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ENOUGH = 0.05  # share of a step: below, nobody would notice if the loader were infinitely fast
IDLE = 0.5  # a place less busy than this is no limit
HARD_PRESSED = 0.75  # a place as busy as this has no room to spare
SPARE = 0.8  # how busy fewer threads may be, so that they still keep up
LATE = 0.65  # share of beats that had to wait for the GIL: it is held as much of the time
MIN_BEATS = 4
SOME_CORE = 0.15  # cores: less than that is no Python at work, even on a machine that others use, too
ONE_CORE = 1.25  # cores: what threads use that take the GIL from each other, and a little that they do without it
ALL_CORES = 0.85  # of the cores
CHEAP_SECONDS = 20e-6  # a sample: Python and the hand-over
MIN_STEPS = 3


@dataclass(frozen=True, slots=True)
class Busy:
    """A stage, as far as it matters here."""

    name: str
    share: float  # of its place's time, 0 to 1
    cpu_seconds: float
    mean_seconds: float | None
    of_batches: bool = False


@dataclass(frozen=True, slots=True)
class Crowd:
    """A place and its stages."""

    executor: str
    threads: int
    stages: Sequence[Busy]
    is_home: bool = False  # the loader's own threads
    num_wanted: int = 0  # of them, if there could be more

    @property
    def share(self) -> float:
        """Of its threads' time, how much they were busy."""
        return min(1.0, sum(stage.share for stage in self.stages))


@dataclass(frozen=True, slots=True)
class Situation:
    """What was measured."""

    crowds: Sequence[Crowd]
    num_steps: int
    elapsed_seconds: float
    wait_share: float
    held_share: float  # of the time, how much there was nothing to begin
    num_beats: int
    late_share: float  # of the time that it took the consumer to wake, how much with a wait for the GIL
    num_cores: int
    has_gil: bool = True
    chosen: Mapping[str, str] = field(default_factory=dict[str, str])  # what was decided of a stage that holds the GIL
    first_seconds: float = 0.0  # of the time, what went until each epoch's first batch: threads and processes start


def advice_of(seen: Situation) -> tuple[str | None, str]:
    """The bottleneck's name, and one sentence."""
    if seen.num_steps < MIN_STEPS or not seen.elapsed_seconds:
        return None, "Too little was seen yet: ask again after some more batches."
    known = [crowd for crowd in seen.crowds if any(stage.share for stage in crowd.stages)]
    if not known:
        return _of_processes(seen)
    busiest = max(known, key=lambda crowd: crowd.share)
    if seen.wait_share < ENOUGH:
        return _loader_keeps_up(seen, busiest)
    if busiest.executor == "inline":
        name = _largest(busiest).name
        return name, (
            f"{name} is the most of the {_percent(seen.wait_share)} of each step that loading takes in the training "
            "thread itself: set num_workers=2 or more, to load meanwhile."
        )
    if (found := _holds_the_gil(seen)) is not None:
        return found
    if busiest.share < IDLE:
        return None, _idle(seen)
    return _busy(seen, busiest)


def _of_processes(seen: Situation) -> tuple[str | None, str]:
    waits = f"{_percent(seen.wait_share)} of each step"
    if seen.wait_share < ENOUGH:
        return "training", f"training is the limit: it waits {waits} for data."
    return None, (
        f"Training waits {waits} for worker processes, of which the stages are not known: raise num_workers, or load "
        "with threads to see more (worker_method='thread')."
    )


def _loader_keeps_up(seen: Situation, busiest: Crowd) -> tuple[str | None, str]:
    if busiest.executor == "inline":
        return "training", f"training is the limit: loading takes {_percent(seen.wait_share)} of each step."
    if busiest.share >= HARD_PRESSED:
        return None, (
            f"balanced: training waits {_percent(seen.wait_share)} of each step, and {_largest(busiest).name} keeps "
            f"{_threads(busiest)} busy {_percent(busiest.share)} of the time."
        )
    enough = max(1, math.ceil(busiest.threads * busiest.share / SPARE))
    if busiest.is_home and enough < busiest.threads:
        return "training", f"training is the limit: {enough} thread{'s' * (enough > 1)} would do."
    return "training", f"training is the limit: it waits {_percent(seen.wait_share)} of each step for data."


def _holds_the_gil(seen: Situation) -> tuple[str, str] | None:
    ours = [crowd for crowd in seen.crowds if crowd.executor in ("thread", "lane")]
    stages = [stage for crowd in ours for stage in crowd.stages]
    used = sum(stage.cpu_seconds for stage in stages) / seen.elapsed_seconds
    if not seen.has_gil or not stages:
        return None
    largest = max(stages, key=lambda stage: stage.cpu_seconds)
    home = max(ours, key=lambda crowd: crowd.share)
    top = _largest(home)
    if top.mean_seconds is not None and top.mean_seconds < CHEAP_SECONDS and home.share >= IDLE:
        return top.name, (
            f"{top.name} takes {top.mean_seconds * 1e6:.1f} us a sample, which is Python at work on one sample after "
            "another: read a batch at once (__getitems__, or fetch_many of a StagedDataset)."
        )
    is_late = seen.num_beats >= MIN_BEATS and seen.late_share >= LATE
    if not is_late or not SOME_CORE <= used <= ONE_CORE:
        return None
    holds = f"{largest.name} holds the GIL, so that threads do not help: "
    if largest.name in seen.chosen:
        return largest.name, holds + seen.chosen[largest.name]
    if largest.name == "fetch" or largest.of_batches:
        return largest.name, holds + (
            "load with processes (worker_method='multiprocessing'), or move its Python code into a Stage with "
            "executor='process'."
        )
    return largest.name, holds + "give its Stage executor='process'."


def _idle(seen: Situation) -> str:
    if (share := seen.first_seconds / seen.elapsed_seconds) > IDLE:
        return (
            f"{_percent(share)} of the time went until the first batch, in which threads and processes start: ask for "
            "loader.stats(since) of what comes after it."
        )
    waits = f"Training waits {_percent(seen.wait_share)} of each step although no stage is busy"
    if seen.held_share >= ENOUGH:
        return f"{waits}: too little may be in flight. Raise prefetch_factor (or prefetch_bytes, if it is set)."
    return f"{waits}: batches cost unlike, or the sampler is slow. Raise prefetch_factor to even that out."


def _busy(seen: Situation, busiest: Crowd) -> tuple[str, str]:
    stage = _largest(busiest)
    used = sum(stage.cpu_seconds for crowd in seen.crowds for stage in crowd.stages) / seen.elapsed_seconds
    if used >= ALL_CORES * seen.num_cores and busiest.executor in ("thread", "lane"):
        return stage.name, (
            f"{stage.name} is the most of what keeps {used:.1f} of {seen.num_cores} cores busy: more threads do not "
            "help, only less work a sample or more cores."
        )
    is_alone = stage.share >= SPARE * busiest.share
    share = _percent(busiest.share)
    place = f"is busy {share} on" if is_alone else f"is the most of {share} busy time on"
    if busiest.is_home and busiest.threads < busiest.num_wanted:
        remedy = (
            "what it uses is used by one thread at a time (see isolation), so load with processes "
            "(worker_method='multiprocessing')"
        )
    elif busiest.is_home:
        remedy = "raise num_workers"
    elif busiest.executor in ("thread", "event loop"):
        remedy = "raise its Stage's concurrency"
    else:
        remedy = "give its executor more workers, or its Stage more concurrency"
    return stage.name, f"{stage.name} {place} {_threads(busiest)}: {remedy}."


def _largest(crowd: Crowd) -> Busy:
    return max(crowd.stages, key=lambda stage: stage.share)


def _threads(crowd: Crowd) -> str:
    if crowd.executor == "thread":
        return f"{crowd.threads} thread{'s' * (crowd.threads != 1)}"
    if crowd.executor == "lane":
        return f"{crowd.threads} lane{'s' * (crowd.threads != 1)}"
    if crowd.executor == "process":
        return f"{crowd.threads} process{'es' * (crowd.threads != 1)}"
    return f"{crowd.threads} places of its {crowd.executor}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
