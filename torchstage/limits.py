"""Limits: a stage's function and the seconds that a sample may be in it in, the function as it is looked at out.

Guarantees: a stage without a time-out is its own function; which stages have which number in a process is the same on
both sides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from torchstage.line import Line, Station

Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """How functions are looked at. ``limited(function, stage, seconds)`` gives the function with that around it;
    ``covers_all``: also those of stages that may take for ever, since the consumer may give them up all the same."""

    limited: Callable[[Function, str, float], Function]
    covers_all: bool = False
    waits: dict[Any, int] | None = None  # futures, and the threads that wait for them inside a stage

    def around(self, function: Function, stage: str, seconds: float | None) -> Function:
        """The function of a stage that has so many seconds; None: it may take for ever."""
        if seconds is None and not self.covers_all:
            return function
        return self.limited(function, stage, inf if seconds is None else seconds)


def around(limits: Limits | None, function: Function, stage: str, seconds: float | None) -> Function:
    """Likewise; None: nothing is looked at."""
    return function if limits is None else limits.around(function, stage, seconds)


def together(stations: Sequence[Station]) -> float | None:
    """The seconds of stages of which nobody sees which one a sample is in: the sum, if each has a time-out."""
    seconds = [station.timeout_seconds for station in stations]
    return None if None in seconds else sum(second for second in seconds if second is not None)


def seconds_of(stations: Sequence[Station]) -> dict[str, float]:
    """By the names of those stages that have a time-out: how many seconds."""
    return {station.label: station.timeout_seconds for station in stations if station.timeout_seconds is not None}


def numbers_of(line: Line, *, is_batched: bool) -> dict[str, int]:
    """By the same names: the numbers by which a process tells where it is. 0 is none."""
    stations = line.in_order if is_batched else line.by_sample
    return {label: number for number, label in enumerate(seconds_of(stations), 1)}


@dataclass(frozen=True, slots=True)
class Marked:
    """In a process: a stage's function, which tells that it is entered and left."""

    function: Function
    enter: Callable[[int], None]
    number: int

    def __call__(self, value: Any) -> Any:
        self.enter(self.number)
        try:
            return self.function(value)
        finally:
            self.enter(0)


def marking(enter: Callable[[int], None], numbers: Mapping[str, int]) -> Limits:
    """For a process: the stages of these numbers tell where it is."""
    return Limits(lambda function, stage, seconds: Marked(function, enter, numbers[stage]))
