"""JPEG stream: an iterable dataset of JPEG bytes in, normalised batches of 32 out: lanes against worker processes.

Each reader takes every n-th file of a list in memory, decodes it and applies the transforms of the image case.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.case import Against, Case, Column, Goal, Headline, against_best, cells
from benchmarks.cases.image_folder import BATCH_SIZE, NUM_EPOCHS, NUM_IMAGES, NUM_IMAGES_QUICK, dataset
from benchmarks.loaders import Entry, dataloader, stageloader
from benchmarks.probes import Metrics, train_through

DATALOADERS = (dataloader(0), dataloader(2))
OURS = stageloader(2)


class Stream(IterableDataset[Any]):
    """The files' bytes, decoded as they come."""

    def __init__(self, num_images: int) -> None:
        folder = dataset(num_images)
        self.transform = folder.transform
        self.files: list[tuple[bytes, int]] = []
        for path, label in folder.samples:
            with open(path, "rb") as file:  # noqa: PTH123  # as folder.samples gives it
                self.files.append((file.read(), label))

    def __iter__(self) -> Iterator[Any]:
        from PIL import Image

        info = get_worker_info()
        number, step = (0, 1) if info is None else (info.id, info.num_workers)
        for data, label in self.files[number::step]:
            yield self.transform(Image.open(io.BytesIO(data)).convert("RGB")), label


def run(entry: Entry, quick: bool) -> Metrics:
    stream = Stream(NUM_IMAGES_QUICK if quick else NUM_IMAGES)
    return train_through(entry.build(stream, BATCH_SIZE), NUM_EPOCHS, lambda batch: len(batch[1]))


def _against_two_workers(metric: str) -> Any:
    return lambda round_: round_[OURS.key][metric] / round_[dataloader(2).key][metric]


CASE = Case(
    name="jpeg_stream",
    title="An iterable dataset of JPEG bytes",
    question=(
        f"{NUM_IMAGES} JPEG files of 500 x 375 pixels in memory, an `IterableDataset` that shards itself by "
        f"`get_worker_info()`, the transforms of the image case, batch {BATCH_SIZE}, {NUM_EPOCHS} epochs."
    ),
    entries=(*DATALOADERS, OURS),
    run=run,
    imports=("torchvision",),
    columns=(
        Column("samples_per_second", "images/s", 0),
        Column("samples_per_second_after_first", "images/s after the first batch", 0),
        Column("cpu_ms_per_sample", "CPU ms an image", 2),
        Column("first_batch_seconds", "first batch, s", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    against=Against("samples_per_second", DATALOADERS),
    goals=(
        Goal(
            "StageLoader in 2 lanes, images/s against DataLoader's best", against_best(OURS, DATALOADERS), at_least=1.1
        ),
        Goal(
            "the same, added PSS against DataLoader with 2 workers", _against_two_workers("added_pss_mib"), at_most=1.0
        ),
    ),
    headline=Headline(
        unit="images/s",
        ours=cells("samples_per_second", OURS),
        dataloader=cells("samples_per_second", *DATALOADERS),
        peers=(),
        why="As in the image case; each lane is a thread that does what a worker process would.",
    ),
    minutes=0.2,
)
