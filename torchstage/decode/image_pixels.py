"""Image pixels: Pillow's image in, a tensor (C, H, W) of the wanted dtype out; and images of more than 8 bits a value.

Values: uint8 counts from 0 to 255, uint16 from 0 to 65535, float32 from 0 to 1. Guarantees: the tensor owns its memory
and is contiguous; nothing is cut off in silence: a value that has no place in the range is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchstage.decode.image_open import RefusedError
from torchstage.decode.image_request import Request

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    Floats = NDArray[np.float32]

SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
DEEP_MODES = (*SIXTEEN_BIT_MODES, "I", "F")
LEVELS = {torch.uint8: 255, torch.uint16: 65535}


def tensor_of(image: Image, dtype: torch.dtype) -> Tensor:
    """The pixels of an image of 8 bits a channel."""
    pixels = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, len(image.getbands()))
    result = torch.empty((pixels.shape[2], *pixels.shape[:2]), dtype=dtype)
    fill(result, pixels.transpose(2, 0, 1))
    return result


def fill(result: Tensor, levels: NDArray[np.uint8]) -> None:
    """Write levels of 0 to 255, in the range of the tensor. numpy's copy does not hold the GIL, and takes half as long
    as torch's where the channels come last."""
    values: NDArray[Any] = result.numpy()
    np.copyto(values, levels)
    if result.dtype == torch.uint16:
        values *= 257  # 255 becomes 65535
    elif result.dtype == torch.float32:
        values /= 255


def tensor_of_deep(image: Image, size: tuple[int, int] | None, request: Request) -> Tensor:
    """The pixels of a grey image of 16 or 32 bits: scaled to the whole range of the dtype, resized in float32."""
    grey = values_of(image, request)
    key = image.info.get("transparency")
    transparent = np.asarray(image) == key if isinstance(key, int) else None
    channels = [resized(channel, size, request) for channel in channels_of(grey, transparent, request)]
    stacked = np.stack(channels if len(channels) == num_channels(request) else [*channels[:1] * 3, *channels[1:]])
    if request.dtype == torch.float32:
        return torch.from_numpy(stacked)  # pyright: ignore[reportUnknownMemberType]  # torch says nothing about it
    levels = LEVELS[request.dtype]
    counts = np.clip(np.nan_to_num(stacked), 0, 1) * levels + 0.5  # sharp filters overshoot, as in Pillow
    result = torch.empty(counts.shape, dtype=request.dtype)
    np.copyto(result.numpy(), counts, casting="unsafe")
    return result


def values_of(image: Image, request: Request) -> Floats:
    """(H, W), black at 0 and white at 1; of a float image without `value_range`, the file's own values."""
    values = np.asarray(image)
    if request.value_range is not None:
        black, white = request.value_range
        return np.clip((values.astype(np.float64) - black) / (white - black), 0, 1).astype(np.float32)
    if image.mode == "F":
        if request.dtype == torch.float32:
            return values.astype(np.float32)
        raise RefusedError(
            "has floating point values, of which nobody knows what is white. Ask for dtype=torch.float32 to get them "
            "as they are, or say which values are black and white: value_range=(0, 1)."
        )
    if image.mode == "I" and values.size and not (values.min() >= 0 and values.max() <= 65535):
        raise RefusedError(
            f"has whole values from {values.min()} to {values.max()}, beyond 16 bits. Say which of them are black and "
            "white: value_range=(low, high)."
        )
    return values.astype(np.float32) / np.float32(65535)


def channels_of(grey: Floats, transparent: NDArray[np.bool_] | None, request: Request) -> list[Floats]:
    """What differs between the channels of the result: grey, or three colours; and alpha, if it is asked for."""
    if request.mode in ("LA", "RGBA"):
        alpha = np.ones_like(grey) if transparent is None else np.where(transparent, np.float32(0), np.float32(1))
        return [grey, alpha]
    if transparent is None:
        return [grey]
    colours = request.background if request.mode == "RGB" else (_luma(request.background),)
    return [np.where(transparent, np.float32(colour / 255), grey) for colour in colours]


def num_channels(request: Request) -> int:
    return {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}[request.mode]


def resized(channel: Floats, size: tuple[int, int] | None, request: Request) -> Floats:
    from PIL import Image

    if size is None or size == (channel.shape[1], channel.shape[0]):
        return channel
    return np.array(Image.fromarray(channel).resize(size, filter_of(request)), np.float32)


def filter_of(request: Request) -> Any:
    from PIL import Image

    return Image.Resampling[request.interpolation.upper()]


def _luma(colour: tuple[int, int, int]) -> float:
    """Grey, by the weights of ITU-R 601 that Pillow converts with."""
    red, green, blue = colour
    return (299 * red + 587 * green + 114 * blue) / 1000
