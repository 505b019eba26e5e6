"""Patience: calls of the user's code in, what they give out, or that they gave nothing in time.

Guarantees: without a time-out everything is called in the caller's thread; with one, in one other thread.
"""

import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from torchstage.comparison.leaf import type_name
from torchstage.comparison.record import Hung, Raised

NUM_FRAMES = 4  # of the stack of a thread that hangs
LET_GO_SECONDS = 0.5  # to wait for the thread at the end


class TimedOut(Exception):  # noqa: N818  # while batches are read it is recorded, not raised
    """``hung``: for how long it was waited, and where the thread was."""

    def __init__(self, seconds: float, stack: str) -> None:
        super().__init__(f"nothing in {seconds:g} s")
        self.hung = Hung(seconds, stack)


class Patience:
    """Calls functions; if need be in a thread of its own, so that it can be left alone where it hangs."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._asked: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """What it returns or raises. Raises TimedOut."""
        if self._timeout is None:
            return function()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="torchstage-compare-read")
            self._thread.start()
        self._asked.put(function)
        try:
            value, error = self._answers.get(timeout=self._timeout)
        except Empty:
            raise TimedOut(self._timeout, self._stack()) from None
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """The thread ends with the call that it is in."""
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(LET_GO_SECONDS)

    def _stack(self) -> str:
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented by Python all the same
        frame = frames.get((self._thread and self._thread.ident) or 0)
        return "".join(traceback.format_stack(frame)[-NUM_FRAMES:]) if frame else ""

    def _run(self) -> None:
        while (function := self._asked.get()) is not None:
            answer: tuple[Any, BaseException | None]
            try:
                answer = function(), None
            except BaseException as error:  # it is raised where it was called for
                answer = None, error
            del function
            self._answers.put(answer)
            del answer


def raised(error: BaseException) -> Raised:
    """Without what torch's worker processes put around the message."""
    kind, message = type(error), str(error)
    if message.startswith(f"Caught {kind.__name__} ") and "\nOriginal Traceback (most recent call last):" in message:
        ends = list(re.finditer(rf"^(?:[\w.]+\.)?{re.escape(kind.__qualname__)}(?:: |$)", message, re.MULTILINE))
        if ends:
            message = message[ends[-1].end() :]
    return Raised(type_name(kind), message.strip())


def reseed(seed: int) -> None:
    """torch's CPU generator, NumPy's and Python's."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def generators_left_alone() -> Generator[None]:
    """They are afterwards as they were before."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
