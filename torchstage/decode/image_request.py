"""Image request: the options of `decode_image` in, the same options checked out.

Guarantees: a request that exists is one that can be followed; what is wrong in the arguments is a ValueError or a
TypeError before a byte of the picture is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

import torch

Mode = Literal["RGB", "RGBA", "L", "LA"]
Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
IccProfile = Literal["ignore", "to_srgb"]
Damaged = Literal["raise", "conceal"]
Backend = Literal["pillow", "torchvision"]

DTYPES = (torch.uint8, torch.uint16, torch.float32)
TORCHVISION_INTERPOLATIONS = ("bilinear", "bicubic")  # those that torch has with antialiasing
MAX_PIXELS = 178_956_970  # where Pillow itself refuses a picture, by default: 1 GiB / 4 / 3 * 2


@dataclass(frozen=True, slots=True)
class Request:
    """How a picture is wanted. The fields are the arguments of `decode_image`."""

    size: int | tuple[int, int] | None
    mode: Mode
    dtype: torch.dtype
    interpolation: Interpolation
    draft: bool
    exif_orientation: bool
    background: tuple[int, int, int]
    value_range: tuple[float, float] | None
    icc_profile: IccProfile
    damaged: Damaged
    max_pixels: int | None
    backend: Backend

    @classmethod
    def checked(
        cls, *, size: Any, background: Any, value_range: Any, max_pixels: Any, **others: Any
    ) -> Self:  # what users pass may be of any type
        _check_choice("mode", others["mode"], get_args(Mode))
        _check_choice("interpolation", others["interpolation"], get_args(Interpolation))
        _check_choice("icc_profile", others["icc_profile"], get_args(IccProfile))
        _check_choice("damaged", others["damaged"], get_args(Damaged))
        _check_choice("backend", others["backend"], get_args(Backend))
        _check_choice("dtype", others["dtype"], DTYPES)
        if others["backend"] == "torchvision" and others["interpolation"] not in TORCHVISION_INTERPOLATIONS:
            raise ValueError(
                f"decode_image: backend='torchvision' resizes with interpolation='bilinear' or 'bicubic', got "
                f"{others['interpolation']!r}. Use backend='pillow' for the others."
            )
        return cls(
            size=_size(size),
            background=_background(background),
            value_range=_value_range(value_range),
            max_pixels=_max_pixels(max_pixels),
            **others,
        )

    def size_for(self, width: int, height: int) -> tuple[int, int] | None:
        """(width, height) of the result, for a picture that is shown with this width and height. None: leave it."""
        if self.size is None:
            return None
        if isinstance(self.size, tuple):
            return self.size[1], self.size[0]
        if width <= height:
            return self.size, max(1, self.size * height // width)
        return max(1, self.size * width // height), self.size


def _check_choice(argument: str, value: Any, choices: Iterable[Any]) -> None:
    if value not in choices:
        listed = ", ".join(repr(choice) if isinstance(choice, str) else str(choice) for choice in choices)
        raise ValueError(f"decode_image: {argument} must be one of {listed}, got {value!r}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(size: Any) -> int | tuple[int, int] | None:
    if size is None or (_is_whole(size) and size >= 1):
        return size
    if isinstance(size, tuple | list):
        sides = tuple(cast("Sequence[Any]", size))
        if len(sides) == 2 and all(_is_whole(side) and side >= 1 for side in sides):
            return sides[0], sides[1]
    raise ValueError(f"decode_image: size must be None, an int or (height, width), of at least 1, got {size!r}")


def _background(background: Any) -> tuple[int, int, int]:
    if _is_whole(background):
        background = (background,) * 3
    if isinstance(background, tuple | list):
        levels = tuple(cast("Sequence[Any]", background))
        if len(levels) == 3 and all(_is_whole(level) and 0 <= level <= 255 for level in levels):
            return levels[0], levels[1], levels[2]
    raise ValueError(
        f"decode_image: background must be a grey level or (red, green, blue) of 0 to 255, got {background!r}"
    )


def _value_range(value_range: Any) -> tuple[float, float] | None:
    if value_range is None:
        return None
    try:
        black, white = (float(value) for value in value_range)
    except (TypeError, ValueError):
        black = white = math.nan
    if not (math.isfinite(black) and math.isfinite(white) and black != white):
        raise ValueError(
            f"decode_image: value_range must be two different finite numbers, the values of black and white, got "
            f"{value_range!r}"
        )
    return black, white


def _max_pixels(max_pixels: Any) -> int | None:
    if max_pixels is None or (_is_whole(max_pixels) and max_pixels >= 1):
        return max_pixels
    raise ValueError(f"decode_image: max_pixels must be None or at least 1, got {max_pixels!r}")
