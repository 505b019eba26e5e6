"""Photographs: nothing in, a folder of real JPEG files out, as torchvision's `ImageFolder` wants it.

Crops of the photographs that scikit-image and scikit-learn ship, one class each. Guarantees: the same files
every time; made once and kept under the system's temporary folder; a folder half made is never seen under
the final name.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from benchmarks.cases.kept import kept

WIDTH, HEIGHT = 500, 375
QUALITY = 90
SMALLEST_CROP_WIDTH = 200  # below it, blown-up pixels compress far better than a photograph does
VERSION = 1  # raise it when the files change: the folder of another version is left alone


def folder(num_images: int) -> Path:
    """`num_images` files of 500 x 375 pixels, their bytes already in the page cache."""
    return kept(f"jpeg-v{VERSION}-{num_images}", partial(_fill, num_images), "*/*.jpg")


def _fill(num_images: int, path: Path) -> None:
    import numpy as np
    from PIL import Image
    from skimage import data
    from sklearn.datasets import load_sample_image

    photographs = {
        "astronaut": data.astronaut(),
        "cat": data.cat(),
        "coffee": data.coffee(),
        "rocket": data.rocket(),
        "tissue": data.immunohistochemistry(),
        "motorcycle": data.stereo_motorcycle()[0],
        "china": load_sample_image("china.jpg"),
        "flower": load_sample_image("flower.jpg"),
    }
    random_ = random.Random(0)
    for number in range(num_images):
        name = sorted(photographs)[number % len(photographs)]
        picture = Image.fromarray(np.asarray(photographs[name])[..., :3])
        crop_width = random_.randint(SMALLEST_CROP_WIDTH, min(picture.width, picture.height * WIDTH // HEIGHT))
        crop_height = crop_width * HEIGHT // WIDTH
        left = random_.randint(0, picture.width - crop_width)
        top = random_.randint(0, picture.height - crop_height)
        crop = picture.crop((left, top, left + crop_width, top + crop_height))
        (path / name).mkdir(exist_ok=True)
        crop.resize((WIDTH, HEIGHT)).save(path / name / f"{number:05}.jpg", quality=QUALITY)
