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
    """The recent cost of a sample in seconds, as an exponential mean over visits. None until one was measured.

    Threads update it without a lock: a lost update is one of many measurements lost, never a wrong number kept.
    """

    __slots__ = ("sample_seconds",)

    WEIGHT = 0.2  # a visit's share: five visits, and what the samples cost before is mostly forgotten

    def __init__(self) -> None:
        self.sample_seconds: float | None = None

    def forget(self) -> None:
        """What was measured holds no longer."""
        self.sample_seconds = None

    def add(self, num_samples: int, seconds: float) -> None:
        """Count one visit: that many samples in that many seconds."""
        latest = seconds / num_samples
        known = self.sample_seconds
        self.sample_seconds = latest if known is None else known + self.WEIGHT * (latest - known)
