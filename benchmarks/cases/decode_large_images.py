"""Decode large images: as `decode_images`, of photographs of 2000 x 1500 pixels, where a draft can be made."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.case import Against, Case, Column, Goal, Headline, against_best, cells
from benchmarks.cases.decode_images import (
    BATCH_SIZE,
    BEST,
    CROP,
    DATALOADERS,
    DRAFT,
    NUM_EPOCHS,
    SHORTER_SIDE,
    run_on,
)
from benchmarks.cases.kept import kept
from benchmarks.cases.photographs import HEIGHT, QUALITY, WIDTH, folder
from benchmarks.loaders import stageloader

NUM_IMAGES, NUM_IMAGES_QUICK = 96, 32
SIDE = 4  # photographs in a row and in a column: all of it has the detail of a photograph
VERSION = 1  # raise it when the files change


def mosaics(num_images: int) -> Path:
    """`num_images` files, each of 16 photographs side by side; made once, their bytes in the page cache."""
    return kept(f"mosaic-v{VERSION}-{num_images}", partial(_fill, num_images), "*/*.jpg")


def _fill(num_images: int, path: Path) -> None:
    from PIL import Image

    photographs = sorted(folder(512).glob("*/*.jpg"), key=lambda file: file.name)
    (path / "mosaic").mkdir()
    for number in range(num_images):
        mosaic = Image.new("RGB", (SIDE * WIDTH, SIDE * HEIGHT))
        for place in range(SIDE * SIDE):
            with Image.open(photographs[(number * SIDE * SIDE + place) % len(photographs)]) as photograph:
                mosaic.paste(photograph, (place % SIDE * WIDTH, place // SIDE * HEIGHT))
        mosaic.save(path / "mosaic" / f"{number:05}.jpg", quality=QUALITY)


CASE = Case(
    name="decode_large_images",
    title="Large photographs through decode_image",
    question=(
        f"{NUM_IMAGES} JPEG files of {SIDE * WIDTH} x {SIDE * HEIGHT} pixels, shorter side to {SHORTER_SIDE}, the "
        f"middle {CROP} x {CROP}, uint8, batch {BATCH_SIZE}, shuffled, {NUM_EPOCHS} epochs. Where a draft is allowed, "
        "libjpeg decodes at a quarter of the size. Rows without `decode_image` are torchvision's ImageFolder."
    ),
    entries=(*DATALOADERS[:2], stageloader(2), DRAFT, BEST),
    left_out_when_quick=(DRAFT,),
    run=run_on(mosaics, NUM_IMAGES, NUM_IMAGES_QUICK),
    imports=("torchvision", "PIL.Image"),
    columns=(
        Column("samples_per_second", "images/s", 0),
        Column("cpu_ms_per_sample", "CPU ms an image", 2),
        Column("first_batch_seconds", "first batch, s", 2),
        Column("added_pss_mib", "added PSS, MiB", 0),
    ),
    against=Against("samples_per_second", DATALOADERS[:2]),
    goals=(
        Goal(
            "StageLoader with 2 threads and decode_image, images/s against DataLoader's best",
            against_best(BEST, DATALOADERS[:2]),
            at_least=1.5,
        ),
    ),
    headline=Headline(
        unit="images/s, `decode_image` with a draft against Pillow",
        ours=cells("samples_per_second", BEST),
        dataloader=cells("samples_per_second", *DATALOADERS[:2]),
        peers=(),
        why="A JPEG that is much larger than what is wanted of it can be decoded at a half, a quarter or an eighth.",
    ),
    minutes=0.5,
)
