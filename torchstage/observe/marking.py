"""Marking: a loader in; its stages and waits as ranges in torch.profiler's and NVIDIA's profilers out.

Guarantees: a range is ended in the thread that began it; which samples come, and in which order, stays as it is.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from torchstage.listening import Listener, Listening

PREFIX = "torchstage."


class _Stack(threading.local):
    def __init__(self) -> None:
        self.open: list[Any] = []  # the calling thread's ranges: torch's, or None where there is none of its own


class Ranges(Listener):
    """Puts each call of a stage into a range, ``torchstage.decode``, in the thread where it runs; and each wait of the
    loop for a batch, ``torchstage.wait``; from here until ``stop()``.

    Args:
        loader: a StageLoader.
        profiler: ranges of ``torch.profiler.record_function``.
        nvtx: ranges of NVTX, for Nsight Systems. They need CUDA.

    Of a coroutine, each stretch from one of its waits to the next is a range. Stages in other processes have none.
    Raises TypeError for what is no StageLoader; ValueError if neither is wanted; RuntimeError for NVTX without CUDA.
    """

    def __init__(self, loader: Any, *, profiler: bool = True, nvtx: bool = False) -> None:
        if not profiler and not nvtx:
            raise ValueError("observe.Ranges: profiler and nvtx are both False: there is nothing to do.")
        if nvtx and not torch.cuda.is_available():
            raise RuntimeError(
                "observe.Ranges: nvtx=True needs CUDA, which torch does not find here. Leave nvtx out: "
                "the ranges of torch.profiler need no device."
            )
        self._profiler = profiler
        self._nvtx: Any = torch.cuda.nvtx if nvtx else None
        self._stack = _Stack()
        self._listening = Listening(loader, self, "observe.Ranges")
        self._listening.begin()

    def stop(self) -> None:
        """No more ranges are begun, from each thread's next visit to a batch on. A second time does nothing."""
        self._listening.end()

    def enter(self, stage: str) -> None:
        name, known = PREFIX + stage, None
        if self._profiler:
            known = record_function(name)
            known.__enter__()
        if self._nvtx is not None:
            self._nvtx.range_push(name)
        self._stack.open.append(known)

    def leave(self) -> None:
        if not self._stack.open:  # it was entered before anybody listened
            return
        known = self._stack.open.pop()
        if self._nvtx is not None:
            self._nvtx.range_pop()
        if known is not None:
            known.__exit__(None, None, None)

    def called(self, steps: Any, now: float) -> None:
        self.enter("wait")

    def handed_out(self, steps: Any, since: float, now: float, is_error: bool) -> None:
        self.leave()

    def ended(self, steps: Any, since: float | None, now: float) -> None:
        self.leave()


@contextmanager
def ranges(loader: Any, *, profiler: bool = True, nvtx: bool = False) -> Generator[Ranges]:
    """In this block, each call of a stage is a range in the profilers::

        with ranges(loader), torch.profiler.profile(...) as prof:
            for batch in loader:
                ...

    ``loader``, ``profiler`` and ``nvtx`` are those of ``Ranges``, and so are the errors.
    """
    made = Ranges(loader, profiler=profiler, nvtx=nvtx)
    try:
        yield made
    finally:
        made.stop()
