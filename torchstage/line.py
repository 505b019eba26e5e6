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
        """Whether a stage goes on drawing where its neighbour at the same place stopped: threads alone."""
        return self.executor is None and not self.is_async

    @property
    def is_home(self) -> bool:
        """Whether it is the loader's own threads."""
        return self == HOME


HOME = Where()


@dataclass(frozen=True, slots=True)
class Station:
    """One stage of the line: its name in messages, its function, where it runs, and what its draws are called. No name
    for these: they go on where the stage before it was."""

    label: str
    function: Function
    where: Where
    draws: str | None
    is_async: bool


class Line:
    """All that is done with a sample before it is collated."""

    def __init__(self, dataset: Any, stages: Sequence[Stage]) -> None:
        self.dataset = dataset
        self.stages = tuple(stages)
        self.split: Split = split(dataset)
        many = self.split.fetch_many
        self.takes_batches = many is not None
        self.fetch_many: Function = many or _no_batches
        self.many_is_async = many is not None and is_coroutine_function(many)
        self.many_where = Where(None, True, ASYNC_CONCURRENCY) if self.many_is_async else HOME
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
            where = _where(stage, number)
            is_users = number >= len(own)
            draws = f"stage {number - len(own)}" if is_users else begins
            if not is_users and number:  # where the one before it stopped drawing, only a neighbour in its thread knows
                goes_on = found[-1].where == where and where.draws_on
                draws = None if goes_on else f"dataset stage {number}"
            found.append(Station(label, stage.fn, where, draws, stage.is_async))
        return tuple(found)

    @property
    def roots(self) -> dict[str, Any]:
        """What its threads use, by the names that messages call it: for whoever looks at what they share."""
        functions = {f"stages[{n}].fn": stage.fn for n, stage in enumerate(self.stages) if _is_ours(stage)}
        return {"dataset": self.dataset, **functions}

    def of(self, own: Private) -> "Line":
        """This line for a thread that has something for its own."""
        if own.line is None:
            fns = [own.roots.get(f"stages[{n}].fn", stage.fn) for n, stage in enumerate(self.stages)]
            stages = [replace(stage, fn=fn) for stage, fn in zip(self.stages, fns, strict=True)]
            own.line = Line(own.roots["dataset"], stages)
        return cast(Line, own.line)


def segments_of(stations: Sequence[Station]) -> list[list[int]]:
    """The numbers of neighbouring stations that run at the same place."""
    return [list(group) for _, group in groupby(range(len(stations)), lambda number: stations[number].where)]


def _where(stage: Stage, number: int) -> Where:
    if isinstance(stage.executor, Executor):
        return Where(stage.executor, False, stage.concurrency, None if stage.concurrency is None else number)
    if stage.is_async:
        return Where(None, True, stage.concurrency or ASYNC_CONCURRENCY, None if stage.concurrency is None else number)
    return HOME if stage.concurrency is None else Where(None, False, stage.concurrency, number)


def _is_ours(stage: Stage) -> bool:
    """Whether it runs in threads of the loader; what runs in an executor of the user's, the user keeps safe."""
    return not isinstance(stage.executor, Executor)


def _no_batches(indices: Any) -> Any:
    raise AssertionError("the dataset gives single samples")
