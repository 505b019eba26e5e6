"""Assembly: a line in, the engine's segments out: each stage's function, the sample's own generators and the calling
thread's own copies around it.

Guarantees: a sample meets the same functions with the same draws whether its stages run together in one thread or each
at its own place.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchstage import rng
from torchstage.copies import Private
from torchstage.coroutines import drawing, remember
from torchstage.elsewhere import Remote, here, waiting_for
from torchstage.engine.executors import say_stage
from torchstage.engine.ticket import Leg, Segment, Step
from torchstage.engine.watch import watch_here
from torchstage.first import NUM_LOOKED_AT, FirstSamples
from torchstage.limits import Limits, around, seconds_of, together
from torchstage.line import Line, Station, segments_of
from torchstage.order import Placed, index_and_salt
from torchstage.seeds import Seeds
from torchstage.sites import Sites
from torchstage.tolerance import Tolerance, one_by_one

Function = Callable[..., Any]
Wrap = Callable[[Function], Function]
Pick = Callable[[Line], Sequence[Station]]

ONE_OF_BATCH = 1 << 20  # salts of a whole batch's samples lie this far apart: more than a batch has samples


@dataclass(frozen=True, slots=True)
class Assembly:
    """How a line's functions are put together. ``sites`` None: all of a sample's stages in one thread, one after
    another; then ``wrap`` goes around them all, and coroutines are waited for with ``run_coroutine``.

    ``looks``: a thread that has something for its own uses that. ``first`` watches the first samples.
    """

    line: Line
    seeds: Seeds | None
    private: Callable[[], Private | None]
    wrap: Wrap
    looks: bool = False
    first: FirstSamples | None = None
    sites: Sites | None = None
    run_coroutine: Callable[[Any], Any] | None = None
    is_inline: bool = False  # executors are not used either
    tolerance: Tolerance | None = None  # of samples that fail
    limits: Limits | None = None  # how it is looked at what is in a stage for too long

    def of_samples(self) -> tuple[Segment, ...]:
        """From an index to its sample."""
        return self._segments(lambda line: line.by_sample, begins=True)

    def of_batches(self) -> tuple[Segment, ...]:
        """From the indices of a batch to all its samples, which the dataset gives at once; then each by itself."""
        line = self.line
        then = self._segments(lambda line: line.after_many, begins=False) if line.after_many else ()
        executor = line.many_where.executor
        place = self.sites.place(line.many_where) if self.sites is not None else None
        if executor is not None:
            many = one_by_one(line.fetch_many, self.tolerance, raises=not then, travels=True)
            remote = Remote(many, "batch", self.seeds)
            fetch = remote if self.sites is not None else waiting_for(executor, [("fetch", remote)])
        else:
            many = self._own_or_shared(lambda line: line.fetch_many)
            many = one_by_one(many, self.tolerance, raises=not then, is_async=line.many_is_async)
            fetch = self._first_step(many, line.many_is_async, "batch")
            if not line.many_is_async:
                fetch = around(self.limits, fetch, "fetch", None)
        if self.sites is None:
            fetch = self.wrap(self._watched(self._waited_for(fetch, line.many_is_async), 0 if then else NUM_LOOKED_AT))
        begin = remember(self.seeds) if line.many_is_async or executor is not None else None
        return (Segment((Leg((("fetch", fetch),), begin),), place, items_of if then else None), *then)

    def of_nothing(self) -> tuple[Segment, ...]:
        """An empty batch: no sample is asked for."""
        return (Segment((Leg((("fetch", self._watched(_no_samples, NUM_LOOKED_AT)),)),)),)

    def _segments(self, pick: Pick, *, begins: bool) -> tuple[Segment, ...]:
        stations = pick(self.line)
        groups = segments_of(stations)
        legs = [self._leg(pick, group, begins=begins and group[0] == 0) for group in groups]
        if self.sites is not None:
            places = [self.sites.place(stations[group[0]].where) for group in groups]
            limits = [{} if self.limits is None else seconds_of([stations[n] for n in group]) for group in groups]
            return tuple(
                Segment((leg,), place, limits=one) for leg, place, one in zip(legs, places, limits, strict=True)
            )
        if self.wrap is plain:
            return (Segment(tuple(legs)),)
        together = _OneAfterAnother(legs)
        whole = self.wrap(together)  # nobody else may come in between two stages
        begin = None if len(legs) == 1 and legs[0].begin is None else together.begin
        names = tuple(station.label for station in stations)
        return (Segment((Leg(((stations[0].label, whole),), begin, names),)),)

    def _leg(self, pick: Pick, group: list[int], *, begins: bool) -> Leg:
        stations = [pick(self.line)[number] for number in group]
        where, seeds = stations[0].where, self.seeds
        if where.executor is not None:
            names_of_draws = [
                s.draws or (None if number else "sample") for number, s in zip(group, stations, strict=True)
            ]
            remotes = [
                (s.label, Remote(s.function, draws, seeds)) for s, draws in zip(stations, names_of_draws, strict=True)
            ]
            if self.sites is not None:
                return Leg(tuple(remotes))
            waits = None if self.limits is None else self.limits.waits
            run = here(remotes) if self.is_inline else waiting_for(where.executor, remotes, waits)
            # Of processes of the loader's it is seen what they are in: they are ended, not who waits for them.
            run = around(self.limits, run, remotes[0][0], None if where.is_process else together(stations))
            steps: list[Step] = [(remotes[0][0], run)]
            names = tuple(s.label for s in stations)
        else:
            names = ()
            steps = [(pick(self.line)[n].label, self._step(pick, n, begins=begins and n == 0)) for n in group]
        if self.first is not None:
            is_end = group[-1] == len(pick(self.line)) - 1
            counts = [1 if is_end and number == len(steps) - 1 else 0 for number in range(len(steps))]
            steps = [(name, self._watched(step, num, name)) for (name, step), num in zip(steps, counts, strict=True)]
        is_threads = where.executor is None and not where.is_async
        if not is_threads:
            return Leg(tuple(steps), remember(seeds), names)
        return Leg(tuple(steps), None if begins or seeds is None else partial(_begin, seeds))

    def _step(self, pick: Pick, number: int, *, begins: bool) -> Function:
        """The stage's function, looked at if it has a time-out and is waited for in a thread."""
        station = pick(self.line)[number]
        step = self._plain_step(pick, number, begins=begins)
        if station.is_async and self.sites is not None:
            return step
        return around(self.limits, step, station.label, station.timeout_seconds)

    def _plain_step(self, pick: Pick, number: int, *, begins: bool) -> Function:
        station = pick(self.line)[number]
        function = self._own_or_shared(lambda line: pick(line)[number].function)
        if begins:
            return self._waited_for(self._first_step(function, station.is_async, "sample"), station.is_async)
        if station.is_async:
            draws = station.draws or f"dataset stage {number}"
            drawn = function if self.seeds is None else drawing(function, draws, self._private)
            return self._waited_for(drawn, True)
        if self.seeds is None or station.draws is None:
            return function
        return _restarted(function, station.draws, self._private)

    @property
    def _private(self) -> Callable[[], Private | None]:
        return self.private if self.looks else _nobodys

    def _first_step(self, function: Function, is_async: bool, kind: str) -> Function:
        """The stage that is given the index itself."""
        if is_async:
            return _unplaced(function if self.seeds is None else drawing(function, kind, self._private))
        if self.looks:
            return _taken(function, self.private, self.seeds, kind)
        return function if self.seeds is None else _drawn(function, self.seeds, kind)

    def _own_or_shared(self, pick: Callable[[Line], Function]) -> Function:
        shared = pick(self.line)
        if not self.looks:
            return shared
        line, private = self.line, self.private

        def function(value: Any) -> Any:
            own = private()
            return shared(value) if own is None else pick(line.of(own))(value)

        return function

    def _waited_for(self, step: Function, is_async: bool) -> Function:
        """Where stages run together: a coroutine is waited for in the thread that runs the others."""
        run = self.run_coroutine
        if not is_async or self.sites is not None:
            return step
        assert run is not None

        def waited_for(value: Any) -> Any:
            return run(step(value))

        return waited_for

    def _watched(self, step: Function, num_samples: int, stage: str = "") -> Function:
        return step if self.first is None else self.first.watch(_ending_here(step), num_samples, stage)


def plain(function: Function) -> Function:
    """Nothing goes around it: threads call it as it is."""
    return function


def _ending_here(step: Function) -> Function:
    """``step``, whose time is over when it returns, whatever looks at the sample next."""

    def ending(value: Any) -> Any:
        value = step(value)
        if (watch := watch_here()) is not None:
            watch.stop()
        return value

    return ending


def _no_samples(indices: Any) -> list[Any]:
    return []


def items_of(item: Any) -> Sequence[Any]:
    """The items of a batch's samples, given the batch's: what tells it apart tells them apart."""
    if type(item) is not Placed:
        return item
    return [Placed(index, item.salt * ONE_OF_BATCH + at) for at, index in enumerate(item.index)]


def _nobodys() -> None:
    return None


def _begin(seeds: Seeds, item: Any) -> None:
    """In a thread that a sample comes to from elsewhere."""
    scope = rng.current()
    if scope is not None:
        index, salt = index_and_salt(item)
        scope.begin(seeds, "sample elsewhere", index, salt)


def _restarted(function: Function, draws: str, private: Callable[[], Private | None]) -> Function:
    """``function`` with random generators for this stage of the sample alone."""
    current = rng.current

    def drawn(value: Any) -> Any:
        scope = current()
        if scope is not None:
            own = private()
            scope.restart(draws, () if own is None else own.held)
        return function(value)

    return drawn


def _taken(take: Function, private: Callable[[], Private | None], seeds: Seeds | None, kind: str) -> Function:
    """``take``, which looks for what is the calling thread's own, with random generators for this sample alone."""
    current = rng.current

    def taken(item: Any) -> Any:
        index, salt = index_and_salt(item)
        if seeds is not None and (scope := current()) is not None:
            own = private()
            scope.begin(seeds, kind, index, salt, () if own is None else own.held)
        return take(index)

    return taken


def _drawn(take: Function, seeds: Seeds, kind: str) -> Function:
    """``take`` with random generators for this sample alone, in the shortest way: it is paid for every sample."""
    current = rng.current

    def drawn(item: Any) -> Any:
        scope = current()
        if type(item) is Placed:
            item, salt = item.index, item.salt
            if scope is not None:
                scope.begin(seeds, kind, item, salt)
        elif scope is not None:
            scope.begin(seeds, kind, item)
        return take(item)

    return drawn


def _unplaced(take: Function) -> Function:
    def taken(item: Any) -> Any:
        return take(index_and_salt(item)[0])

    return taken


class _OneAfterAnother(threading.local):
    """All stages as one function. Its errors say which stage they come from."""

    item: Any = None

    def __init__(self, legs: Sequence[Leg]) -> None:
        self._legs = legs

    def begin(self, item: Any) -> None:
        """This sample comes: not always what the first stage is given says which it is."""
        self.item = item

    def __call__(self, value: Any) -> Any:
        stage, watch = "", watch_here()
        if watch is not None:  # what waited for its turn here did not work
            watch.skip()
        is_first = True
        try:
            for leg in self._legs:
                if leg.begin is not None:
                    leg.begin(self.item)
                for stage, step in leg.steps:  # noqa: B007  # named after an error
                    if watch is not None and not is_first:
                        watch.lap()
                    is_first = False
                    value = step(value)
        except BaseException as error:
            say_stage(error, stage)
            raise
        return value
