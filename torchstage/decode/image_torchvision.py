"""Image torchvision: the stream of an opened JPEG in, the tensor out by `torchvision.io` and torch's resizing, or None.

Pixels before resizing are Pillow's; resized ones differ from Pillow's by one level here and there. None means that
this file is one for Pillow: no JPEG, CMYK, a mode other than RGB, a profile to apply, or damaged.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from torchstage.decode.image_open import JPEG_FORMATS, orientation_of
from torchstage.decode.image_pillow import draft_scale
from torchstage.decode.image_pixels import fill
from torchstage.decode.image_request import Request

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

SMALLEST_DRAFT = 4  # times the wanted size: below, to decode all of it here takes no longer than Pillow's draft


def decode(stream: BinaryIO, image: ImageFile, request: Request) -> Tensor | None:
    decode_jpeg = decoder()
    if (
        image.format not in JPEG_FORMATS
        or image.mode not in ("RGB", "L")
        or request.mode != "RGB"
        or (request.icc_profile == "to_srgb" and image.info.get("icc_profile"))
        or (request.draft and draft_scale(image, request) >= SMALLEST_DRAFT)
    ):
        return None
    position = stream.tell()
    stream.seek(0)
    encoded = torch.frombuffer(bytearray(stream.read()), dtype=torch.uint8)
    stream.seek(position)
    try:
        picture: Tensor = decode_jpeg(encoded)
    except RuntimeError:  # Pillow tells what it is, or keeps what can be kept
        return None
    if request.exif_orientation:
        picture = turned(picture, orientation_of(image))
    size = request.size_for(picture.shape[2], picture.shape[1])
    if size is not None and size != (picture.shape[2], picture.shape[1]):
        picture = torch.nn.functional.interpolate(
            picture[None], size=(size[1], size[0]), mode=request.interpolation, antialias=True
        )[0]
    if request.dtype == torch.uint8 and picture.is_contiguous():
        return picture
    result = torch.empty(picture.shape, dtype=request.dtype)
    fill(result, picture.numpy())
    return result


def turned(picture: Tensor, orientation: int) -> Tensor:
    """(C, H, W) upright, by EXIF's orientation of 1 to 8."""
    if orientation in (5, 6, 7, 8):
        picture = picture.transpose(1, 2)
    flipped = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(orientation, ())
    return picture.flip(flipped) if flipped else picture


@cache
def decoder() -> Callable[[Tensor], Tensor]:
    """torchvision's, tried once. Raises ImportError where it is not installed or cannot decode JPEG files."""
    try:
        tv: Any = import_module("torchvision.io")
    except ImportError as error:
        raise ImportError(
            "decode_image: backend='torchvision' needs torchvision, which is not installed: pip install torchvision"
        ) from error
    mode: Any = tv.ImageReadMode.RGB
    decode_jpeg: Any = tv.decode_jpeg
    try:
        decode_jpeg(torch.frombuffer(bytearray(_smallest_jpeg()), dtype=torch.uint8), mode=mode)
    except (RuntimeError, OSError, AttributeError) as error:  # each of them, depending on what the build lacks
        raise ImportError(
            "decode_image: backend='torchvision' needs a torchvision that was built with libjpeg; this one says: "
            f"{error}"
        ) from error
    return lambda encoded: decode_jpeg(encoded, mode=mode)


def _smallest_jpeg() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.zeros((1, 1), np.uint8)).save(file, "JPEG")
    return file.getvalue()
