"""Decode images: JPEG files in, uint8 batches of 224 x 224 out, by the dataset's own loader and by `decode_image`.

The peers load as their users do: torchvision's `ImageFolder`, whose loader is Pillow, with `Resize` and `CenterCrop`.
Ours reads the same files, and scales the picture to 224 x 224 in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.case import Against, Case, Column, Goal, Round, best
from benchmarks.cases.photographs import folder
from benchmarks.loaders import Entry, dataloader, grain, nodes, spdl, stageloader
from benchmarks.probes import Metrics, train_through

NUM_IMAGES, NUM_IMAGES_QUICK = 512, 128
NUM_EPOCHS = 3
BATCH_SIZE = 32
SIDE = 224
DATALOADERS = (dataloader(0), dataloader(2), dataloader(4))


def _variant(name: str, label: str) -> Entry:
    entry = stageloader(2)
    return replace(entry, key=f"{entry.key}-{name}", label=f"{entry.label}, `decode_image`{label}")


SAME = stageloader(2)
EXACT = _variant("exact", "")
DRAFT = _variant("draft", ", `draft=True`")
TORCHVISION = _variant("torchvision", ', `backend="torchvision"`')
OPTIONS: dict[str, dict[str, Any]] = {
    EXACT.key: {},
    DRAFT.key: {"draft": True},
    TORCHVISION.key: {"backend": "torchvision"},
}


@dataclass(frozen=True)
class Photographs:
    """The paths and classes of a folder."""

    samples: list[tuple[str, int]]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        path, label = self.samples[index]
        return Path(path).read_bytes(), label


@dataclass(frozen=True)
class Decode:
    """A stage: a file's bytes and its class in, a picture of SIDE x SIDE and its class out."""

    options: dict[str, Any]

    def __call__(self, sample: tuple[bytes, int]) -> tuple[Any, int]:
        from torchstage.decode import decode_image

        data, label = sample
        return decode_image(data, (SIDE, SIDE), **self.options), label


def run(entry: Entry, quick: bool) -> Metrics:
    import warnings

    from torchvision import datasets, transforms

    warnings.filterwarnings("ignore", "The image decoding and encoding", DeprecationWarning)
    root = str(folder(NUM_IMAGES_QUICK if quick else NUM_IMAGES))
    resize = transforms.Compose([transforms.Resize(SIDE), transforms.CenterCrop(SIDE), transforms.PILToTensor()])
    images: Any = datasets.ImageFolder(root, resize)
    if entry.key in OPTIONS:
        from torchstage import Stage

        entry = replace(entry, options={**entry.options, "stages": [Stage(Decode(OPTIONS[entry.key]), "decode")]})
        images = Photographs(images.samples)
    return train_through(entry.build(images, BATCH_SIZE, shuffle=True), NUM_EPOCHS, lambda batch: len(batch[1]))


def _speed_of(ours: Entry) -> Callable[[Round], float]:
    def speed(round_: Round) -> float:
        fastest = best(round_, DATALOADERS, "samples_per_second")
        return round_[ours.key]["samples_per_second"] / round_[fastest]["samples_per_second"]

    return speed


CASE = Case(
    name="decode_images",
    title="JPEG files to 224 x 224, uint8",
    question=(
        f"{NUM_IMAGES} JPEG files of 500 x 375 pixels, batch {BATCH_SIZE}, shuffled, {NUM_EPOCHS} epochs. The first "
        "rows: torchvision's `ImageFolder` with Resize(224), CenterCrop(224), PILToTensor. The rows with "
        "`decode_image` scale the whole picture to 224 x 224: exactly as Pillow does, with a smaller decode where the "
        "picture is twice as large (`draft`; these are not quite), and by torchvision."
    ),
    entries=(*DATALOADERS, SAME, EXACT, DRAFT, TORCHVISION, spdl(2, "completion"), grain(2), nodes(2)),
    left_out_when_quick=(dataloader(4), spdl(2, "completion"), nodes(2)),
    run=run,
    imports=("torchvision",),
    columns=(
        Column("samples_per_second", "images/s", 0),
        Column("cpu_ms_per_sample", "CPU ms an image", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    against=Against("samples_per_second", DATALOADERS),
    goals=(
        Goal("`decode_image`, torchvision, images/s against DataLoader's best", _speed_of(TORCHVISION), at_least=1.5),
        Goal("`decode_image`, Pillow, images/s against DataLoader's best", _speed_of(EXACT), at_least=1.5),
    ),
)
