"""Stats: the records that a loader's ``stats()`` gives, and how they print.

Guarantees: records are plain values that nothing changes any more.
"""

from dataclasses import dataclass
from typing import Any

from torchstage.tables import seconds, table
from torchstage.tolerance import BadSample


@dataclass(frozen=True, slots=True)
class StageStats:
    """One stage, since the loader was made or since an earlier record. Seconds a sample are wall time.

    Of stages of whole batches (collate, pin_memory, transfer), a sample's seconds are the batch's, divided by its
    samples. Percentiles are right to 4.5 %.
    """

    name: str  # "fetch", "decode", ..., "collate", "pin_memory", "transfer"
    executor: str  # "thread", "event loop", "inline", "lane", "process", or the class name of the user's executor
    threads: int  # or samples at once, for an event loop or an executor
    samples: int
    errors: int
    mean_seconds: float | None  # a sample; None: none yet, or not known
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None
    busy_seconds: float | None  # None: not known, as of torch's own worker processes
    busy_share: float | None  # of its threads' time, 0 to 1
    cpu_seconds: float | None  # estimated from some samples; None: of none it is known, as of coroutines
    queued: int  # samples that wait for it now


class _Kept:
    """What a record keeps beside its fields: the counters that it was made of, and whose they are."""

    __slots__ = ("_kept",)
    _kept: Any


@dataclass(frozen=True, slots=True)
class LoaderStats(_Kept):
    """A loader, since it was made or since an earlier record. ``print`` shows a table."""

    stages: tuple[StageStats, ...]
    elapsed_seconds: float  # wall time inside epochs
    batches: int  # handed out
    samples: int
    samples_per_second: float
    batches_in_flight: int
    bytes_in_flight: int | None  # where prefetch_bytes measures them
    wait_seconds: float  # that the user waited in next(), without set-up and first batch
    wait_p50_seconds: float | None  # a batch
    wait_p95_seconds: float | None
    wait_p99_seconds: float | None
    setup_seconds: float  # making threads, copying, first samples, summed over epochs
    first_batch_seconds: float | None  # latest epoch
    sampler_held_seconds: float  # all that may be in flight was made, and there was no room to begin another batch
    wait_share: float  # share of a step that is waiting, 0 to 1
    bad_samples: int  # that failed, and came as others or not at all
    filtered_samples: int  # left out by SkipSample
    bad: tuple[BadSample, ...]  # the latest of both since the loader was made, 100 at most
    bottleneck: str | None  # a stage's name, "training", or None when balanced or unknown
    advice: str  # one sentence

    def __str__(self) -> str:
        rows = [_row(stage, is_marked=stage.name == self.bottleneck) for stage in self.stages]
        in_flight = f"{self.batches_in_flight} batches in flight"
        if self.bytes_in_flight is not None:
            in_flight += f" ({self.bytes_in_flight / 2**20:.1f} MiB)"
        lines = (
            table(HEAD, rows),
            "",
            f"{self.batches} batches, {self.samples} samples in {self.elapsed_seconds:.2f} s: "
            f"{self.samples_per_second:.0f} samples/s; {in_flight}",
            f"waited {seconds(self.wait_seconds)}, {100 * self.wait_share:.0f} % of a step; a batch "
            f"p50 {seconds(self.wait_p50_seconds)}, p95 {seconds(self.wait_p95_seconds)}, "
            f"p99 {seconds(self.wait_p99_seconds)}",
            f"set-up {seconds(self.setup_seconds)}, first batch {seconds(self.first_batch_seconds)}, "
            f"sampler held {seconds(self.sampler_held_seconds)}",
            *self._bad_in_words(),
            self.advice,
        )
        return "\n".join(lines)

    def _bad_in_words(self) -> list[str]:
        if not self.bad_samples and not self.filtered_samples:
            return []
        head = f"{self.bad_samples} bad samples, {self.filtered_samples} left out by SkipSample"
        named = [f"  {one}" for one in self.bad[-NUM_NAMED:] if not one.is_filtered]
        return [head + (", the latest:" if named else ""), *named]


NUM_NAMED = 5  # bad samples in a printed record
HEAD = ("  stage", "runs in", "samples", "errors", "mean", "p50", "p95", "p99", "busy", "cpu s", "queued")


def _row(stage: StageStats, *, is_marked: bool) -> tuple[str, ...]:
    return (
        ("> " if is_marked else "  ") + stage.name,
        f"{stage.threads} x {stage.executor}",
        str(stage.samples),
        str(stage.errors),
        *(seconds(one) for one in (stage.mean_seconds, stage.p50_seconds, stage.p95_seconds, stage.p99_seconds)),
        "-" if stage.busy_share is None else f"{100 * stage.busy_share:.0f} %",
        "-" if stage.cpu_seconds is None else f"{stage.cpu_seconds:.2f}",
        str(stage.queued),
    )
