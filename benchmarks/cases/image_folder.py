"""Image folder: JPEG files in, normalised batches of 32 out, through the transforms of most training scripts.

The dataset is torchvision's own `ImageFolder`, unchanged, with the transforms that scripts for ImageNet
apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.adapters import stage_loader
from benchmarks.case import Against, Case, Column, Goal, Headline, Round, against_best, best, cells
from benchmarks.cases.photographs import folder
from benchmarks.loaders import (
    Entry,
    dataloader,
    grain,
    grain_in_processes,
    nodes,
    spdl,
    stageloader,
    stateful_dataloader,
)
from benchmarks.placed import THREAD, placed
from benchmarks.probes import Metrics, train_through

NUM_IMAGES, NUM_IMAGES_QUICK = 256, 128
NUM_EPOCHS = 2
BATCH_SIZE = 32
DATALOADERS = (dataloader(0), dataloader(2), dataloader(4))
OURS = stageloader(2)
PEERS = (
    stateful_dataloader(2),
    spdl(2, "input"),
    spdl(2, "completion"),
    grain(2),
    grain_in_processes(2),
    nodes(2),
    nodes(2, whole_batches=True),
)


def dataset(num_images: int) -> Any:
    from torchvision import datasets, transforms

    return datasets.ImageFolder(
        str(folder(num_images)),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
            ]
        ),
    )


def opened(sample: tuple[str, int]) -> tuple[Any, int]:
    from torchvision.datasets.folder import default_loader

    path, label = sample
    return default_loader(path), label


def staged(images: Any, batch_size: int, num_workers: int, *, shuffle: bool = False) -> Iterable[Any]:
    """The same work as stages by hand: the list of paths, opening, transforms."""
    from torchstage import Stage

    def transformed(sample: tuple[Any, int]) -> tuple[Any, int]:
        picture, label = sample
        return images.transform(picture), label

    stages = [Stage(opened, name="decode"), Stage(transformed, name="transform")]
    return stage_loader(images.samples, batch_size, num_workers, shuffle=shuffle, stages=stages)


STAGED = Entry("stageloader-staged-2", "**StageLoader**, stages by hand, 2 threads", "torchstage", staged, 2)


def run(entry: Entry, quick: bool) -> Metrics:
    images = dataset(NUM_IMAGES_QUICK if quick else NUM_IMAGES)
    return train_through(entry.build(images, BATCH_SIZE, shuffle=True), NUM_EPOCHS, lambda batch: len(batch[1]))


def _cpu(round_: Round) -> float:
    fastest = best(round_, DATALOADERS, "samples_per_second")
    return round_[OURS.key]["cpu_ms_per_sample"] / round_[fastest]["cpu_ms_per_sample"]


def _memory(round_: Round) -> float:
    return round_[OURS.key]["added_pss_mib"] / round_[dataloader(2).key]["added_pss_mib"]


CASE = Case(
    name="image_folder",
    title="An unmodified torchvision ImageFolder",
    question=(
        f"{NUM_IMAGES} JPEG files of 500 x 375 pixels, RandomResizedCrop(224), flip, ToTensor, Normalize, "
        f"batch {BATCH_SIZE}, shuffled, {NUM_EPOCHS} epochs. CPU time and memory are those of the whole "
        "process tree; the memory is watched in one epoch more, and leaves out the mapped files of libraries."
    ),
    entries=(
        *DATALOADERS,
        OURS,
        stageloader(4),
        placed(THREAD, 2),
        STAGED,
        *PEERS,
    ),
    left_out_when_quick=(
        dataloader(4),
        stageloader(4),
        placed(THREAD, 2),
        STAGED,
        spdl(2, "input"),
        grain_in_processes(2),
        nodes(2, whole_batches=True),
    ),
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
            "StageLoader with 2 threads, images/s against DataLoader's best",
            against_best(OURS, DATALOADERS),
            at_least=1.2,
        ),
        Goal("the same, CPU time an image against that DataLoader", _cpu, at_most=0.8),
        Goal("the same, added PSS against DataLoader with 2 workers", _memory, at_most=1.0),
    ),
    headline=Headline(
        unit="images/s",
        ours=cells("samples_per_second", OURS),
        dataloader=cells("samples_per_second", *DATALOADERS),
        peers=cells("samples_per_second", *PEERS),
        why=(
            "Decoding gives the GIL away, ToTensor, Normalize and the flip hold it: two threads cannot do quite what "
            "two processes do (docs/profiles.md shows the ceiling). Nothing is copied from process to process."
        ),
    ),
    minutes=1.1,
)
