"""Line: a dataset and the user's stages in, the functions that a sample goes through out, and where each of them runs.

Guarantees: what a sample draws at random depends on its stages alone, not on where they run.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import getitem
from typing import Any, cast

from torchstage.copies import Private
from torchstage.split import Split, split
from torchstage.stage import Stage, is_coroutine_function, named

Function = Callable[..., Any]
ASYNC_CONCURRENCY = 64  # samples that wait at once, where the stage does not say


@dataclass(frozen=True, slots=True)
class Where:
    """Where stages run. Neighbours that run at the same place run together; ``number`` keeps apart what shall not."""

    executor: Executor | None = None
    is_async: bool = False
    concurrency: int | None = None
    number: int | None = None

    @property
    def draws_on(self) -> bool:
        """Whether a stage goes on drawing where its neighbour at the same place stopped: the loader's own threads and
        processes."""
        return (self.executor is None or self.is_process) and not self.is_async

    @property
    def is_process(self) -> bool:
        """Whether it is processes of the loader's."""
        return getattr(self.executor, "site_name", "") == "process"

    @property
    def is_home(self) -> bool:
        """Whether it is the loader's own threads."""
        return self == HOME


HOME = Where()
Elsewhere = Callable[[int | None, int | None], Executor]  # processes for that concurrency and number, as in Where


@dataclass(frozen=True, slots=True)
class Station:
    """One stage of the line: its name in messages, its function, where it runs, and what its draws are called. No name
    for these: they go on where the stage before it was."""

    label: str
    function: Function
    where: Where
    draws: str | None
    is_async: bool
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class InProcesses:
    """What runs in processes of the loader's. ``processes`` gives them; ``dataset``: whether the dataset's own stages
    do; ``stages``: the numbers of those of the user's that do, beside those that say so themselves."""

    processes: Elsewhere
    dataset: bool = False
    stages: frozenset[int] = frozenset()


class Line:
    """All that is done with a sample before it is collated. ``moved`` None: nothing runs in processes."""

    def __init__(self, dataset: Any, stages: Sequence[Stage], moved: InProcesses | None = None) -> None:
        self.dataset = dataset
        self.stages = tuple(stages)
        self._moved = moved
        self.split: Split = split(dataset)
        many = self.split.fetch_many
        self.takes_batches = many is not None
        self.fetch_many: Function = many or _no_batches
        self.many_is_async = many is not None and is_coroutine_function(many)
        self.many_where = Where(None, True, ASYNC_CONCURRENCY) if self.many_is_async else self._home_of_dataset
        self.is_collated = self.split.collated and not stages
        self.spreads = self.takes_batches and not self.split.collated  # a batch's samples come at once, then go alone
        asked = (Stage(partial(getitem, dataset), "fetch"),)  # where batching is off
        self.by_sample = self._stations(asked if self.spreads else self.split.stages)
        self.after_many = self._stations(self.split.stages, "sample") if self.spreads else ()

    def _stations(self, own: Sequence[Stage], begins: str | None = None) -> tuple[Station, ...]:
        """``begins``: what the draws of the first are called, if a batch came before it."""
        stages = (*own, *self.stages)
        found: list[Station] = []
        for number, (stage, label) in enumerate(zip(stages, named(stages), strict=True)):
            is_users = number >= len(own)
            where = self._where(stage, number, number - len(own) if is_users else None)
            draws = f"stage {number - len(own)}" if is_users else begins
            if not is_users and number:  # where the one before it stopped drawing, only a neighbour in its thread knows
                goes_on = found[-1].where == where and where.draws_on
                draws = None if goes_on else f"dataset stage {number}"
            found.append(Station(label, stage.fn, where, draws, stage.is_async, stage.timeout_seconds))
        return tuple(found)

    @property
    def _home_of_dataset(self) -> Where:
        moved = self._moved
        return HOME if moved is None or not moved.dataset else Where(moved.processes(None, None))

    def _where(self, stage: Stage, number: int, of_users: int | None) -> Where:
        """``number``: in the line; ``of_users``: among the user's, if it is one of these."""
        apart = None if stage.concurrency is None else number
        if isinstance(stage.executor, Executor):
            # With a time-out, apart from its neighbours: which of several stages a sample is in, nobody could see.
            alone = number if stage.timeout_seconds is not None else apart
            return Where(stage.executor, False, stage.concurrency, alone)
        if stage.is_async:
            return Where(None, True, stage.concurrency or ASYNC_CONCURRENCY, apart)
        moved = self._moved
        if moved is not None and stage.executor == "process":
            return Where(moved.processes(stage.concurrency, apart), False, stage.concurrency, apart)
        if stage.concurrency is not None:
            return Where(None, False, stage.concurrency, number)
        if moved is not None and (moved.dataset if of_users is None else of_users in moved.stages):
            return Where(moved.processes(None, None))
        return HOME

    @property
    def in_order(self) -> tuple[Station, ...]:
        """The stages that the samples of batches go through; not what gives a whole batch at once."""
        return self.after_many if self.spreads else self.by_sample

    def names(self, *, is_batched: bool) -> tuple[str, ...]:
        """The names of all that the samples of a batch go through."""
        first = ("fetch",) if self.spreads and is_batched else ()
        return (*first, *(station.label for station in (self.in_order if is_batched else self.by_sample)))

    @property
    def has_moved(self) -> bool:
        """Whether anything was moved to processes that did not say so itself."""
        return self._moved is not None and (self._moved.dataset or bool(self._moved.stages))

    @property
    def executors(self) -> set[Executor]:
        """All that some of its stages run in, beside the loader's own threads."""
        wheres = [station.where for station in (*self.by_sample, *self.after_many)]
        wheres += [self.many_where] if self.takes_batches else []
        return {where.executor for where in wheres if where.executor is not None}

    @property
    def whole_where(self) -> Where | None:
        """The processes that all stages run in, if they do: there, whole batches are made."""
        wheres = {station.where for station in (*self.by_sample, *self.after_many)}
        wheres |= {self.many_where} if self.takes_batches else set()
        where = wheres.pop()
        return where if not wheres and where.is_process and where.concurrency is None else None

    @property
    def roots(self) -> dict[str, Any]:
        """What its threads use, by the names that messages call it: for whoever looks at what they share."""
        moved = self._moved
        numbers = [n for n, stage in enumerate(self.stages) if _is_ours(stage)]
        if moved is not None:
            numbers = [n for n in numbers if self.stages[n].executor != "process" and n not in moved.stages]
        functions = {f"stages[{n}].fn": self.stages[n].fn for n in numbers}
        return functions if moved is not None and moved.dataset else {"dataset": self.dataset, **functions}

    def of(self, own: Private) -> "Line":
        """This line for a thread that has something for its own."""
        if own.line is None:
            fns = [own.roots.get(f"stages[{n}].fn", stage.fn) for n, stage in enumerate(self.stages)]
            stages = [replace(stage, fn=fn) for stage, fn in zip(self.stages, fns, strict=True)]
            own.line = Line(own.roots.get("dataset", self.dataset), stages, self._moved)
        return cast(Line, own.line)


def segments_of(stations: Sequence[Station]) -> list[list[int]]:
    """The numbers of neighbouring stations that run at the same place."""
    return [list(group) for _, group in groupby(range(len(stations)), lambda number: stations[number].where)]


def _is_ours(stage: Stage) -> bool:
    """Whether threads of the loader may run it; what runs in an executor of the user's, the user keeps safe."""
    return not isinstance(stage.executor, Executor)


def _no_batches(indices: Any) -> Any:
    raise AssertionError("the dataset gives single samples")
