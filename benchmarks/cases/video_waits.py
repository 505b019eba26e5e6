"""Video, waits: the measured times of the case `video` slept in 8, 16 and 32 workers, so that many cores can be played.

What is left is what the loaders themselves do: their order, their overlap, their CPU time. A sleep holds no GIL.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.cases.bulks import NUM_EPOCHS, Waits, entries, measure
from benchmarks.cases.video import BATCH_SIZE, NUM_CLIPS
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics

COUNTS = (8, 16, 32)
FEWEST = COUNTS[0]
GOAL_COUNT = 16
ENTRIES = tuple(entry.for_all_counts() for entry in entries(FEWEST))
OURS, COMPLETION, PEERS, DATALOADER = ENTRIES[0], ENTRIES[1], ENTRIES[1:-1], ENTRIES[-1]


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    for count in COUNTS:  # also when quick: an epoch takes half a second
        dataset = Waits(NUM_CLIPS, count // FEWEST)  # as much for each worker, whatever their number
        loader = entry.with_workers(count).build(dataset, BATCH_SIZE)
        found = measure(loader, len(dataset), len)
        del loader  # its processes end here
        ideal = NUM_EPOCHS * sum(dataset.clip_seconds) / count
        found["efficiency"] = ideal / found["seconds"]
        metrics |= {f"{name}_{count}": value for name, value in found.items()}
    return metrics


def _against(metric: str) -> Callable[[Round], float]:
    name = f"{metric}_{GOAL_COUNT}"
    return lambda round_: round_[OURS.key][name] / round_[COMPLETION.key][name]


CASE = Case(
    name="video_waits",
    title="Video clips, their times slept by 8, 16 and 32 workers",
    question=(
        "The CPU times of reading and decoding the clips of the case `video`, one by one, replayed as sleeps: "
        f"{NUM_CLIPS} clips for each {FEWEST} workers, in bulks of 4, batch {BATCH_SIZE}, one epoch to warm up and "
        "three that are timed. Efficiency: the decoding times added up and divided by the workers / the time taken."
    ),
    entries=ENTRIES,
    run=run,
    imports=("torchstage.decode",),
    columns=(
        *(Column(f"clips_per_second_{count}", f"clips/s, {count}", 0) for count in COUNTS),
        *(Column(f"efficiency_{count}", f"efficiency, {count}", 2) for count in COUNTS),
        *(Column(f"cpu_cores_{count}", f"CPU cores, {count}", 2) for count in COUNTS),
        *(Column(f"added_pss_mib_{count}", f"added PSS, MiB, {count}", 0) for count in COUNTS),
    ),
    goals=(
        Goal(
            f"in order, {GOAL_COUNT} workers, clips a CPU second against SPDL in completion order",
            _against("clips_per_cpu_second"),
            1.2,
        ),
        Goal(
            f"in order, {GOAL_COUNT} workers, clips/s against SPDL in completion order",
            _against("clips_per_second"),
            1.2,
        ),
    ),
    headline=Headline(
        unit="clips/s, 32 workers",
        ours=cells("clips_per_second_32", OURS),
        dataloader=cells("clips_per_second_32", DATALOADER),
        peers=cells("clips_per_second_32", *PEERS),
        why=(
            "Nothing is bound by the cores here. A loader is ahead if no worker waits: for a slow clip before its own, "
            "for a batch to be handed out, or for the loader itself."
        ),
    ),
    minutes=0.9,
)
