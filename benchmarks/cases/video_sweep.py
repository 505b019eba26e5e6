"""Video sweep: the case `video` with one worker to eight: cores that were kept busy, and the clips a second they gave.

Worker counts of different libraries mean different things, so the picture has measured cores on its other axis, as in
SPDL's guide for those who come from Grain. Each loader tries all counts, one after another, in a process of its own.
"""

from __future__ import annotations

from benchmarks.case import Case, Cell, Column, Headline
from benchmarks.cases.bulks import Clips, entries, measure
from benchmarks.cases.video import BATCH_SIZE
from benchmarks.loaders import Entry
from benchmarks.probes import Metrics

COUNTS, COUNTS_QUICK = (1, 2, 3, 4, 8), (1, 2, 4)
NUM_CLIPS = 32
NUM_EPOCHS, NUM_EPOCHS_QUICK = 2, 1  # after one to warm up
ENTRIES = tuple(entry.for_all_counts() for entry in entries(1))
OURS, PEERS, DATALOADER = ENTRIES[0], ENTRIES[1:-1], ENTRIES[-1]


def run(entry: Entry, quick: bool) -> Metrics:
    metrics: Metrics = {}
    dataset = Clips(NUM_CLIPS)
    for count in COUNTS_QUICK if quick else COUNTS:
        loader = entry.with_workers(count).build(dataset, BATCH_SIZE)
        num_epochs = NUM_EPOCHS_QUICK if quick else NUM_EPOCHS
        found = measure(loader, len(dataset), lambda batch: len(batch.frames), num_epochs)
        del loader  # its processes end here
        for name in ("clips_per_second", "cpu_cores", "clips_per_cpu_second"):
            metrics[f"{name}_{count}"] = found[name]
    return metrics


def _best_of(*of: Entry) -> tuple[Cell, ...]:
    return tuple(
        Cell(entry.key, f"clips_per_second_{n}", f"{entry.label}, {n} workers") for entry in of for n in COUNTS
    )


CASE = Case(
    name="video_sweep",
    title="Video clips, with one worker to eight",
    question=(
        f"The work of the case above with {NUM_CLIPS} clips, one epoch to warm up and {NUM_EPOCHS} that are timed, for "
        "each number of workers. A worker is a thread that decodes, of DataLoader a process."
    ),
    entries=ENTRIES,
    run=run,
    imports=("av", "torchstage.decode"),
    columns=(
        *(Column(f"clips_per_second_{count}", f"clips/s, {count}", 1) for count in COUNTS),
        *(Column(f"cpu_cores_{count}", f"CPU cores, {count}", 2) for count in COUNTS),
    ),
    headline=Headline(
        unit="clips/s, best of 1 to 8 workers",
        ours=_best_of(OURS),
        dataloader=_best_of(DATALOADER),
        peers=_best_of(*PEERS),
        digits=1,
        why="All are bound by the same decoder and the same cores; what differs is how well the cores are kept busy.",
    ),
    minutes=0.7,
)
