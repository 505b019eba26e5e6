"""Executors: samples in from any thread, given to a ``concurrent.futures.Executor`` of the user's, their values out.

Guarantees: nothing blocks; at most ``concurrency`` samples are with the executor at once; what was given to it and is
not wanted any more is cancelled; an executor that died fails the samples that it had, with the way out.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any

from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch, Failure, Part, caught

STAGE = "_torchstage_stage"  # attribute of an error: the stage that it was raised in, where several run together

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

    def __init__(self, executor: Executor, submit: Submit, concurrency: int | None) -> None:
        self._executor = executor
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
        try:
            future = self._submit(part, slot, part.take(slot))
            self._given[future] = part, slot
            future.add_done_callback(partial(self._done, part, slot))
        except BaseException as error:  # also if what came is no future
            self._give_back_room()
            self._fail(part, slot, caught(error, "").error, is_refusal=True)

    def _done(self, part: Part, slot: int, future: Future[Any]) -> None:
        """In whatever thread the executor says so."""
        self._given.pop(future, None)
        self._give_back_room()
        try:
            if part.batch.is_dropped or self._is_over:
                return
            # Not raised here: its traceback would lead to the frame that calls back, that to the future, that to it.
            error = CancelledError() if future.cancelled() else future.exception()
            if error is None:
                part.conclude(slot, future.result())
            else:
                self._fail(part, slot, error)
        except BaseException as error:
            self._fail(part, slot, caught(error, "").error)
        finally:
            self._give()

    def _fail(self, part: Part, slot: int, error: BaseException, *, is_refusal: bool = False) -> None:
        first = part.segment.stage
        said, stage = explained(error, self._executor, first, is_refusal=is_refusal)
        part.fail(slot, Failure(said, stage, slot))

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        """As ``Pool.where``."""
        given = list(self._given.values())
        return next(((part.segment.stage, None) for part, at in given if part.batch is batch and at == slot), None)

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
        self._given.clear()
        self._waiting.clear()
