"""Then: stages in, one function out that a thread or process calls for each sample, one stage after another.

Guarantees: an error is the stage's own and says its name; the function can be pickled where the stages' can.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from torchstage.coroutines import RunHere
from torchstage.engine.executors import say_stage, stage_of
from torchstage.engine.outcome import caught
from torchstage.engine.probe import ProbedWatch
from torchstage.engine.watch import watch_here
from torchstage.errors import placed
from torchstage.stage import Stage, named

ONE_IN = 8  # samples of a batch: looking at the clock costs as much as a cheap stage


def checked(stages: Any) -> tuple[Stage, ...]:
    """The stages as a tuple. Raises TypeError for anything that is no Stage."""
    if isinstance(stages, Stage) or not isinstance(stages, Iterable):
        raise TypeError(f"StageLoader: stages must be a list of torchstage.Stage, got {stages!r}. Write [Stage(fn)].")
    found: list[Any] = list(cast(Iterable[Any], stages))
    for number, stage in enumerate(found):
        if not isinstance(stage, Stage):
            raise TypeError(
                f"StageLoader: stages[{number}] must be a torchstage.Stage, got {stage!r}. Write Stage(fn)."
            )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Then:
    """All stages, in the thread that calls it; coroutines are waited for with ``run_coroutine``."""

    stages: Sequence[Stage]
    run_coroutine: Callable[[Any], Any] = field(default_factory=RunHere)

    def __call__(self, value: Any) -> Any:
        stage = ""
        try:
            for stage, one in zip(named(self.stages), self.stages, strict=True):  # noqa: B007  # named after an error
                value = self.run_coroutine(one.fn(value)) if one.is_async else one.fn(value)
        except BaseException as error:
            say_stage(error, stage)
            raise
        return value

    def timed(self, value: Any, parts: list[float]) -> Any:
        """The same; what each stage took is added to its part."""
        stage, begin = "", perf_counter()
        try:
            for number, (stage, one) in enumerate(zip(named(self.stages), self.stages, strict=True)):  # noqa: B007
                value = self.run_coroutine(one.fn(value)) if one.is_async else one.fn(value)
                end = perf_counter()
                parts[number] += end - begin
                begin = end
        except BaseException as error:
            say_stage(error, stage)
            raise
        return value

    def told(self, value: Any, parts: list[float], watch: ProbedWatch, sample: int) -> Any:
        """The same; the watch tells of each stage of the sample of this number."""
        stage = ""
        try:
            for number, (stage, one) in enumerate(zip(named(self.stages), self.stages, strict=True)):
                begin = perf_counter()
                value = watch.through(stage, self._made_by(one), value, sample)
                parts[number] += perf_counter() - begin
        except BaseException as error:
            say_stage(error, stage)
            raise
        return value

    def _made_by(self, one: Stage) -> Callable[[Any], Any]:
        return (lambda value: self.run_coroutine(one.fn(value))) if one.is_async else one.fn


@dataclass(frozen=True, slots=True)
class AfterReading:
    """All stages on samples that were read together. Timed, where the calling thread times what it does: one sample in
    so many stage by stage, for all of them. ``is_timed`` False: the thread's watch is somebody else's."""

    then: Then
    is_timed: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        return named(self.then.stages)

    def __call__(
        self, samples: list[Any], takes: Callable[[BaseException], bool], *, is_first: bool = True
    ) -> tuple[list[Any], bool]:
        """What became of each sample, a Failure where an error was raised that ``takes`` takes; and whether there is
        such a one. ``is_first``: whether they are the first of their batch. Raises every other error."""
        watch = watch_here() if self.is_timed and is_first else None
        if watch is None or not samples:
            return self._each(samples, takes, None, None)
        watch.lap()  # it was read
        begin, parts = perf_counter(), [1e-9] * len(self.then.stages)
        made = self._each(samples, takes, parts, watch if isinstance(watch, ProbedWatch) else None)
        scale = (perf_counter() - begin) / sum(parts)
        watch.give([(part * scale, None) for part in parts])
        return made

    def _each(
        self,
        samples: list[Any],
        takes: Callable[[BaseException], bool],
        parts: list[float] | None,
        watch: ProbedWatch | None,
    ) -> tuple[list[Any], bool]:
        made, has_bad, then = list[Any](), False, self.then
        while len(made) < len(samples):
            try:
                for number in range(len(made), len(samples)):
                    sample = samples[number]
                    if parts is None or (watch is None and number % ONE_IN):
                        made.append(then(sample))
                    elif watch is None:
                        made.append(then.timed(sample, parts))
                    else:
                        made.append(then.told(sample, parts, watch, number))
            except Exception as error:
                if takes(error):
                    has_bad = True
                    made.append(caught(error, stage_of(error, self.names[0])))
                elif isinstance(error, StopIteration):
                    raise of_stage(error, stage_of(error, self.names[0])) from error
                else:
                    raise
        return made, has_bad


def of_stage(error: BaseException, stage: str) -> BaseException:
    """What to raise for an error of a stage: one that says its name, and that ends no epoch."""
    if isinstance(error, StopIteration):
        error = placed(error, f"stage {stage!r}")
    say_stage(error, stage)
    return error


@dataclass(frozen=True, slots=True)
class ThenCollate:
    """``collate_fn`` after the stages, for torch's own iterators: samples in, a batch out."""

    then: Then
    collate_fn: Callable[[Any], Any]
    is_batched: bool

    def __call__(self, samples: Any) -> Any:
        if not self.is_batched:
            return self.collate_fn(self.then(samples))
        return self.collate_fn([self.then(sample) for sample in samples])
