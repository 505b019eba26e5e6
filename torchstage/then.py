"""Then: stages in, one function out that a thread or process calls for each sample, one stage after another.

Guarantees: an error is the stage's own and says its name; the function can be pickled where the stages' can.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torchstage.coroutines import RunHere
from torchstage.engine.executors import say_stage
from torchstage.stage import Stage, named


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
