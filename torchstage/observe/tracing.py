"""Tracing: a loader in; what each of its threads did while it made some batches, in a file for a trace viewer, out.

Guarantees: which samples come, and in which order, stays as it is; what is kept is bounded; a fault of the recorder
ends the recording alone, and is told when the trace is saved.
"""

import operator
import warnings
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from time import perf_counter, perf_counter_ns, time_ns
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

from torchstage.listening import Listener, Listening, Ran, Thread, this_thread
from torchstage.observe.chrome import Recording, Span, chrome_trace, merged, read, write

MAX_EVENTS = 200_000  # 60 MB while they are kept, and about as much in the file
COUNT_PERIOD_SECONDS = 2e-3  # between two looks at what is in flight: one takes some 20 us
MAX_INDICES = 1024  # of a batch that the dataset makes as a whole
MAX_LETTERS = 200  # of an index that is a text


class _Step(NamedTuple):
    """What a consumer does with a batch, since when."""

    steps: Any
    begin: float
    batch: int
    thread: Thread


class Trace(Listener):
    """Records what the threads of a StageLoader do, from here until ``num_batches`` were handed out::

        trace = Trace(loader, num_batches=20)
        for batch in loader:
            ...
        trace.save("trace.json")

    The file opens in https://ui.perfetto.dev and in chrome://tracing. ``docs/trace.md`` says how to read it.

    Args:
        loader: a StageLoader.
        num_batches: after so many, and what the loop does with the last of them, nothing more is recorded.
        max_events: slices and counts that are kept. What comes after them is only counted.

    Raises TypeError for what is no StageLoader; ValueError for numbers below 1.
    """

    def __init__(self, loader: Any, num_batches: int = 20, *, max_events: int = MAX_EVENTS) -> None:
        for name, number in (("num_batches", num_batches), ("max_events", max_events)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # users
                raise ValueError(f"observe.Trace: {name} must be a positive number, got {number!r}.")
        self.num_batches = num_batches
        self.num_handed_out = 0  # batches, and errors in their place
        self.num_lost = 0  # events beyond max_events
        self.is_on = True
        self._max_events = max_events
        self._ran: list[Ran] = []
        self._spans: list[Span] = []  # of the loop
        self._counts: list[tuple[float, int, int, Counter[str]]] = []
        self._steps: dict[int, _Step] = {}
        self._clock_ns = _clock_ns()
        self._consumer = this_thread()
        self._begin = self._counted_at = perf_counter()
        self._end: float | None = None
        self._listening = Listening(loader, self, "observe.Trace")
        self._listening.begin()

    def stop(self) -> None:
        """Record nothing more. The loader goes on. A second time does nothing."""
        self._stop(perf_counter())

    def save(self, path: str | PathLike[str], *, merge_with: str | PathLike[str] | None = None) -> Path:
        """Stop, if it has not stopped, and write the trace; compressed if the path ends with ``.gz``. May be called
        again, for another file. Gives the path back.

        Args:
            path: of the file.
            merge_with: a trace that torch.profiler exported in the same run. What is written has its events and the
                loader's, on one clock. Raises ValueError if the file is no such trace.
        """
        self.stop()
        if self.fault is not None:
            warnings.warn(
                f"observe.Trace: the recording ended early, because of {self.fault!r}; loading went on.",
                RuntimeWarning,
                stacklevel=2,
            )
        spans = [*self._spans, *map(_span_of, self._ran)]
        recording = Recording(
            spans, self._counts, self._consumer, self._begin, self._end or self._begin, self._clock_ns
        )
        words = {"batches": self.num_handed_out, "events_lost": self.num_lost}
        known = None if merge_with is None else read(merge_with)
        made = chrome_trace(recording, words, is_merged=known is not None)
        return write(Path(path), made if known is None else merged(known, made))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # What is told ---------------------------------------------------------------------------------------------

    def ran(self, one: Ran) -> None:
        if self.is_on and one.begin >= self._begin:  # else it was not seen as a whole
            if self._has_room():
                self._ran.append(one if type(one.index) is int else one._replace(index=_plain(one.index)))
            if one.end - self._counted_at >= COUNT_PERIOD_SECONDS:
                self._count(one.end)

    def called(self, steps: Any, now: float) -> None:
        if not self.is_on:
            return
        self._step_ends(steps, now)
        for step in list(self._steps.values()):
            if step.steps.is_over:  # that loop was left
                self._step_ends(step.steps, now)
        if self.num_handed_out >= self.num_batches:
            self._stop(now)
        else:
            self._count(now)

    def handed_out(self, steps: Any, since: float, now: float, is_error: bool) -> None:
        if not self.is_on:
            return
        batch = self.num_handed_out if steps.number is None else int(steps.number)
        self.num_handed_out += 1
        thread = self._consumer = this_thread()
        args: dict[str, Any] = {"batch": batch}
        if steps.returned_at is None:
            args["is_first"] = True  # set-up and the first samples are in it
        if is_error:
            args["error"] = True
        self._keep(Span("wait", "loop", max(since, self._begin), now, thread, args))
        self._steps[id(steps)] = _Step(steps, now, batch, thread)
        self._count(now)

    def ended(self, steps: Any, since: float | None, now: float) -> None:
        if self.is_on and since is not None:
            args = {"is_end_of_epoch": True}
            self._keep(Span("wait", "loop", max(since, self._begin), now, this_thread(), args))

    # ----------------------------------------------------------------------------------------------------------

    def _step_ends(self, steps: Any, now: float) -> None:
        step = self._steps.pop(id(steps), None)
        if step is not None:
            self._keep(Span("step", "loop", step.begin, now, step.thread, {"batch": step.batch}))

    def _count(self, now: float) -> None:
        self._counted_at = now
        seen = self._listening.in_flight()
        if self._has_room():
            self._counts.append((now, seen.num_in_the_making, seen.num_ready, seen.queued))

    def _keep(self, span: Span) -> None:
        if self._has_room():
            self._spans.append(span)

    def _has_room(self) -> bool:
        if len(self._ran) + len(self._spans) + len(self._counts) < self._max_events:
            return True
        self.num_lost += 1
        return False

    def _stop(self, now: float) -> None:
        self._listening.end()
        if self.is_on:
            for step in list(self._steps.values()):
                self._step_ends(step.steps, now)
            self.is_on, self._end = False, now


@contextmanager
def trace(
    loader: Any, path: str | PathLike[str], *, num_batches: int = 20, max_events: int = MAX_EVENTS
) -> Generator[Trace]:
    """Record what the threads of a StageLoader do in this block, for ``num_batches`` at most, and save it there::

        with trace(loader, "trace.json", num_batches=20):
            for batch in loader:
                ...

    It is saved also where the block raises.

    Args:
        loader: a StageLoader.
        path: of the file, compressed if it ends with ``.gz``.
        num_batches: as in ``Trace``.
        max_events: as in ``Trace``.
    """
    recorded = Trace(loader, num_batches, max_events=max_events)
    try:
        yield recorded
    finally:
        recorded.save(path)


def _span_of(one: Ran) -> Span:
    args = {"batch": one.batch, "lane": one.lane, **_named(one), "error": one.error}
    args = {name: value for name, value in args.items() if value is not None}
    kind = "batch" if one.slot is None else "sample"
    return Span(one.stage, kind, one.begin, one.end, one.thread, args, one.overlaps)


def _named(one: Ran) -> dict[str, Any]:
    """Which sample it was, or how many."""
    if one.slot is None:
        return {"samples": one.num_samples}
    index: Any = one.index
    if one.num_samples != 1 or type(index) is list:
        return {"indices": index or None, "samples": one.num_samples}
    if one.lane is not None:  # the samples of an iterable dataset have no index
        return {"sample": one.slot}
    return {"index": index}


def _plain(index: Any) -> Any:
    """A dataset index as JSON can say it. The object itself is not kept."""
    if isinstance(index, str):
        return index[:MAX_LETTERS]
    if isinstance(index, list | tuple):
        known = [_plain(one) for one in cast(list[Any], index)[:MAX_INDICES]]
        return [one for one in known if one is not None]
    try:
        return None if index is None else operator.index(index)
    except Exception:  # a user's object
        return f"<{type(index).__name__}>"


def _clock_ns() -> int:
    """What to add to perf_counter's nanoseconds to have those since 1970, to some microseconds."""
    tries: list[tuple[int, int]] = []
    for _ in range(5):  # whoever is interrupted between two looks at the clocks is off by that
        before, now, after = perf_counter_ns(), time_ns(), perf_counter_ns()
        tries.append((after - before, now - (before + after) // 2))
    return min(tries)[1]
