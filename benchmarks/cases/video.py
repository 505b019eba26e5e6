"""Video: clips read in bulks of four, eight frames of each decoded to 224 x 224, batches of eight, in two threads.

The workload of SPDL's guide for those who come from Grain, cut to two cores. The decoder is `decode_video` for all.
"""

from __future__ import annotations

from benchmarks.case import Case, Column, Goal, Headline, Round, cells
from benchmarks.cases.bulks import Clips, entries, measure
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics

NUM_CLIPS, NUM_CLIPS_QUICK = 128, 32
BATCH_SIZE = 8
ENTRIES = entries(2)
OURS, COMPLETION = ENTRIES[0], ENTRIES[1]


def run(entry: Entry, quick: bool) -> Metrics:
    dataset = Clips(NUM_CLIPS_QUICK if quick else NUM_CLIPS)
    return measure(entry.build(dataset, BATCH_SIZE), len(dataset), lambda batch: len(batch.frames))


def _ratio(round_: Round) -> float:
    return round_[OURS.key]["clips_per_cpu_second"] / round_[COMPLETION.key]["clips_per_cpu_second"]


CASE = Case(
    name="video",
    title="Video clips, decoded",
    question=(
        f"{NUM_CLIPS} H.264 clips of 320 x 240 pixels and 90 frames, read in bulks of 4; 8 frames of 224 x 224 a clip; "
        f"batch {BATCH_SIZE}; one epoch to warm up, three that are timed. `decode_video` decodes for every loader. CPU "
        "time and memory are those of the whole process tree; the memory is the peak of the first epoch."
    ),
    entries=ENTRIES,
    run=run,
    imports=("av", "torchstage.decode"),
    columns=(
        Column("clips_per_second", "clips/s", 1),
        Column("clips_per_second_after_first", "clips/s after the first batch", 1),
        Column("cpu_cores", "CPU cores", 2),
        Column("clips_per_cpu_second", "clips a CPU second", 1),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    goals=(Goal("in order, clips a CPU second against SPDL in completion order", _ratio, at_least=1.0),),
    headline=Headline(
        unit="clips/s",
        ours=cells("clips_per_second", OURS),
        dataloader=cells("clips_per_second", ENTRIES[-1]),
        peers=cells("clips_per_second", *ENTRIES[1:-1]),
        digits=1,
        why="Two cores decode, whoever hands them the clips: what the loader itself computes is taken from them.",
    ),
    minutes=0.9,
)
