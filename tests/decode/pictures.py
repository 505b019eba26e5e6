"""Pictures: small images of every kind in, their encoded bytes out."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import torch
from PIL import Image

WIDTH, HEIGHT = 40, 20
ORIENTATION = 0x0112


def noise(height: int = HEIGHT, width: int = WIDTH, channels: int = 3, seed: int = 0) -> np.ndarray:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return levels[..., 0] if channels == 1 else levels


def smooth(height: int, width: int) -> Image.Image:
    """Slow waves, which every decoder and filter agrees on within a few levels."""
    y, x = np.mgrid[:height, :width] / 40
    waves = np.stack([np.sin(x), np.cos(y), np.sin(x + y)], axis=2)
    return Image.fromarray((127.5 + 127 * waves).astype(np.uint8))


def encoded(image: Image.Image | np.ndarray, format: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, format, **options)
    return file.getvalue()


def with_orientation(orientation: int, format: str = "JPEG", height: int = HEIGHT, width: int = WIDTH) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(smooth(height, width), format, exif=exif)


def opened(data: bytes) -> Image.Image:
    """As Pillow itself decodes it."""
    with Image.open(io.BytesIO(data)) as image:
        image.load()
        return image


def tensor(image: Image.Image | np.ndarray) -> torch.Tensor:
    """(C, H, W), by the shortest way that there is."""
    levels = np.array(image)
    return torch.from_numpy(levels[None] if levels.ndim == 2 else levels.transpose(2, 0, 1).copy())


def grey_16(values: np.ndarray, format: str = "PNG", transparent: int | None = None) -> bytes:
    """Values of 16 bits; in a PNG one of them may be transparent. By hand where older versions of Pillow cannot."""
    if format == "PPM":
        return f"P5 {values.shape[1]} {values.shape[0]} 65535\n".encode() + values.astype(">u2").tobytes()
    data = encoded(values, format)
    if transparent is None:
        return data
    end_of_header = data.index(b"IHDR") + 4 + 13 + 4  # the kind, the header, its checksum
    return data[:end_of_header] + chunk(b"tRNS", struct.pack(">H", transparent)) + data[end_of_header:]


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def ramp_16() -> np.ndarray:
    """Every value of 16 bits once."""
    return np.arange(65536, dtype=np.uint16).reshape(256, 256)
