"""Placing: a loader's line and what was measured of it in, where each stage runs out, from one epoch to the next.

Guarantees: a choice is made once; what is asked for explicitly is never measured; nothing here starts a process.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from torchstage.accounts import has_gil
from torchstage.budget import size_of
from torchstage.engine.heartbeat import Reading
from torchstage.engine.ledger import Ledger
from torchstage.engine.parking import usable_cores
from torchstage.engine.pipeline import Pool, Run
from torchstage.errors import warn_user
from torchstage.line import Line
from torchstage.placement.choice import Choice, choice_of
from torchstage.placement.measuring import MOST_SECONDS, NOISY, Measured, Measuring
from torchstage.placement.model import GIL_BOUND, GOOD_FOR_THREADS, MIN_BEATS, Scene, Seen, Unit
from torchstage.placement.noise import noise_of
from torchstage.placement.parts import Asked, parts_of
from torchstage.stage import Stage

# Where the GIL is hardly ever let go of, a beat takes tens of milliseconds, and few come to their end: so these do.
FEW_BEATS, LONG_SECONDS = 3, 0.05
CLEAR = 0.1  # how far from the borders of the classes a quick look must lie


class Placement:
    """One loader's, kept over epochs and over what frameworks rebuild of it. Used in the consumer's thread."""

    def __init__(self) -> None:
        self.choice: Choice | None = None
        self.scene: Scene | None = None
        self.measured: Measured | None = None
        self.sizes: dict[str, int] = {}  # bytes of a sample after each stage
        self.batch_bytes: int | None = None  # a sample's share of a collated batch
        self.why_not: str | None = None
        self.num_measurements = 0
        self.num_holds = 0
        self.num_beats = 0
        self._current: Measuring | None = None
        self.kept_seconds = 0.0  # that the consumer was kept so far
        self._num_made = 0  # samples handed out since the choice was made
        self._is_told = False
        self._is_noise_said = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Placement, ()  # a copy, in another process perhaps, finds out for itself

    def needs_measuring(self, line: Line, asked: Asked) -> bool:
        """Whether what is measured could change anything."""
        if self.choice is not None or asked.method != "auto" or asked.num_threads < 1 or not has_gil():
            return False
        if self._current is not None and not self._current.is_dead:
            return False  # another iterator of this loader is at it
        parts, _ = parts_of(line, is_batched=asked.is_batched)
        return self.kept_seconds < MOST_SECONDS and any(part.asked is None for part in parts)

    def begin(self, line: Line, asked: Asked, pool: Pool, run: Run, *, is_serial: bool = False) -> None:
        """Measure from here on: one thread of the pool alone works. Before the others are called."""
        self._leave()
        self._parts, self._asked, self._is_serial = parts_of(line, is_batched=asked.is_batched), asked, is_serial
        left = MOST_SECONDS - self.kept_seconds
        self._current = Measuring(pool, run, left)
        self.num_measurements += 1
        self._current.begin(pool, run)

    @property
    def is_measuring(self) -> bool:
        return self._current is not None

    def attend(self, run: Run) -> bool:
        """At a batch border. True if the other threads are to be called."""
        current = self._current
        if current is None or not current.is_of(run):
            return False
        if self.batch_bytes is None:
            self._weigh(run)
        pool = current.pool
        if pool is None or not current.attend(pool, run, self._is_clear, self._is_known):
            return False
        self._conclude(current)
        return True

    def end_epoch(self, run: Run) -> None:
        """Every batch was handed out: what was seen must do, if it is anything."""
        current = self._current
        if current is not None and current.is_of(run):
            current.end()
            if len(current.beats.beats) >= MIN_BEATS:
                self._conclude(current)
            else:
                self._leave()

    def leave(self, pool: Pool) -> None:
        """The threads of this pool end before it is over. What was seen of it is left."""
        if self._current is not None and self._current.pool is pool:
            self._leave()

    def _leave(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.end()
            self.kept_seconds += current.beats.waited_seconds
            self.num_holds += current.beats.num_holds
            self.num_beats += len(current.beats.beats)

    def _conclude(self, current: Measuring) -> None:
        measured = current.measured()
        self._leave()
        self.measured = measured
        self.scene = self._scene_of(measured)
        self.choice = choice_of(self.scene)
        if current.pool is not None:
            self.limit(current.pool)
        self.say_noise(measured)

    def say_noise(self, measured: Measured) -> None:
        """Warn once of libraries that have threads of their own, if one loader thread used more than a core."""
        cores = measured.num_cores_used
        if cores is not None and cores > NOISY and not self._is_noise_said and (said := noise_of(cores)) is not None:
            self._is_noise_said = True
            warn_user(said)

    def handed_out(self, num_samples: int, num_left: int | None) -> None:
        """So many samples were handed out, and so many of the epoch are left, if that is known. From the moment on
        when processes pay, ``moves`` says so."""
        choice = self.choice
        if choice is None or self._is_told:
            return
        self._num_made += num_samples
        if choice.pays(num_left, self._num_made):
            self._is_told = True

    @property
    def moves(self) -> Choice | None:
        """The choice, once it is time to have processes and while they can be had."""
        choice = self.choice
        return choice if self._is_told and choice is not None and choice.wants_processes else None

    def refused(self, reason: str) -> None:
        """Processes would win, but cannot be used: everything stays in threads. Warns once, with what to change."""
        if self.why_not is not None:
            return
        reason = reason.rstrip(".")
        wanted = (
            [label for unit in self.choice.units if unit.method == "process" for label in unit.labels]
            if (self.choice is not None)
            else []
        )
        reason = reason.removesuffix(".")  # it goes on
        self.why_not = reason
        if self.scene is not None:
            self.scene = replace(self.scene, why_not=reason)
            self.choice = choice_of(self.scene)
        if wanted:
            warn_user(
                f"StageLoader: {', '.join(wanted)} would be faster in processes, but stays in threads: {reason}. "
                "Change that, or pass worker_method='thread' to hear no more of it. print(loader.explain()) shows what "
                "was measured."
            )

    def limit(self, pool: Pool) -> None:
        """Let as many threads of the loader's own work as there may, while everything runs in them."""
        if self.choice is not None:
            pool.parking.allow(self.max_threads or pool.num_threads)

    @property
    def words(self) -> dict[str, str]:
        """What was decided of each stage that holds the GIL, for the advice of statistics."""
        choice, scene = self.choice, self.scene
        if choice is None or scene is None:
            return {}
        found: dict[str, str] = {}
        for unit, known in zip(choice.units, scene.units, strict=True):
            if unit.method == "process":
                when = "it moves to processes once they pay their start" if self.is_pending else "it runs in processes"
            else:
                when = f"it stays in one thread: {self.why_not or unit.reason}"
            if known.is_gil_bound and known.asked is None:
                found.update(dict.fromkeys(unit.labels, f"{when} (see loader.explain())."))
        return found

    @property
    def is_pending(self) -> bool:
        """Whether it has to be counted what was handed out, because processes may come to pay."""
        return self.choice is not None and not self._is_told and self.choice.wants_processes

    @property
    def max_threads(self) -> int | None:
        """How many of the loader's own threads may work while everything runs in them: one, where what runs there holds
        the GIL most of the time. None: all."""
        scene = self.scene
        if scene is None or not scene.has_gil or not scene.units:
            return None
        wall = sum(unit.wall_seconds for unit in scene.units)
        held = sum(unit.held_seconds for unit in scene.units if unit.is_known)
        return 1 if wall > 0 and 1 - held / wall < GIL_BOUND else None

    def arranged(self, stages: Sequence[Stage]) -> tuple[Stage, ...]:
        """The stages, of which those that hold the GIL, among others that do not, have one thread for their own."""
        choice = self.choice
        if choice is None or self.scene is None or self.max_threads == 1:
            return tuple(stages)
        limited = {
            unit.number
            for unit, known in zip(choice.units, self.scene.units, strict=True)
            if known.asked is None
            and (unit.max_threads == 1 or (unit.method == "process" and known.is_gil_bound and not self._is_told))
        }
        return tuple(
            replace(stage, concurrency=1) if number in limited else stage for number, stage in enumerate(stages)
        )

    def _weigh(self, run: Run) -> None:
        batch = next((batch for batch in run.in_flight if batch.done and batch.failure is None), None)
        if batch is not None and batch.num_made:
            self.batch_bytes = size_of(batch.value) // batch.num_made

    def _is_known(self, measured: Measured) -> bool:
        """Whether something was seen of each unit that matters."""
        units = [unit for unit in self._scene_of(measured).units if unit.asked is None]
        most = max((unit.wall_seconds for unit in units), default=0.0)
        return all(unit.is_known or unit.wall_seconds <= CLEAR * most for unit in units)

    def _is_clear(self, measured: Measured) -> bool:
        """Whether each unit that matters lies well inside a class."""
        units = [unit for unit in self._scene_of(measured).units if unit.asked is None]
        most = max((unit.wall_seconds for unit in units), default=0.0)
        for unit in units:
            share, num_beats = unit.share_without_gil, sum(stage.num_beats for stage in unit.stages)
            is_far = share < GIL_BOUND - CLEAR or share > GOOD_FOR_THREADS + CLEAR
            if unit.wall_seconds > CLEAR * most and not (unit.is_known and is_far and num_beats >= 2 * MIN_BEATS):
                return False
        return most > 0

    def _scene_of(self, measured: Measured) -> Scene:
        asked = self._asked
        parts, elsewhere = self._parts
        seen = {label: seen_of(label, reading) for label, reading in measured.readings.items()}
        last = [part.labels[-1] for part in parts]
        sizes_before: list[int | None] = [None, *(self.sizes.get(one) for one, _ in pairwise([*last, ""]))]
        units = tuple(
            Unit(
                tuple(seen.get(label, Seen(label, 0.0, 0.0, None)) for label in part.labels),
                part.asked,
                before,
                self.sizes.get(part.labels[-1]),
                part.number,
            )
            for part, before in zip(parts, sizes_before, strict=False)
        )
        return Scene(
            units,
            asked.num_threads,
            usable_cores(),
            asked.batch_size,
            seen.get("collate"),
            self.batch_bytes,
            has_gil(),
            is_serial=self._is_serial,
            has_others=bool(elsewhere),
            why_not=self.why_not,
        )


def seen_of(label: str, reading: Reading) -> Seen:
    """A stage's seconds a sample; of one that made none in that time, those of the sample that it was on."""
    number = max(1, reading.num_samples)
    held = None
    is_long = reading.num_beats >= FEW_BEATS and reading.beat_seconds >= LONG_SECONDS
    if reading.held_share is not None and (reading.num_beats >= MIN_BEATS or is_long):
        held = min(reading.cpu_seconds, reading.held_share * reading.wall_seconds) / number
    return Seen(label, reading.wall_seconds / number, reading.cpu_seconds / number, held, reading.num_beats)


def placement_of(ledger: Ledger) -> Placement:
    """That of the loaders which have these counters."""
    known: Placement | None = ledger.placement
    if known is None:
        known = ledger.placement = Placement()
    return known
