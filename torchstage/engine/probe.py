"""Probe: what threads and consumers do in, the same told to whoever listens, as it happens, out.

Where nobody listens, nothing is told, and it costs a look at one attribute a visit, and one where a batch is finished,
asked for and handed out. Where somebody does, every sample is timed, by a watch that tells of each stage.

Guarantees: a listener changes nothing of what is made; what it raises ends its listening, and nothing else. Times are
on time.perf_counter's clock.
"""

import threading
import weakref
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any

from torchstage.engine.outcome import NoError
from torchstage.engine.ticket import Batch, Segment
from torchstage.engine.told import WHAT_IS_TOLD, Listener, Place, Ran, hears, of_batch, of_sample, this_thread
from torchstage.engine.watch import Laps, Watch

_keys = count()
_known: "weakref.WeakValueDictionary[int, Probe]" = weakref.WeakValueDictionary()


class Probe:
    """Some listeners, in their order. ``key``: what to call it where it cannot be sent."""

    def __init__(self, listeners: tuple[Listener, ...]) -> None:
        self.listeners = listeners
        self._told = {what: tuple(one for one in listeners if hears(one, what)) for what in WHAT_IS_TOLD}
        self.key = next(_keys)
        _known[self.key] = self

    def tell(self, what: str, *about: Any) -> None:
        """Call the method of this name of each listener."""
        for listener in self._told[what]:
            if listener.fault is None:
                try:
                    getattr(listener, what)(*about)
                except Exception as error:
                    listener.fault = error

    def watch(self) -> "ProbedWatch":
        """For the calling thread."""
        return ProbedWatch(self)

    @contextmanager
    def around(self, stage: str, batch: Batch) -> Generator[None]:
        """Around what the calling thread does with a whole batch."""
        self.tell("enter", stage)
        begin, error = perf_counter(), None
        try:
            yield
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            self.tell("ran", of_batch(stage, begin, perf_counter(), batch, error))
            self.tell("leave")

    def ran_through(
        self,
        segment: Segment,
        batch: Batch,
        slot: int,
        laps: Laps,
        place: Place,
        first: int = 0,
        *,
        overlaps: bool,
        error: BaseException | None = None,
    ) -> None:
        """A sample went through these stages, from the first one on, one right after another, in one place; the next
        one failed."""
        names, end = segment.key[1][first:], place.begin
        for stage, (seconds, _) in zip(names, laps, strict=False):
            begin, end = end, end + seconds
            self.tell("ran", of_sample(stage, begin, end, place.thread, batch, slot, overlaps=overlaps))
        if error is not None and len(laps) < len(names):
            stage, now = names[len(laps)], max(end, perf_counter())
            self.tell("ran", of_sample(stage, end, now, place.thread, batch, slot, overlaps=overlaps, error=error))

    def marked(self, stage: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same function; when the calling thread enters and leaves it is told."""

        def told(value: Any) -> Any:
            self.tell("enter", stage)
            try:
                return function(value)
            finally:
                self.tell("leave")

        return told

    def in_stretches(self, stage: str, made: Awaitable[Any]) -> Awaitable[Any]:
        """The same coroutine; each stretch from one wait to the next is told."""
        return _InStretches(self, stage, made)


class Probes:
    """Who listens to a loader now. ``now`` is None where nobody does."""

    def __init__(self) -> None:
        self.now: Probe | None = None
        self._changing = threading.RLock()  # a signal handler may stop a trace in the midst of that

    def add(self, listener: Listener) -> None:
        """Tell this one, too, from each thread's next visit on."""
        with self._changing:
            self.now = Probe((*(self.now.listeners if self.now is not None else ()), listener))

    def remove(self, listener: Listener) -> None:
        """Tell it nothing more, from each thread's next visit on."""
        with self._changing:
            left = tuple(one for one in (self.now.listeners if self.now is not None else ()) if one is not listener)
            self.now = Probe(left) if left else None


class ProbedWatch(Watch):
    """A watch that tells of each stage. What telling takes is no stage's time."""

    __slots__ = ("_batch", "_is_open", "_names", "_segment", "_slot", "_thread", "probe")

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe: Probe = probe
        self._thread = this_thread()
        self._forget()
        self._is_open = False

    def begin(self, batch: Any = None, slot: int = -1, segment: Any = None) -> None:
        self._batch, self._slot, self._segment = batch, slot, segment
        self._names: tuple[str, ...] = (batch.chain.finish_key if segment is None else segment.key)[1]
        super().begin()
        if segment is None or self._is_lanes or not segment.legs[0].names:  # else it waits for its turn first: a skip
            self._enter()
            super().skip()

    def lap(self) -> None:
        begin, stopped_at, is_given = self._at, self._stopped_at, self._given is not None
        number = len(self.laps)
        super().lap()
        end = self._at if stopped_at is None else stopped_at
        self._leave()
        if not is_given and number < len(self._names):
            self._tell(self._names[number], begin, end)
        if not self._is_lanes:
            self._enter()
        super().skip()

    def skip(self) -> None:
        if not self._is_open:
            self._enter()
        super().skip()

    def stop(self) -> None:
        super().stop()
        self._leave()

    def give(self, laps: Laps, place: Place | None = None) -> None:
        number = len(self.laps)
        super().give(laps)
        if place is not None:
            self.probe.ran_through(self._segment, self._batch, self._slot, laps, place, number, overlaps=True)

    def fail(self, error: BaseException | None = None) -> None:
        if self.is_on and self._batch is not None:
            number = len(self.laps)
            if error is not None and not isinstance(error, NoError) and number < len(self._names):
                self._tell(self._names[number], self._at, perf_counter(), error)
            self._leave()
        super().fail()
        self._forget()

    def end(self) -> Laps:
        self._leave()
        self._forget()
        return super().end()

    def through(self, stage: str, function: Callable[[Any], Any], value: Any, number: int) -> Any:
        """One of a lane's samples through one stage. What the watch itself measures goes on."""
        self.probe.tell("enter", stage)
        begin, error = perf_counter(), None
        try:
            return function(value)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            lane, batch = self._batch.chain.lane, self._batch.number
            self.probe.tell("ran", Ran(stage, begin, perf_counter(), self._thread, batch, lane, number, error=error))
            self.probe.tell("leave")

    @property
    def _is_lanes(self) -> bool:
        """Whether the stages after the first are told sample by sample."""
        return self._segment is not None and self._batch.chain.lane is not None

    def _tell(self, stage: str, begin: float, end: float, error: BaseException | None = None) -> None:
        if self._segment is None:
            said = None if error is None else type(error).__name__
            one = of_batch(stage, begin, end, self._batch, said, self._thread)
        else:
            one = of_sample(stage, begin, end, self._thread, self._batch, self._slot, error=error)
        self.probe.tell("ran", one)

    def _enter(self) -> None:
        if len(self.laps) < len(self._names):
            self._is_open = True
            self.probe.tell("enter", self._names[len(self.laps)])

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            self.probe.tell("leave")

    def _forget(self) -> None:
        """A thread keeps nothing of a batch."""
        self._batch: Any = None
        self._segment: Any = None
        self._names = ()
        self._slot = -1


class ByHand:
    """An awaitable that draws on another one by hand, so that Python does not know what it waits for."""

    awaits: Any


class _InStretches(ByHand):
    """An awaitable that tells whenever it goes on and whenever it waits."""

    def __init__(self, probe: Probe, stage: str, made: Awaitable[Any]) -> None:
        self.probe = probe
        self._stage = stage
        self.awaits = made

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self.awaits.__await__()
        send: Callable[[Any], Any] = getattr(steps, "send", lambda _: next(steps))
        go_on, argument = send, None
        while True:
            self.probe.tell("enter", self._stage)
            try:
                waits_for = go_on(argument)
            except StopIteration as end:
                return end.value
            finally:
                self.probe.tell("leave")
            try:
                go_on, argument = send, (yield waits_for)
            except BaseException as error:  # cancelled, or what it waited for failed: the coroutine's own business
                if not hasattr(steps, "throw"):
                    raise
                go_on, argument = steps.throw, error


def known(key: int) -> Probe | None:
    """The probe of this process that has the key, if it is still there."""
    return _known.get(key)
