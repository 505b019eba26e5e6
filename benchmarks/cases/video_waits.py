"""Video, waits: the measured times of the case `video` slept in 16 workers, so that many cores can be played.

What is left is what the loaders themselves do: their order, their overlap, their CPU time.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.case import Case, Column, Goal, Round
from benchmarks.cases.bulks import NUM_EPOCHS, Waits, entries, measure
from benchmarks.cases.video import BATCH_SIZE, NUM_CLIPS
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics

NUM_WORKERS = 16
ENTRIES = entries(NUM_WORKERS)
OURS, COMPLETION = ENTRIES[0], ENTRIES[1]


def run(entry: Entry, quick: bool) -> Metrics:
    dataset = Waits(NUM_CLIPS)  # also when quick: an epoch takes half a second
    metrics = measure(entry.build(dataset, BATCH_SIZE), len(dataset), len)
    ideal = NUM_EPOCHS * sum(dataset.clip_seconds) / NUM_WORKERS
    return metrics | {"efficiency": ideal / metrics["seconds"]}


def _against(metric: str) -> Callable[[Round], float]:
    return lambda round_: round_[OURS.key][metric] / round_[COMPLETION.key][metric]


CASE = Case(
    name="video_waits",
    title="Video clips, their times slept by 16 workers",
    question=(
        "The CPU times of reading and decoding the clips of the case above, one by one, replayed as sleeps: "
        f"{NUM_CLIPS} clips in bulks of 4, {NUM_WORKERS} workers, batch {BATCH_SIZE}, one epoch to warm up and three "
        "that are timed. Efficiency: the decoding times added up and divided by the workers / the time taken."
    ),
    entries=ENTRIES,
    run=run,
    imports=("torchstage.decode",),
    columns=(
        Column("clips_per_second", "clips/s", 0),
        Column("efficiency", "efficiency", 2),
        Column("cpu_cores", "CPU cores", 2),
        Column("clips_per_cpu_second", "clips a CPU second", 0),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    goals=(
        Goal("in order, clips a CPU second against SPDL in completion order", _against("clips_per_cpu_second"), 1.2),
        Goal("in order, clips/s against SPDL in completion order", _against("clips_per_second"), 1.2),
    ),
)
