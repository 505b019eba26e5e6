"""Programs: a dataset and its functions in, what a process does with each job that it is given out.

They are pickled, and live in the process. Guarantees: what is made there is, draw for draw, what a thread makes.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.utils.data._utils.worker as torch_worker

from torchstage import elsewhere, rng, worker_info
from torchstage.assembly import plain
from torchstage.copies import Private
from torchstage.coroutines import Draws, RunHere
from torchstage.engine.executors import Made, MadeBatch, say_stage
from torchstage.engine.outcome import SAMPLE
from torchstage.engine.priority import niceness, stand_back
from torchstage.engine.stats import Tally
from torchstage.engine.ticket import Batch, Nobody
from torchstage.engine.told import Place, this_thread
from torchstage.engine.watch import Laps
from torchstage.isolation import Guard, hold_new_generators
from torchstage.limits import Marked, marking, numbers_of
from torchstage.line import Line
from torchstage.making import made_here
from torchstage.modes import Modes
from torchstage.plan import Plan, Recipe, Whole
from torchstage.stage import Stage
from torchstage.threads import run_init_fn
from torchstage.tolerance import Tolerance

_numpy_seed: Callable[[int, int], list[int]] = vars(torch_worker)["_generate_state"]  # torch leaves it untyped


class Desk(Protocol):
    """Where a process lays what it made. ``describe`` says, for errors, whose code that was."""

    describe: Callable[[], str] | None
    marks: Callable[[], Callable[[int], None]]  # gives what tells the parent which stage the process is in

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory that the parent sees as well."""
        ...


_has_stood_back: list[None] = []  # whether this process has: once is enough for all its programs
At = Callable[[int], None]  # which sample of its batch a process is at


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a process is to its functions: one of torch's workers, with the consumer's modes."""

    base_seed: int
    has_scope: bool
    modes: Modes
    niceness: int = field(default_factory=niceness)

    def enter(self, number: int, num_processes: int, dataset: Any, init_fn: Callable[[int], Any] | None) -> None:
        """Make this process worker ``number``. Raises what ``init_fn`` raises."""
        seed = self.base_seed + number
        if not _has_stood_back:
            stand_back(self.niceness)
            _has_stood_back.append(None)
        torch.set_num_threads(1)
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        random.seed(seed)
        np.random.seed(_numpy_seed(self.base_seed, number))
        worker_info.install_answers()
        if self.has_scope:
            rng.install()
            rng.enter_thread(rng.Scope.of_worker(self.base_seed, number, _numpy_seed(self.base_seed, number)))
        worker_info.answer_here(number, num_processes, seed, lambda: dataset, method="multiprocessing")
        if init_fn is not None:
            run_init_fn(init_fn, number)
        self.modes.enter()


@dataclass(frozen=True, slots=True)
class BatchProgram:
    """Makes whole batches, from their indices to ``collate``."""

    dataset: Any
    stages: tuple[tuple[Any, str | None, float | None], ...]  # of the user's stages: function, name, timeout_seconds
    collate_fn: Callable[..., Any]
    init_fn: Callable[[int], Any] | None
    is_batched: bool
    surroundings: Surroundings
    on_error: Any = "raise"

    def start(self, desk: Desk, number: int, num_processes: int, at: At) -> "Callable[[BatchJob], MadeBatch]":
        """In the process."""
        desk.describe = lambda: f"the dataset, a {type(self.dataset).__name__}, or a stage after it"
        self.surroundings.enter(number, num_processes, self.dataset, self.init_fn)
        line = Line(self.dataset, [Stage(fn, name, timeout_seconds=seconds) for fn, name, seconds in self.stages])
        numbers = numbers_of(line, is_batched=self.is_batched)
        recipe = Recipe(
            line=line,
            collate_fn=self.collate_fn,
            is_batched=self.is_batched,
            pin=None,
            move=None,
            enter=_nothing,
            private=_nobodys,
            run_coroutine=RunHere(),
            ring=cast(Any, desk),
            tolerance=Tolerance(self.on_error, self.dataset, self.is_batched),
            limits=marking(desk.marks(), numbers) if numbers else None,
        )
        if self.surroundings.has_scope:
            own = _own_generators(recipe.roots)
            if own is not None:
                recipe = replace(recipe, private=lambda: own)
        return partial(_made, _Maker(recipe, Tally("process")), at)


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One batch: its number, and what it is made of."""

    number: int
    whole: Whole
    is_told: bool = False  # whether somebody wants to know where and when it is made
    lost: tuple[tuple[int, BaseException], ...] = ()  # as Batch has it


class _Maker:
    """The plan of the epoch that a process is in."""

    def __init__(self, recipe: Recipe, tally: Tally) -> None:
        self._recipe = recipe
        self._plan: tuple[Any, Plan] | None = None  # and what it is for
        self.tally = tally

    def plan(self, whole: Whole) -> Plan:
        asked, recipe = (whole.seeds, whole.is_collated), self._recipe
        if self._plan is None or self._plan[0] != asked:
            tolerance = None if recipe.tolerance is None else replace(recipe.tolerance, regroups=not whole.is_collated)
            self._plan = asked, Plan(replace(recipe, seeds=whole.seeds, tolerance=tolerance), plain, looks=True)
        return self._plan[1]


def _made(maker: _Maker, at: At, job: BatchJob) -> MadeBatch:
    whole = job.whole
    by_sample, as_whole = maker.plan(whole).chains
    chain = as_whole if whole.takes_whole else by_sample
    batch = Batch(job.number, whole.indices, chain, Nobody(), whole.items)
    batch.lost = job.lost
    begin = perf_counter()
    try:
        value = made_here(batch, maker.tally, at)
    except BaseException as error:
        failure, batch.failure = batch.failure, None
        if failure is not None:
            say_stage(error, failure.stage)
            say_sample(error, failure.slot)
        maker.tally.take()  # whoever hears of the error counts it
        raise
    sums = maker.tally.take()
    if not job.is_told:
        return MadeBatch(value, sums, batch.bad, batch.slots)
    laps: Laps = [(stage[2], None) for (of_batches, _), _, _, stages in sums if not of_batches for stage in stages]
    return MadeBatch(value, sums, batch.bad, batch.slots, laps, Place(this_thread(), begin))


def say_sample(error: BaseException, slot: int | None) -> None:
    """Have the error tell which sample of its batch it comes from."""
    try:
        BaseException.__setattr__(error, SAMPLE, slot)  # whatever its class has to say to that
    except Exception:
        return


@dataclass(frozen=True, slots=True)
class StepsProgram:
    """Runs single stages on single samples. ``functions``: of all stages that run in these processes, by name.
    ``numbers``: of those that have a time-out."""

    functions: dict[str, Any]
    surroundings: Surroundings
    numbers: dict[str, int] = field(default_factory=dict[str, int])

    def start(self, desk: Desk, number: int, num_processes: int, at: At) -> "Callable[[StepsJob], Made]":
        """In the process. ``worker_init_fn`` is for processes that have the dataset to themselves: it is not run."""
        desk.describe = lambda: f"one of the stages {', '.join(self.functions)}"
        self.surroundings.enter(number, num_processes, None, None)
        functions, held = self.functions, ()
        if self.surroundings.has_scope:
            own = _own_generators(dict(functions))
            if own is not None:
                functions, held = own.roots, own.held
        if self.numbers:
            enter, numbers = desk.marks(), self.numbers
            functions = {
                name: Marked(function, enter, numbers[name]) if name in numbers else function
                for name, function in functions.items()
            }
        return partial(_run, functions, held)


@dataclass(frozen=True, slots=True)
class StepsJob:
    """One sample for neighbouring stages: their names and what their draws are called, and as ``elsewhere.run``."""

    steps: Sequence[tuple[str, str | None]]
    sample: Draws | None
    value: Any
    sender: tuple[str, int]
    probe: int | None = None


def _run(functions: dict[str, Any], held: Sequence[Any], job: StepsJob) -> Made:
    steps = tuple((name, functions[name], draws) for name, draws in job.steps)
    return elsewhere.run(steps, job.sample, job.value, job.sender, job.probe, held, sends_all_errors=True)


@dataclass(frozen=True, slots=True)
class Programs:
    """Whole batches, single stages, or both: where the dataset follows a stage that is in these processes already."""

    batches: BatchProgram | None
    steps: StepsProgram | None

    def start(self, desk: Desk, number: int, num_processes: int, at: At) -> Callable[[Any], Any]:
        """In the process. Batches come last: what they are made with sees the process as its own."""
        run = None if self.steps is None else self.steps.start(desk, number, num_processes, at)
        make = None if self.batches is None else self.batches.start(desk, number, num_processes, at)
        return partial(_made_or_run, make, run)


def _made_or_run(make: Any, run: Any, job: Any) -> Any:
    return make(job) if type(job) is BatchJob else run(job)


def _own_generators(roots: dict[str, Any]) -> Private | None:
    """Copies of what keeps random generators, which are then seeded for each sample, as they are in a thread."""
    own = Guard("auto").privates(1, roots, is_guarded=False)
    if not own:
        return None
    hold_new_generators(own[0])  # those that worker_init_fn made
    return own[0]


def _nothing() -> None:
    """The process was set up when it started."""


def _nobodys() -> None:
    return None
