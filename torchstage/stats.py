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

    name: str
    """``"fetch"``, ``"decode"``, ..., ``"collate"``, ``"pin_memory"``, ``"transfer"``."""
    executor: str
    """``"thread"``, ``"event loop"``, ``"inline"``, ``"lane"``, ``"process"``, or the class of the user's executor."""
    threads: int
    """Or samples at once, for an event loop or an executor."""
    samples: int
    """That came to it."""
    errors: int
    """That it raised."""
    mean_seconds: float | None
    """A sample; None: none yet, or not known."""
    p50_seconds: float | None
    """Half of the samples took no longer."""
    p95_seconds: float | None
    """95 % of them."""
    p99_seconds: float | None
    """99 % of them."""
    busy_seconds: float | None
    """Of all its threads; None: not known, as of torch's own worker processes."""
    busy_share: float | None
    """Of its threads' time, 0 to 1."""
    cpu_seconds: float | None
    """Of its threads, estimated from some samples; None: of none it is known, as of coroutines."""
    queued: int
    """Samples that wait for it now."""


class _Kept:
    """What a record keeps beside its fields: the counters that it was made of, and whose they are."""

    __slots__ = ("_kept",)
    _kept: Any


@dataclass(frozen=True, slots=True)
class LoaderStats(_Kept):
    """A loader, since it was made or since an earlier record. ``print`` shows a table. Seconds are wall time."""

    stages: tuple[StageStats, ...]
    """In the order in which a sample goes through them."""
    elapsed_seconds: float
    """Inside epochs, from the first ``next()`` to the latest one that returned."""
    batches: int
    """Handed out, without errors."""
    samples: int
    """In these batches."""
    samples_per_second: float
    """Of ``elapsed_seconds``."""
    batches_in_flight: int
    """Begun and not yet handed out, now."""
    bytes_in_flight: int | None
    """Of these; None without ``prefetch_bytes``, which has them measured."""
    wait_seconds: float
    """That the user waited in ``next()``, without each epoch's first batch."""
    wait_p50_seconds: float | None
    """A batch: half of the waits were no longer."""
    wait_p95_seconds: float | None
    """95 % of them."""
    wait_p99_seconds: float | None
    """99 % of them."""
    setup_seconds: float
    """Making threads, copying, first samples; all epochs together."""
    first_batch_seconds: float | None
    """From the first ``next()`` of the latest epoch until it returned."""
    sampler_held_seconds: float
    """All that may be in flight was made, and there was no room to begin another batch."""
    wait_share: float
    """Share of a step that is waiting, 0 to 1."""
    bad_samples: int
    """That failed, and came as others or not at all."""
    filtered_samples: int
    """Left out by ``SkipSample``."""
    bad: tuple[BadSample, ...]
    """The latest of both since the loader was made, 100 at most."""
    bottleneck: str | None
    """A stage's name, ``"training"``, or None when balanced or unknown."""
    advice: str
    """What to do, in one sentence."""

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
