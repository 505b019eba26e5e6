"""Decode images: JPEG files in, uint8 batches of 32 out: `decode_image` against the loader function of `ImageFolder`.

All rows do the same to the same files: shorter side to 256, the middle 224 x 224, a uint8 tensor. The peers do so as
their users write it: `ImageFolder` with its own loader, `Resize(256)`, `CenterCrop(224)`, `PILToTensor()`. Ours is a
map-style dataset whose `__getitem__` calls `decode_image`; with Pillow its batches are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from benchmarks.case import Against, Case, Column, Goal, Headline, against_best, cells
from benchmarks.cases.photographs import folder
from benchmarks.loaders import Entry, dataloader, stageloader
from benchmarks.probes import Metrics, train_through

NUM_IMAGES, NUM_IMAGES_QUICK = 256, 128
NUM_EPOCHS = 2
BATCH_SIZE = 32
SHORTER_SIDE, CROP = 256, 224

DATALOADERS = (dataloader(0), dataloader(2), dataloader(4))


def ours(key: str, label: str, loader: Entry) -> Entry:
    return replace(loader, key=f"{key}-{loader.key}", label=f"{loader.label}, `decode_image`, {label}")


EXACT = ours("exact", "Pillow", stageloader(2))
DRAFT = ours("draft", "Pillow, draft allowed", stageloader(2))
TORCHVISION = ours("torchvision", "torchvision", stageloader(2))
BEST = ours("best", "torchvision, draft allowed", stageloader(2))
IN_DATALOADER = ours("best", "torchvision, draft allowed", dataloader(2))
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    EXACT.key: {},
    DRAFT.key: {"draft": True},
    TORCHVISION.key: {"backend": "torchvision"},
    BEST.key: {"backend": "torchvision", "draft": True},
    IN_DATALOADER.key: {"backend": "torchvision", "draft": True},
}


class Decoded(Dataset[tuple[Tensor, int]]):
    """The files of an `ImageFolder`, decoded by `decode_image`."""

    def __init__(self, samples: list[tuple[str, int]], options: Mapping[str, Any]) -> None:
        self.samples = samples
        self.options = dict(options)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from torchstage.decode import decode_image

        path, label = self.samples[index]
        picture = decode_image(path, SHORTER_SIDE, **self.options)
        top, left = (round((side - CROP) / 2) for side in picture.shape[1:])  # as CenterCrop rounds
        return picture[:, top : top + CROP, left : left + CROP], label


def dataset(entry: Entry, root: Path) -> Any:
    from torchvision import datasets, transforms

    crop = [transforms.Resize(SHORTER_SIDE), transforms.CenterCrop(CROP), transforms.PILToTensor()]
    images = datasets.ImageFolder(str(root), transforms.Compose(crop))
    return Decoded(images.samples, OPTIONS[entry.key]) if entry.key in OPTIONS else images


def run_on(make_folder: Callable[[int], Path], num_images: int, num_images_quick: int) -> Callable[..., Metrics]:
    def run(entry: Entry, quick: bool) -> Metrics:
        images = dataset(entry, make_folder(num_images_quick if quick else num_images))
        return train_through(entry.build(images, BATCH_SIZE, shuffle=True), NUM_EPOCHS, lambda batch: len(batch[1]))

    return run


CASE = Case(
    name="decode_images",
    title="A folder of JPEG files through decode_image",
    question=(
        f"{NUM_IMAGES} JPEG files of 500 x 375 pixels, shorter side to {SHORTER_SIDE}, the middle {CROP} x {CROP}, "
        f"uint8, batch {BATCH_SIZE}, shuffled, {NUM_EPOCHS} epochs. Rows without `decode_image` are torchvision's "
        "ImageFolder with its own loader. Files are less than twice the wanted size, so no draft is made here."
    ),
    entries=(*DATALOADERS, stageloader(2), EXACT, TORCHVISION, BEST, IN_DATALOADER),
    left_out_when_quick=(TORCHVISION,),
    run=run_on(folder, NUM_IMAGES, NUM_IMAGES_QUICK),
    imports=("torchvision", "PIL.Image"),
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
            "StageLoader with 2 threads and decode_image, images/s against DataLoader's best",
            against_best(BEST, DATALOADERS),
            at_least=1.5,
        ),
    ),
    headline=Headline(
        unit="images/s, `decode_image` against Pillow",
        ours=cells("samples_per_second", BEST),
        dataloader=cells("samples_per_second", *DATALOADERS),
        peers=(),
        why="`decode_image` with torchvision's decoder needs less time an image than Pillow, in any loader.",
    ),
    minutes=0.6,
)
