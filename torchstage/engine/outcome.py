"""Outcome: an error in, what stands in the place of its sample or its batch out.

Guarantees: the user's own exception object is kept, its traceback without the engine's frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STAGE = "_torchstage_stage"  # attribute of an error: the stage that it was raised in, where several run together
SAMPLE = "_torchstage_sample"  # likewise: which sample of its batch, where a whole batch is made elsewhere


class NoError(Exception):  # an error's place is taken by what is none
    """Something to be said in the place of a batch that is no error: it counts as none, and its batch as no batch."""


def said_stage(error: BaseException, first: str) -> str:
    """The stage that an error was raised in: as it says itself, else the first."""
    return str(vars(error).get(STAGE, first)) if hasattr(error, "__dict__") else first


class SkipSample(NoError):  # noqa: N818  # a word for the user's code, where nothing went wrong
    """Raised in a dataset or a stage: this sample is left out. Always allowed, whatever ``on_error`` is; counted apart,
    never as an error.

    Args:
        reason: why it is not wanted, for the report; the attribute of the same name.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class PartlyBad(NoError):  # noqa: N818  # it never leaves the engine
    """Some samples of a batch that came at once failed: they are Failures among the values."""

    def __init__(self, values: list[Any]) -> None:
        super().__init__(values)  # it may be pickled
        self.values = values


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in a sample's or a batch's place, kept as the user's own exception object.

    ``stage`` is where it was raised; ``slot`` is the sample's place in its batch, None when the whole batch failed.
    ``sample``: the sample's place where a slot stands for a whole batch, if it is known.
    """

    error: BaseException
    stage: str
    slot: int | None = None
    sample: int | None = None


def caught(error: BaseException, stage: str, slot: int | None = None) -> Failure:
    """The failure of an error just caught, its traceback without the engine's own frame.

    That frame holds the batch and belongs to a thread that lives on; and the user's line is what the user looks for.
    """
    trace = error.__traceback__
    return Failure(error.with_traceback(trace.tb_next if trace else None), stage, slot)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A slot that was never run, because a sample before it failed and decides the batch already."""


SKIPPED = Skipped()


@dataclass(frozen=True, slots=True)
class Sifted:
    """What became of a batch in which samples failed. ``values`` and ``indices``: what its ``finish`` is given, whole
    (one list each) where the batch was one ticket; ``slots``: of the samples in it. ``bad``: the slots of those
    that failed, each with a plain record of it. ``failure``: the batch's own, if that is what is to come."""

    values: list[Any]
    indices: Sequence[Any]
    slots: Sequence[int]
    bad: tuple[tuple[int, Any], ...]
    failure: Failure | None = None
