"""Predicting: what was measured of each stage in, samples a second with threads and with processes out.

Pure functions on plain values. A unit is what can only move as a whole: the dataset's own stages, whose draws go on
from one to the next, or one stage of the user's.

N threads make at most N samples in the time of one, no more than the cores can, and no more than the time that one of
them holds the GIL allows. N processes make N samples in the time of one and of its crossing, and no more than the cores
can. What holds the GIL also stops the training loop for as long: that counts as a loss as well.

Guarantees: what is not known is never taken for a reason to change anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

Method = Literal["thread", "process"]

GIL_BOUND = 0.3  # share without the GIL: below, threads gain nothing
GOOD_FOR_THREADS = 0.75  # above, threads do as well as processes
CONTENTION = 1.1  # two threads of Python code need so much longer for what one of them does (1.0 to 1.4 seen, noisily)
BLOCKED = 0.6  # of the time that a thread of Python code works, what the training loop loses: it kept 38 % (measured)
SMALL = 0.1  # share of a sample's time: a stage below it decides nothing
MIN_BEATS = 6  # of a stage, before anything is said of it


@dataclass(frozen=True, slots=True)
class Costs:
    """What processes cost. Seconds and bytes a second. Measured by ``benchmarks.crossing`` where it says so, and by
    ``benchmarks/cases/transport.py``."""

    nursery_seconds: float = 3.0  # once: the process that others are forked from imports torch
    process_seconds: float = 0.025  # each further one
    batch_seconds: float = 600e-6  # a batch made there: its job there and back, in CPU time of both sides (crossing)
    sample_seconds: float = 375e-6  # a sample that goes there and comes back in the middle of its way (crossing)
    held_share: float = 0.5  # of these, how much is spent in this process, with its GIL
    slot_bytes_per_second: float = 6.4e9  # a batch that is collated straight into shared memory
    pickle_bytes_per_second: float = 1.0e9  # a sample's tensors, copied in and out

    def start_seconds(self, num_processes: int) -> float:
        """Until the processes are up, where none is."""
        return self.nursery_seconds + self.process_seconds * num_processes


COSTS = Costs()


@dataclass(frozen=True, slots=True)
class Seen:
    """A stage: seconds a sample. ``held_seconds``: with the GIL; None: it is not known."""

    label: str
    wall_seconds: float
    cpu_seconds: float
    held_seconds: float | None
    num_beats: int = 0

    @property
    def share_without_gil(self) -> float | None:
        """0 to 1; None: not known."""
        if self.held_seconds is None or self.wall_seconds <= 0:
            return None
        return max(0.0, 1 - self.held_seconds / self.wall_seconds)


@dataclass(frozen=True, slots=True)
class Unit:
    """Stages that move together. ``asked``: what the user said of it. ``bytes_in``, ``bytes_out``: of a sample, if it
    crosses there; None: not known. ``number``: of the user's stage; None: it is the dataset's own stages."""

    stages: tuple[Seen, ...]
    asked: Method | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    number: int | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(stage.label for stage in self.stages)

    @property
    def wall_seconds(self) -> float:
        return sum(stage.wall_seconds for stage in self.stages)

    @property
    def cpu_seconds(self) -> float:
        return sum(stage.cpu_seconds for stage in self.stages)

    @property
    def held_seconds(self) -> float:
        """With the GIL: of a stage that was too short to be seen, all its CPU time."""
        return sum(stage.cpu_seconds if stage.held_seconds is None else stage.held_seconds for stage in self.stages)

    @property
    def is_known(self) -> bool:
        """Whether enough was seen of what makes up its time."""
        return all(s.held_seconds is not None or s.wall_seconds <= SMALL * self.wall_seconds for s in self.stages)

    @property
    def share_without_gil(self) -> float:
        return 1.0 if self.wall_seconds <= 0 else max(0.0, 1 - self.held_seconds / self.wall_seconds)

    @property
    def is_gil_bound(self) -> bool:
        return self.is_known and self.wall_seconds > 0 and self.share_without_gil < GIL_BOUND


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a choice depends on. ``batch_bytes``: of a collated batch, a sample's share. ``why_not``: why processes
    cannot be used, in words."""

    units: tuple[Unit, ...]
    num_threads: int
    num_cores: int
    batch_size: int = 1
    collate: Seen | None = None
    batch_bytes: int | None = None
    has_gil: bool = True
    is_serial: bool = False  # threads use the dataset one at a time
    has_others: bool = False  # stages of executors or coroutines, so that batches are never made in processes
    why_not: str | None = None
    costs: Costs = field(default=COSTS)


def loss(scene: Scene, methods: Sequence[Method]) -> float:
    """Seconds a sample: until the next one comes, and that the training loop is stopped by what holds the GIL."""
    until_next = 1 / rate(scene, methods)
    if not scene.has_gil or scene.num_cores < 2:  # on one core whoever works stops the others anyhow
        return until_next
    return until_next + BLOCKED * sum(
        _blocking(u) for u, method in zip(scene.units, methods, strict=True) if method == "thread"
    )


def _blocking(unit: Unit) -> float:
    """Of its time with the GIL, the part that comes in long stretches: all where it is GIL-bound, none where it is good
    for threads. Who lets go of the GIL every few microseconds keeps nobody waiting."""
    share = (GOOD_FOR_THREADS - unit.share_without_gil) / (GOOD_FOR_THREADS - GIL_BOUND)
    return unit.held_seconds * min(1.0, max(0.0, share))


@dataclass(slots=True)
class _Load:
    """Seconds a sample."""

    wall: float = 0.0
    cpu: float = 0.0
    held: float = 0.0

    def add(self, wall: float, cpu: float, held: float) -> None:
        self.wall += wall
        self.cpu += cpu
        self.held += held


def rate(scene: Scene, methods: Sequence[Method]) -> float:
    """Samples a second of the whole line."""
    threads, processes = _Load(), _Load()
    alone = 0.0  # seconds of the GIL-bound stages that are given one thread
    for unit, method in zip(scene.units, methods, strict=True):
        load = threads if method == "thread" else processes
        load.add(unit.wall_seconds, unit.cpu_seconds, unit.held_seconds)
        if method == "thread" and unit.is_gil_bound and scene.has_gil and unit.asked is None:
            alone = max(alone, unit.wall_seconds)
    if scene.collate is not None:
        held = scene.collate.cpu_seconds if scene.collate.held_seconds is None else scene.collate.held_seconds
        load = processes if collates_there(scene, methods) else threads
        load.add(scene.collate.wall_seconds, scene.collate.cpu_seconds, held)
    crossing = _crossing_seconds(scene, methods)
    here = scene.costs.held_share * crossing
    threads.add(here, here, here)
    processes.add(crossing - here, crossing - here, 0.0)
    num_threads = 1 if scene.is_serial else scene.num_threads
    times = [
        threads.wall / num_threads,
        processes.wall / scene.num_threads,
        (threads.cpu + processes.cpu) / scene.num_cores,
        alone,
    ]
    if scene.has_gil:
        is_shared = num_threads > 1 and threads.held > (1 - GIL_BOUND) * threads.wall
        times.append(threads.held * (CONTENTION if is_shared and not alone else 1.0))
    slowest = max(times)
    return 1 / slowest if slowest > 0 else float("inf")


def collates_there(scene: Scene, methods: Sequence[Method]) -> bool:
    return bool(methods) and not scene.has_others and all(method == "process" for method in methods)


def _crossing_seconds(scene: Scene, methods: Sequence[Method]) -> float:
    """A sample's, in CPU time of both sides."""
    costs = scene.costs
    if collates_there(scene, methods):
        return costs.batch_seconds / scene.batch_size + (scene.batch_bytes or 0) / costs.slot_bytes_per_second
    seconds, before = 0.0, "thread"
    last = len(methods) - 1
    for number, (unit, method) in enumerate(zip(scene.units, methods, strict=True)):
        if method == "process":
            if before != "process":
                num_bytes = 0 if number == 0 else _known(unit.bytes_in, scene)  # the first is sent an index
                seconds += costs.sample_seconds / 2 + num_bytes / costs.pickle_bytes_per_second
            if number == last or methods[number + 1] != "process":
                seconds += costs.sample_seconds / 2 + _known(unit.bytes_out, scene) / costs.pickle_bytes_per_second
        before = method
    return seconds


def _known(num_bytes: int | None, scene: Scene) -> int:
    """Where it is not known, what a sample comes to in the end."""
    return num_bytes if num_bytes is not None else scene.batch_bytes or 0


def unit_rates(scene: Scene, unit: Unit) -> tuple[float, float]:
    """Samples a second of this unit alone, in as many threads, and in as many processes, as the loader has. Of threads,
    as if nothing limited them but the GIL and the cores: to show what they would give."""
    alone = replace(scene, units=(unit,), collate=None)
    num_threads = 1 if scene.is_serial else scene.num_threads
    times = [unit.wall_seconds / num_threads, unit.cpu_seconds / scene.num_cores]
    if scene.has_gil:
        times.append(unit.held_seconds * (CONTENTION if unit.is_gil_bound and num_threads > 1 else 1.0))
    slowest = max(times)
    return (1 / slowest if slowest > 0 else float("inf")), rate(alone, ("process",))
