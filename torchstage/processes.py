"""Processes: a loader in, the processes that its stages or whole batches are made in out; kept from epoch to epoch.

Guarantees: nothing starts before it is asked for; processes belong to one iterator at a time; giving them back takes no
lock and waits for nothing, so a finalizer may do it.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.context import BaseContext
from queue import Empty, SimpleQueue
from typing import Any

from torchstage.engine.probe import Probes
from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch, Part
from torchstage.limits import numbers_of
from torchstage.line import Line, Station
from torchstage.plan import Recipe, Whole
from torchstage.programs import BatchJob, BatchProgram, Programs, StepsJob, StepsProgram, Surroundings
from torchstage.tolerance import Tolerance, one_by_one

_NOTHING: frozenset[str] = frozenset()
BATCHES = "whole batches"
HAS_PROCESSES = find_spec("fcntl") is not None  # what is needed to send memory from one process to another
SLOTS_PER_PROCESS = 3  # batches that are asked for, made or on their way
SLOTS_KEPT = 4  # batches that the user still has, or that wait their turn; with more than that, they are copied
MAX_IDLE = 4  # sets of processes that a loader keeps between epochs: more than one where stages have sets of their own


class LoaderProcesses(Executor):
    """So many processes, as an executor of stages; and for whole batches."""

    site_name = "process"

    def __init__(self, num_processes: int, context: BaseContext | None) -> None:
        self.num_processes = self._max_workers = num_processes  # as Python's own executors call it
        self.context = context
        self.processes = self._new()
        self.was_up = False  # whether any was seen to have started
        self._told: frozenset[str] = _NOTHING

    def _new(self) -> Any:
        if not HAS_PROCESSES:
            raise RuntimeError(
                "StageLoader: stages with executor='process' need Linux or macOS. Leave executor out, or give the "
                "Stage a concurrent.futures.ProcessPoolExecutor."
            )
        from torchstage.executors.processes import Processes  # as late as this: not every system can do it

        max_slots = SLOTS_PER_PROCESS * self.num_processes + SLOTS_KEPT
        return Processes(self.num_processes, context=self.context, max_slots=max_slots)

    @property
    def is_up(self) -> bool:
        """Whether one of them is ready. Asking takes a lock: it is not for finalizers."""
        is_up = self.processes.num_up > 0
        self.was_up = self.was_up or is_up
        return is_up

    @property
    def told(self) -> frozenset[str]:
        """What they can run: names of stages and BATCHES, for as long as that holds."""
        return _NOTHING if self.processes.is_over else self._told

    def have(self, program: Any, roots: dict[str, Any], names: frozenset[str]) -> None:
        """What they run from now on. Raises what says that it cannot be sent to them."""
        if self.processes.is_over:  # those of an earlier epoch died too often: what killed them may be mended
            self.processes.shutdown(wait=False, cancel_futures=True)
            self.processes = self._new()
        self.processes.send(program, roots)
        self.processes.start()
        self._told = names

    def forget(self) -> None:
        """What they were told does not hold any more."""
        self._told = _NOTHING

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """As ``elsewhere`` submits stages; the functions are there already."""
        steps, sample, value, sender, *told = args
        names = tuple((stage, draws) for stage, _, draws in steps)
        return self.processes.submit(StepsJob(names, sample, value, sender, *told))

    def submit_batch(self, probes: Probes, part: Part, slot: int, whole: Whole) -> Future[Any]:
        """Have a whole batch made. ``probes``: who may want to know where."""
        batch = part.batch
        return self.processes.submit(BatchJob(batch.number, whole, is_told=probes.now is not None, lost=batch.lost))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.processes.shutdown(wait, cancel_futures=cancel_futures)


class Fleet:
    """A loader's processes that nobody uses at this moment."""

    def __init__(self) -> None:
        self._idle: deque[LoaderProcesses] = deque()
        self._is_over = False

    def take(self, num_processes: int, context: BaseContext | None) -> LoaderProcesses:
        """So many, those of an earlier epoch if there are any."""
        for _ in range(len(self._idle)):
            try:
                known = self._idle.popleft()
            except IndexError:  # another thread took them
                break
            if known.num_processes == num_processes and known.context is context:
                return known
            self._idle.append(known)
        return LoaderProcesses(num_processes, context)

    def give_back(self, processes: LoaderProcesses) -> None:
        """Nobody uses them any more."""
        processes.forget()
        self._idle.append(processes)
        self._end(0 if self._is_over else MAX_IDLE, wait=False)

    def close(self) -> None:
        """End those that are not in use, and wait for them."""
        self._end(0, wait=True)

    def leave(self) -> None:
        """The loader is gone. Waits for nothing."""
        self._is_over = True
        self._end(0, wait=False)

    def _end(self, num_kept: int, *, wait: bool) -> None:
        while len(self._idle) > num_kept:
            try:
                self._idle.popleft().shutdown(wait, cancel_futures=True)
            except IndexError:
                return


class Hired:
    """The processes of one iterator; an annex of its pool."""

    def __init__(self, fleet: Fleet, num_workers: int, context: BaseContext | None) -> None:
        self._fleet = fleet
        self._num_workers = num_workers
        self._context = context
        self._found: dict[tuple[int | None, int | None], LoaderProcesses] = {}
        self._left: deque[LoaderProcesses] = deque()  # not needed any more
        self._sending: deque[None] = deque()  # one for each thread that is telling them what they run
        self.is_over = False

    def of(self, concurrency: int | None, number: int | None) -> LoaderProcesses:
        """The processes of stages that run together."""
        key = (concurrency, number)
        if key not in self._found:
            self._found[key] = self._fleet.take(concurrency or self._num_workers, self._context)
        return self._found[key]

    def send(self, recipe: Recipe, surroundings: Surroundings, init_fn: Any, *, keeps: bool = False) -> None:
        """Tell those that the recipe's line needs what they run from now on. ``keeps``: unless they know already."""
        self._sending.append(None)
        try:
            self._send(recipe, surroundings, init_fn, keeps=keeps)
        finally:
            self._sending.pop()
            self._give_back()

    def _send(self, recipe: Recipe, surroundings: Surroundings, init_fn: Any, *, keeps: bool) -> None:
        line = recipe.line
        whole, used = line.whole_where, line.executors
        for processes in list(self._found.values()):
            # Others wait for what an epoch before this one is still being pickled for, in another thread.
            if processes not in used or self.is_over:
                continue
            is_whole = whole is not None and whole.executor is processes
            processes.processes.begin_epoch()
            needed = {BATCHES} if is_whole else names_in(line, processes, is_batched=recipe.is_batched)
            if keeps and needed <= processes.told:
                continue
            if keeps:  # in the midst of an epoch: threads go on to ask for what was there before
                needed |= processes.told
            functions = functions_of(line, needed, recipe.tolerance, is_batched=recipe.is_batched)
            roots = {**roots_of(line), **functions}
            batches = None
            if BATCHES in needed:
                stages = tuple((stage.fn, stage.name, stage.timeout_seconds) for stage in line.stages)
                batches = BatchProgram(
                    line.dataset,
                    stages,
                    recipe.collate_fn,
                    init_fn,
                    recipe.is_batched,
                    surroundings,
                    "raise" if recipe.tolerance is None else recipe.tolerance.on_error,
                )
                roots |= {"collate_fn": recipe.collate_fn, "worker_init_fn": init_fn, "on_error": batches.on_error}
            numbers = numbers_of(line, is_batched=recipe.is_batched)
            steps = StepsProgram(functions, surroundings, numbers) if functions else None
            processes.have(Programs(batches, steps), roots, frozenset(needed))

    def place_of(self, future: Future[Any]) -> tuple[int, int | None] | None:
        """The process that has what was submitted, and where in it that is, if it has said; None: it waits."""
        found = (processes.processes.where(future) for processes in list(self._found.values()))
        return next((place for place in found if place is not None), None)

    def found(self) -> list[LoaderProcesses]:
        """All that were asked for."""
        return list(self._found.values())

    def were_up(self) -> bool:
        """Whether all processes have started before."""
        found = list(self._found.values())
        return bool(found) and all(processes.was_up or processes.is_up for processes in found)

    def wait(self, deadline: float) -> None:
        """Wait until ``is_up``, or until the deadline (on time.monotonic's clock)."""
        for processes in list(self._found.values()):
            up: SimpleQueue[None] = SimpleQueue()
            processes.processes.when_up(partial(up.put, None))
            with suppress(Empty):
                up.get(timeout=max(0.0, deadline - time.monotonic()))

    def is_up(self) -> bool:
        """Whether at least one process of each set is there, so that nothing waits for a start."""
        return all(processes.is_up for processes in list(self._found.values()))

    def failure(self) -> BaseException | None:
        """Why some of them will never be up with what they were told; None: nothing is known against it."""
        found = (processes.processes.failure for processes in list(self._found.values()))
        return next((failure for failure in found if failure is not None), None)

    # As an annex of a pool ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        self.is_over = True
        while self._found:
            try:
                _, processes = self._found.popitem()
            except KeyError:
                break
            self._left.append(processes)
        self._give_back()

    def _give_back(self) -> None:
        """Whoever took them next would be told something else by a thread that is just telling them what to run: that
        one gives them back. Whichever of the two comes last sees what the other did."""
        while self._left and not self._sending:
            try:
                processes = self._left.popleft()
            except IndexError:
                return
            self._fleet.give_back(processes)

    def leave(self) -> None:
        """What was submitted is cancelled by who submitted it."""

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        return None

    def join(self, deadline: float) -> list[Worker]:
        return []

    def forget(self) -> None:
        self.is_over = True
        self._found.clear()


def names_in(line: Line, executor: Executor, *, is_batched: bool) -> set[str]:
    """The names of the stages that run there."""
    stations: Sequence[Station] = line.in_order if is_batched else line.by_sample
    names = {station.label for station in stations if station.where.executor is executor}
    return names | ({"fetch"} if line.spreads and is_batched and line.many_where.executor is executor else set())


def functions_of(line: Line, names: set[str], tolerance: Tolerance | None, *, is_batched: bool) -> dict[str, Any]:
    """The functions of the stages with these names."""
    stations: Sequence[Station] = line.in_order if is_batched else line.by_sample
    functions = {station.label: station.function for station in stations if station.label in names}
    if line.spreads and is_batched and "fetch" in names:
        functions["fetch"] = one_by_one(line.fetch_many, tolerance, raises=not line.after_many, travels=True)
    return functions


def roots_of(line: Line) -> dict[str, Any]:
    """What a user knows, by the names that messages call it."""
    return {"dataset": line.dataset, **{f"stages[{n}].fn": stage.fn for n, stage in enumerate(line.stages)}}
