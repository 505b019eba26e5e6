"""Executors: samples in from any thread, given to a ``concurrent.futures.Executor`` of the user's, their values out.

Guarantees: nothing blocks; at most ``concurrency`` samples are with the executor at once; what was given to it and is
not wanted any more is cancelled; an executor that died fails the samples that it had, with the way out.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchstage.engine.ledger import Ledger, Site
from torchstage.engine.outcome import SAMPLE, STAGE, Failure, NoError, caught
from torchstage.engine.segment import Worker
from torchstage.engine.stats import Sums, Tally, Work
from torchstage.engine.ticket import Batch, Part
from torchstage.engine.told import Place, Thread
from torchstage.engine.watch import Laps

NUM_UNBOUNDED = 32  # samples at once with an executor that does not say how many it takes


@dataclass(frozen=True, slots=True)
class Made:
    """What comes back from where the executor ran the stages: their value, what each of them took there, and, where
    somebody wants to know, which place that is."""

    value: Any
    laps: Laps
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A whole batch that was made elsewhere, and what was counted of its stages there. Where somebody wants to know:
    what its samples took at each stage together, and which place that was."""

    value: Any
    sums: Sums
    bad: tuple[tuple[int, Any], ...] = ()
    slots: Sequence[int] | None = None  # as Batch has them
    laps: Laps = field(default_factory=list[tuple[float, float | None]])
    place: Place | None = None


Submit = Callable[[Part, int, Any], Future[Any]]  # the part, a slot of it, and what waits there


class ExecutorDiedError(RuntimeError):
    """An executor that the user gave takes no more work, or lost what it had."""


def stage_of(error: BaseException, first: str) -> str:
    """The stage that an error was raised in: as it says itself, else the first."""
    return str(vars(error).pop(STAGE, first)) if hasattr(error, "__dict__") else first


def say_stage(error: BaseException, stage: str) -> None:
    """Have the error tell which of several stages that run together it comes from."""
    with suppress(Exception):
        BaseException.__setattr__(error, STAGE, stage)  # whatever its class has to say to that


def explained(error: BaseException, executor: Executor, first: str, *, is_refusal: bool) -> tuple[BaseException, str]:
    """The error that a caller is told, and its stage: where the executor itself failed, what to do about that.

    ``is_refusal``: it came out of ``submit``, and not out of what was submitted.
    """
    is_users = hasattr(error, "__dict__") and STAGE in vars(error)
    stage = stage_of(error, first)
    if is_users or not isinstance(error, RuntimeError if is_refusal else BrokenExecutor | CancelledError):
        return error, stage
    name = type(executor).__name__
    died = ExecutorDiedError(
        f"Stage {stage!r}: its executor, a {name}, takes no more work or lost a sample that it had ({error!r}). A "
        "process may have been killed (out of memory, a crash in native code), or the executor was shut down while the "
        "loader used it. Keep it open until the loader is closed, or make a new one and a new Stage."
    )
    died.__cause__ = error
    return died, stage


class InExecutor:
    """The place of a segment that an executor runs; an annex of a pool."""

    runs_user_code = True  # submit

    def __init__(
        self,
        executor: Executor,
        submit: Submit,
        concurrency: int | None,
        label: str = "",
        ledger: Ledger | None = None,
    ) -> None:
        num_workers: Any = getattr(executor, "_max_workers", None)  # as Python's own executors call it
        bounds = [bound for bound in (concurrency, num_workers) if isinstance(bound, int)]
        name: str = getattr(executor, "site_name", type(executor).__name__)
        self.site = Site(name, min(bounds, default=NUM_UNBOUNDED), label)
        self.num_workers = num_workers if isinstance(num_workers, int) else None  # of the executor, if it says so
        self._ledger = ledger or Ledger()
        self._tallies: dict[int, Tally] = {}  # of each thread that calls back
        self.executor = executor
        self._submit = submit
        self._room: list[None] | None = None if concurrency is None else [None] * concurrency
        self._waiting: deque[Part] = deque()  # one for each sample
        self._given: dict[Future[Any], tuple[Part, int]] = {}
        self._is_over = False
        self._givers: set[int] = set()  # threads: an executor may run a sample, and call back, inside submit

    def call(self, part: Part, num_samples: int) -> None:
        """As Place.call.

        No sample is left waiting while there is room: 1. what waits is put down before room is looked for, 2. room is
        given back before what waits is looked for. Whoever comes second of a caller and a finished one sees both.
        """
        self._waiting.extend([part] * num_samples)
        self._give()

    def _give(self) -> None:
        thread = threading.get_ident()
        if self._is_over:  # here in a finalizer, maybe
            self._waiting.clear()
            return
        if thread in self._givers:  # it goes on where it came from
            return
        self._givers.add(thread)
        try:
            self._give_all()
        finally:
            self._givers.discard(thread)

    def _give_all(self) -> None:
        while self._waiting:
            if self._room is not None:
                try:
                    self._room.pop()
                except IndexError:
                    return
            try:
                part = self._waiting.popleft()
                slot = part.todo.pop()
            except IndexError:  # another thread took the last one, or the batch was dropped
                self._give_back_room()
                continue
            if part.batch.is_dropped:  # another place passed it on right after
                self._give_back_room()
                continue
            self._give_one(part, slot)

    def _give_back_room(self) -> None:
        if self._room is not None:
            self._room.append(None)

    def _give_one(self, part: Part, slot: int) -> None:
        if not part.batch.chain.is_counted:
            self._work(part).num_samples += part.batch.num_each
        try:
            future = self._submit(part, slot, part.take(slot))
            self._given[future] = part, slot
            future.add_done_callback(partial(self._done, part, slot))
        except BaseException as error:  # also if what came is no future
            self._give_back_room()
            self._fail(part, slot, caught(error, "").error, is_refusal=True)

    def _done(self, part: Part, slot: int, future: Future[Any]) -> None:
        """In whatever thread the executor says so."""
        if self._given.pop(future, None) is None:  # it was given up, and another sample has its room
            return
        self._give_back_room()
        try:
            if part.batch.is_dropped or self._is_over:
                return
            # Not raised here: its traceback would lead to the frame that calls back, that to the future, that to it.
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                value = future.result()
                if type(value) is MadeBatch:
                    self._tally().add(value.sums)
                    self._tell(part, slot, value.laps, value.place)
                    part.batch.bad, part.batch.slots = value.bad, value.slots
                    value = value.value
                elif type(value) is Made:
                    work, laps, place, value = self._work(part), value.laps, value.place, value.value
                    self._tell(part, slot, laps, place)
                    work.add(laps, part.batch.num_each, part.batch.num_each)
                    work.seconds += sum(seconds for seconds, _ in laps)
                part.conclude(slot, value)
            elif part.batch.goes_on_without(error):  # before all others: it was asked for before them
                part.todo.append(slot)
                self._waiting.appendleft(part)
            else:
                self._fail(part, slot, error)
        except BaseException as error:
            self._fail(part, slot, caught(error, "").error)
        finally:
            self._give()

    def _fail(self, part: Part, slot: int, error: BaseException, *, is_refusal: bool = False) -> None:
        first = part.segment.stage
        said, stage = explained(error, self.executor, first, is_refusal=is_refusal)
        sample: int | None = vars(error).pop(SAMPLE, None) if hasattr(error, "__dict__") else None
        if part.batch.chain.is_counted:
            self._work(part).num_samples += part.batch.num_each
        is_error = not isinstance(error, NoError)
        self._tally().fail(part.segment.key, stage, part.batch.num_each, is_error=is_error)
        self._tell(part, slot, [], None, said if is_error else None)
        part.fail(slot, Failure(said, stage, slot, sample))

    def _tell(self, part: Part, slot: int, laps: Laps, place: Place | None, error: BaseException | None = None) -> None:
        """Where a sample was made, if somebody listens. Of one that failed, it is not known."""
        probe = self._ledger.probes.now
        if probe is not None and (place is not None or error is not None):
            now = time.perf_counter()
            here = place or Place(Thread(os.getpid(), 0, self.site.executor), now)
            seconds = sum(seconds for seconds, _ in laps)
            if not here.begin + seconds <= now:  # another machine's clock
                here = Place(here.thread, now - seconds)
            probe.ran_through(part.segment, part.batch, slot, laps, here, overlaps=True, error=error)

    def _tally(self) -> Tally:
        """The calling thread's."""
        if self._is_over:  # nobody would close a new one, or look at what is added
            return Tally()
        thread = threading.get_ident()
        tally = self._tallies.get(thread)
        if tally is None:
            tally = self._tallies[thread] = self._ledger.tally(self.site.label)
        return tally

    def _work(self, part: Part) -> Work:
        return self._tally().work_at(part.segment.key)

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        """As ``Pool.where``."""
        given = list(self._given.values())
        return next(((part.segment.stage, None) for part, at in given if part.batch is batch and at == slot), None)

    def future_of(self, batch: Batch, slot: int) -> Future[Any] | None:
        """The executor's, of a sample that it has."""
        given = list(self._given.items())
        return next((future for future, (part, at) in given if part.batch is batch and at == slot), None)

    @property
    def given(self) -> list[tuple[Future[Any], Part, int]]:
        """What the executor has: the future, the part of a batch, the slot."""
        return [(future, part, slot) for future, (part, slot) in list(self._given.items())]

    def give_up(self, future: Future[Any], error: BaseException) -> bool:
        """Fail the sample of this future, in the consumer's thread, and give its room to another one. False if it has
        come. What waits is given to the executor by one of the pool's threads: that is user code."""
        given = self._given.pop(future, None)  # who takes it out has it
        if given is None:
            return False
        with suppress(Exception):
            future.cancel()
        self._give_back_room()
        self._fail(*given, error)
        part = next((part for part in list(self._waiting) if part.todo and not part.batch.is_dropped), None)
        if part is not None and part.batch.chain.home is not None:
            part.batch.chain.home.call(part, 1)
        return True

    def leave(self) -> None:
        """Take back what belongs to dropped batches."""
        for future, (part, _) in list(self._given.items()):
            if part.batch.is_dropped:
                with suppress(Exception):
                    future.cancel()

    def abandon(self) -> None:
        """Take back all. The executor is the user's: it is not shut down. What was cancelled is told at once, here, and
        must not give the executor more: a finalizer may come while its lock is held."""
        self._is_over = True
        for tally in list(self._tallies.values()):
            tally.is_over = True
        self._waiting.clear()
        for future in list(self._given):
            with suppress(Exception):
                future.cancel()

    def join(self, deadline: float) -> list[Worker]:
        """Wait until what could not be taken back has ended: it may use what the caller closes next."""
        while self._given and time.monotonic() < deadline:
            future = next(iter(list(self._given)), None)
            if future is not None:
                with suppress(Exception):
                    future.exception(max(0.0, deadline - time.monotonic()))
        return []

    def forget(self) -> None:
        """In a forked child."""
        self._is_over = True
        for tally in self._tallies.values():
            tally.leave()
        self._given.clear()
        self._waiting.clear()
