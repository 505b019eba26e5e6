"""Decode, places: the same decoding and augmentation in threads, in processes, and in threads without a GIL.

The row of an interpreter without GIL is measured where one is on PATH and imports torch and torchvision; elsewhere it
says that there is none.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.case import Case, Column, Headline, cells
from benchmarks.cases.image_folder import BATCH_SIZE, dataset
from benchmarks.loaders import Entry, dataloader
from benchmarks.placed import PROCESS, THREAD, placed
from benchmarks.probes import Metrics, close, train_through

NUM_IMAGES, NUM_IMAGES_QUICK = 256, 128
NUM_EPOCHS = 2  # after one to warm up
COUNTS = (1, 2)
INTERPRETERS = ("python3.14t", "python3.13t")
THREADS = tuple(placed(THREAD, count) for count in COUNTS)
PROCESSES = tuple(placed(PROCESS, count) for count in COUNTS)
FREE = tuple(
    replace(
        entry,
        key=f"{entry.key}-free",
        label=f"{entry.label}, interpreter without GIL",
        imports=(*entry.imports, "torchvision", "PIL.Image", "psutil"),
        interpreters=INTERPRETERS,
    )
    for entry in THREADS
)
DATALOADER = dataloader(2)


def run(entry: Entry, quick: bool) -> Metrics:
    images = dataset(NUM_IMAGES_QUICK if quick else NUM_IMAGES)
    loader = entry.build(images, BATCH_SIZE, shuffle=True)
    metrics = train_through(loader, NUM_EPOCHS, lambda batch: len(batch[1]), warm_up=True)
    close(loader)
    return metrics


CASE = Case(
    name="decode_places",
    title="One decoder in threads, in processes, and without a GIL",
    question=(
        f"The files and transforms of the image case, {NUM_IMAGES} images, batch {BATCH_SIZE}, shuffled, one epoch to "
        f"warm up and {NUM_EPOCHS} that are timed."
    ),
    entries=(DATALOADER, *THREADS, *PROCESSES, *FREE),
    run=run,
    imports=("torchvision",),
    columns=(
        Column("samples_per_second", "images/s", 0),
        Column("samples_per_second_after_first", "images/s after the first batch", 0),
        Column("cpu_ms_per_sample", "CPU ms an image", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    headline=Headline(
        unit="images/s, the better of threads and processes",
        ours=cells("samples_per_second", THREADS[1], PROCESSES[1]),
        dataloader=cells("samples_per_second", DATALOADER),
        peers=(),
        why="Threads share the GIL for as long as the transforms hold it; processes do not, and pay for the way back.",
    ),
    minutes=0.4,
)
