"""Pictures made for the tests, encoded, and what Pillow makes of them."""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps


def noise(height: int = 20, width: int = 40, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Soft colours: JPEG changes them little."""
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (4, 5, channels), dtype=np.uint8)
    planes = [Image.fromarray(small[..., c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(channels)]
    return np.stack([np.asarray(plane) for plane in planes], axis=-1)


def picture(mode: str = "RGB", height: int = 20, width: int = 40) -> Image.Image:
    channels = {"RGB": 3, "RGBA": 4, "CMYK": 4, "LA": 2, "L": 1}[mode]
    pixels = noise(height, width, channels)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels, mode if channels in (2, 4) else None)


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def with_orientation(image: Image.Image, orientation: int, format: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, format, exif=exif.tobytes())


def by_pillow(data: bytes, mode: str = "RGB", size: tuple[int, int] | None = None, *, upright: bool = True) -> Any:
    """The pixels (C, H, W) as a program that uses Pillow itself would get them. ``size``: (height, width)."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        if upright:
            image = ImageOps.exif_transpose(image)
        image = image.convert(mode)
        if size is not None:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
