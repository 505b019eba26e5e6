"""Watch: a piece of work in; its time, the CPU seconds and the memory of this process and those that it started, out.

Guarantees: looking at the memory takes at most about a twentieth of the time, and its CPU seconds are not counted.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from torchstage.probe.process_tree import cpu_seconds_of_tree, memory_of_tree

LEAST_SECONDS = 0.1  # between two looks
SHARE = 20  # times as long as a look takes: at 400 MiB it takes 27 ms


@dataclass(frozen=True, slots=True)
class Cost:
    """What reading a loader took, over all epochs that were timed.

    ``seconds``: from ``iter`` to the end. ``first_batch_seconds``: from ``iter`` to the first batch, the mean of the
    epochs. ``cpu_seconds``: of the process and all that it started. ``peak_bytes``: their memory (PSS, or RSS where
    ``is_shared_counted_once`` is False); ``added_bytes``: that, less what there was before the loader was made.
    ``num_samples`` None: it cannot be told how many a batch has.
    """

    name: str
    num_epochs: int = 0
    seconds: float | None = None
    first_batch_seconds: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    added_bytes: int | None = None
    is_shared_counted_once: bool = True
    num_batches: int = 0
    num_samples: int | None = None

    @property
    def samples_per_second(self) -> float | None:
        return None if self.num_samples is None or not self.seconds else self.num_samples / self.seconds


class Watch:
    """Around a piece of work. ``base_bytes``: what was there before; None: it is looked at now."""

    def __init__(self, base_bytes: int | None = None) -> None:
        self._base = memory_of_tree()[0] if base_bytes is None else base_bytes
        self._ended = threading.Event()
        self._cpu_of_looks, self.is_once = 0.0, True
        self.peak_bytes: int | None = None
        self.cpu_seconds: float | None = None
        self._thread = threading.Thread(target=self._look_often, name="torchstage-compare-memory", daemon=True)

    @property
    def added_bytes(self) -> int | None:
        return None if self.peak_bytes is None or self._base is None else max(0, self.peak_bytes - self._base)

    def __enter__(self) -> Self:
        self._before = cpu_seconds_of_tree()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        after = cpu_seconds_of_tree()
        if after is not None and self._before is not None:
            self.cpu_seconds = max(0.0, after - self._before - self._cpu_of_looks)

    def look(self) -> None:
        cpu = time.thread_time()
        found, self.is_once = memory_of_tree()
        self._cpu_of_looks += time.thread_time() - cpu
        self.peak_bytes = max(found or 0, self.peak_bytes or 0) or None

    def _look_often(self) -> None:
        wait = LEAST_SECONDS
        while not self._ended.wait(wait):
            start = time.perf_counter()
            self.look()
            wait = max(LEAST_SECONDS, SHARE * (time.perf_counter() - start))


def of_ranks(costs: Sequence[Cost]) -> Cost:
    """The slowest rank's time, everybody's CPU and memory."""
    return replace(
        costs[0],
        seconds=_most(cost.seconds for cost in costs),
        first_batch_seconds=_most(cost.first_batch_seconds for cost in costs),
        cpu_seconds=_sum(cost.cpu_seconds for cost in costs),
        peak_bytes=_sum(cost.peak_bytes for cost in costs),
        added_bytes=_sum(cost.added_bytes for cost in costs),
        num_batches=sum(cost.num_batches for cost in costs),
    )


def of_epochs(costs: Sequence[Cost]) -> Cost:
    """All of them, one after another."""
    first = _sum(cost.first_batch_seconds for cost in costs)
    return replace(
        costs[0],
        num_epochs=len(costs),
        seconds=_sum(cost.seconds for cost in costs),
        first_batch_seconds=None if first is None else first / len(costs),
        cpu_seconds=_sum(cost.cpu_seconds for cost in costs),
        peak_bytes=_most(cost.peak_bytes for cost in costs),
        added_bytes=_most(cost.added_bytes for cost in costs),
        num_batches=sum(cost.num_batches for cost in costs),
    )


def _most(values: Iterator[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _sum(values: Iterator[Any]) -> Any:
    found = list(values)
    return None if None in found else sum(found)
