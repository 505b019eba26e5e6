"""Accounts: a loader's ledger in, a record of what was done since it was made, or since an earlier record, out.

Guarantees: the difference of two records of one loader is exact, but for percentiles, which are right to 4.5 %.
"""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from torchstage.advice import Busy, Crowd, Situation, advice_of
from torchstage.engine.histogram import NUM_BINS, Histogram, joined, percentile
from torchstage.engine.ledger import Ledger, Site, Total
from torchstage.engine.parking import usable_cores
from torchstage.engine.ticket import Batch, Part
from torchstage.lineup import TORCHS, Lined
from torchstage.stats import LoaderStats, StageStats


def stats_of(ledger: Ledger, since: LoaderStats | None) -> LoaderStats:
    """A record of all that the ledger has, or of what came since an earlier record of it."""
    now = ledger.total()
    seen = now if since is None else now.plus(_kept_of(since, ledger), -1)
    in_flight = [batch for steps in ledger.consumers for batch in steps.look()]
    lineup: tuple[Lined, ...] = ledger.lineup
    queued = queued_in(in_flight)
    lined = _lined(lineup, seen)
    stages = tuple(_stage(one, seen, queued) for one in lined)
    numbers = seen.numbers
    elapsed, waited = numbers["elapsed_seconds"], numbers["wait_seconds"]
    step_seconds = waited + numbers["between_seconds"]
    wait_share = waited / step_seconds if step_seconds > 0 else 0.0
    situation = Situation(
        _crowds(lined, stages),
        sum(seen.waits),
        elapsed,
        wait_share,
        numbers["held_seconds"] / elapsed if elapsed > 0 else 0.0,
        int(numbers["num_beats"]),
        numbers["late_seconds"] / numbers["beat_seconds"] if numbers["beat_seconds"] > 0 else 0.0,
        usable_cores(),
        has_gil(),
        {} if ledger.placement is None else ledger.placement.words,
        max(0.0, elapsed - step_seconds),
    )
    bottleneck, advice = advice_of(situation)
    record = LoaderStats(
        stages=stages,
        elapsed_seconds=elapsed,
        batches=int(numbers["num_batches"]),
        samples=int(numbers["num_samples"]),
        samples_per_second=numbers["num_samples"] / elapsed if elapsed > 0 else 0.0,
        batches_in_flight=len(in_flight) + sum(steps.num_elsewhere() for steps in ledger.consumers),
        bytes_in_flight=_bytes(ledger),
        wait_seconds=waited,
        wait_p50_seconds=percentile(seen.waits, 0.50),
        wait_p95_seconds=percentile(seen.waits, 0.95),
        wait_p99_seconds=percentile(seen.waits, 0.99),
        setup_seconds=numbers["setup_seconds"],
        first_batch_seconds=now.first[1],
        sampler_held_seconds=numbers["held_seconds"],
        wait_share=wait_share,
        bad_samples=int(numbers["num_bad"]),
        filtered_samples=int(numbers["num_filtered"]),
        bad=tuple(ledger.bad),
        bottleneck=bottleneck,
        advice=advice,
    )
    object.__setattr__(record, "_kept", (ledger, now))
    return record


def has_gil() -> bool:
    """Whether one thread at a time runs Python code here."""
    is_on: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    return is_on()


def _kept_of(since: LoaderStats, ledger: Ledger) -> Total:
    kept: Any = getattr(since, "_kept", None)
    if kept is None or kept[0] is not ledger:
        raise ValueError(
            "StageLoader.stats: since must be a record that this loader's own stats() gave in this process, got one of "
            "another loader, or a copy. Keep the record itself."
        )
    return kept[1]


def _bytes(ledger: Ledger) -> int | None:
    sizes = [(steps.num_bytes(), len(steps.look())) for steps in ledger.consumers]
    known = [size * number for size, number in sizes if size is not None]
    return sum(known) if known else None


def queued_in(in_flight: list[Batch]) -> Counter[str]:
    """Samples that wait for each stage."""
    queued: Counter[str] = Counter()
    for batch in in_flight:
        part: Part | None = batch.first
        while part is not None:
            queued[part.segment.stage] += len(part.todo) * (batch.num_each if part.todo else 1)
            part = part.next
    return queued


def _lined(lineup: tuple[Lined, ...], seen: Total) -> list[Lined]:
    """The stages as they run now, and those that ran before and are gone."""
    known = {(lined.of_batches, lined.name) for lined in lineup}
    site = lineup[0].site if lineup else Site("thread", 1)
    gone = [Lined(name, key[0], site) for key in seen.works for name in key[1] if (key[0], name) not in known]
    return [*lineup, *dict.fromkeys(gone)]


def _stage(lined: Lined, seen: Total, queued: Counter[str]) -> StageStats:
    samples, errors, busy, cpu = 0, 0, 0.0, 0.0
    histogram: Histogram = [0] * NUM_BINS
    for (of_batches, names), work in seen.works.items():
        if of_batches is not lined.of_batches or lined.name not in names:
            continue
        at = names.index(lined.name)
        one = work.stages[at]
        timed = sum(stage.seconds for stage in work.stages)
        own = work.seconds * one.seconds / timed if timed > 0 else work.seconds / len(names)
        samples += work.num_samples - sum(before.num_lost for before in work.stages[:at])
        errors += one.num_errors
        busy += own
        cpu += own * one.cpu_seconds / one.cpu_of_seconds if one.cpu_of_seconds > 0 else 0.0
        histogram = joined(histogram, one.histogram)
    site = lined.site
    # A sample is counted before its time is; of torch's workers only the samples are known.
    is_known = busy > 0 or samples <= 0 or site.label != TORCHS
    capacity = site.size * seen.numbers["elapsed_seconds"] - seen.parked.get(site.label, 0.0)
    return StageStats(
        name=lined.name,
        executor=site.executor,
        threads=site.size,
        samples=max(0, samples),
        errors=errors,
        mean_seconds=busy / samples if samples > 0 and busy > 0 else None,
        p50_seconds=percentile(histogram, 0.50),
        p95_seconds=percentile(histogram, 0.95),
        p99_seconds=percentile(histogram, 0.99),
        busy_seconds=busy if is_known else None,
        busy_share=None if not is_known else min(1.0, busy / capacity) if capacity > 0 else 0.0,
        # Short work may not have been asked for it yet; a thread that runs coroutines cannot tell theirs apart.
        cpu_seconds=cpu if is_known and (samples <= 0 or site.executor != "event loop") else None,
        queued=0 if lined.of_batches else queued[lined.name],
    )


def _crowds(lined: list[Lined], stages: tuple[StageStats, ...]) -> list[Crowd]:
    """The stages by the place where they run; the first is the loader's own threads if any stage is there."""
    sites = dict.fromkeys(one.site for one in lined)
    homes = {one.site for one in lined if one.of_batches}
    return [
        Crowd(
            site.executor,
            site.size,
            [
                Busy(stage.name, stage.busy_share or 0.0, stage.cpu_seconds or 0.0, stage.mean_seconds, one.of_batches)
                for one, stage in zip(lined, stages, strict=True)
                if one.site is site
            ],
            is_home=site in homes,
            num_wanted=site.wanted,
        )
        for site in sites
    ]
