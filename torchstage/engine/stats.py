"""Stats: what each thread did in; sums over all threads out.

Guarantees: a thread writes its own tally only, without a lock; readers may be one visit behind, never wrong.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """What one thread did so far: samples, the seconds it was busy with them, and batches it finished."""

    num_samples: int = 0
    busy_seconds: float = 0.0
    num_batches: int = 0
    finish_seconds: float = 0.0


def merge(tallies: Iterable[Tally]) -> Tally:
    """The sum of the tallies, as of now."""
    total = Tally()
    for tally in tallies:
        total.num_samples += tally.num_samples
        total.busy_seconds += tally.busy_seconds
        total.num_batches += tally.num_batches
        total.finish_seconds += tally.finish_seconds
    return total


class Meter:
    """Recent costs in seconds a sample, as exponential means over visits. None until one was measured.

    Threads update it without a lock: a lost update is one of many measurements lost, never a wrong number kept.
    """

    __slots__ = ("finish_seconds", "sample_seconds")

    WEIGHT = 0.2  # a visit's share: five visits, and what it was before is mostly forgotten

    def __init__(self) -> None:
        self.sample_seconds: float | None = None  # of the stages of one sample
        self.finish_seconds: float | None = None  # of what is done with the whole batch, shared among its samples

    @property
    def work_seconds(self) -> float | None:
        """All that a sample costs. None until both parts are known."""
        sample, finish = self.sample_seconds, self.finish_seconds
        return None if sample is None or finish is None else sample + finish

    def add(self, num_samples: int, seconds: float) -> None:
        """Count one visit: that many samples in that many seconds."""
        self.sample_seconds = self._mean(self.sample_seconds, seconds / num_samples)

    def add_finish(self, num_samples: int, seconds: float) -> None:
        """Count one batch that was finished."""
        self.finish_seconds = self._mean(self.finish_seconds, seconds / num_samples)

    def forget(self) -> None:
        """What was measured holds no longer."""
        self.sample_seconds = self.finish_seconds = None

    def _mean(self, known: float | None, latest: float) -> float:
        return latest if known is None else known + self.WEIGHT * (latest - known)
