"""Trace: a line and a dataset index in, one sample made inline and what each of its stages did out.

Guarantees: the same stages as in the loader, one after another in the calling thread; the process's random generators
stay as they are.
"""

import time
from collections.abc import Callable
from typing import Any

from torchstage import rng
from torchstage.coroutines import drawing, remember
from torchstage.errors import placed
from torchstage.line import Line, Station
from torchstage.seeds import Seeds
from torchstage.stage import SampleTrace, StageTrace, described

RunCoroutine = Callable[[Any], Any]


def trace(line: Line, index: Any, seeds: Seeds | None, run_coroutine: RunCoroutine) -> SampleTrace:
    """One sample with the time of each stage. ``seeds``: of its draws; None: from the process's generators.
    ``run_coroutine`` waits for one in the calling thread."""
    if line.spreads:
        first, rest = _of_one(line, run_coroutine), line.after_many
    else:
        first, rest = None, line.by_sample
    steps: list[tuple[str, Callable[[Any], Any], str | None]] = [] if first is None else [("fetch", first, None)]
    steps += [
        (station.label, _waited_for(station, run_coroutine, draws=seeds is not None), station.draws) for station in rest
    ]
    if seeds is None:
        return _traced(steps, index, lambda draws: None)
    with rng.drawing_from(rng.Scope()) as scope:
        remember(seeds)(index)
        return _traced(steps, index, lambda draws: scope.begin(seeds, draws, index))


def _traced(
    steps: list[tuple[str, Callable[[Any], Any], str | None]], index: Any, begin: Callable[[str], None]
) -> SampleTrace:
    value, traces = index, list[StageTrace]()
    begin("sample")
    for label, function, draws in steps:
        if draws is not None:
            begin(draws)
        start = time.perf_counter()
        try:
            value = function(value)
        except Exception as error:
            place = f"stage {label!r}, dataset index {index!r}"
            raise placed(error, place) from (error if isinstance(error, StopIteration) else error.__cause__)
        traces.append(StageTrace(label, time.perf_counter() - start, described(value)))
    return SampleTrace(value, tuple(traces))


def _of_one(line: Line, run_coroutine: RunCoroutine) -> Callable[[Any], Any]:
    """A batch of this index alone."""

    def fetch(index: Any) -> Any:
        values = line.fetch_many([index])
        values = run_coroutine(values) if line.many_is_async else values
        return values[0]

    return fetch


def _waited_for(station: Station, run_coroutine: RunCoroutine, *, draws: bool) -> Callable[[Any], Any]:
    if not station.is_async:
        return station.function
    # Its draws go with the coroutine: in a notebook, another thread runs it.
    function = drawing(station.function, station.draws or "sample") if draws else station.function
    return lambda value: run_coroutine(function(value))
