"""Image: the bytes or the path of a picture in, a tensor (C, H, W) out; and what a file tells before it is decoded.

Guarantees: Pillow's image is opened, decoded and closed by the calling thread, and no other sees it; no file stays
open; the tensor owns its memory. Nothing process-wide is changed: not Pillow's limits, not its switch for truncated
files, no filter of warnings. A picture gives a tensor or one DecodeError.
"""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor

from torchstage.decode import image_pillow, image_torchvision
from torchstage.decode.fault import DecodeError, name_of
from torchstage.decode.image_colour import is_transparent
from torchstage.decode.image_open import (
    RefusedError,
    Source,
    check_num_pixels,
    num_frames_of,
    opened,
    orientation_of,
    require_pillow,
    stream_of,
)
from torchstage.decode.image_request import (
    MAX_PIXELS,
    Backend,
    Damaged,
    IccProfile,
    Interpolation,
    Mode,
    Request,
)

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Result = TypeVar("Result")

STILL_FORMATS = ("MPO", "PSD")  # what is behind the first picture belongs to it: depth, brightness, layers


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What a file says about itself."""

    format: str
    """Pillow's name of it: ``"JPEG"``, ``"PNG"``, ``"GIF"``."""
    mode: str
    """Pillow's name of how pixels are stored: ``"RGB"``, ``"P"``, ``"I;16"``."""
    width: int
    """As stored. An `orientation` of 5 to 8 means that width and height change places when it is shown."""
    height: int
    """As stored."""
    orientation: int
    """1 to 8, as EXIF counts; 1 is upright."""
    num_frames: int
    """1 for a still picture. Frames of an animation, pages of a TIFF file, pictures of an MPO file."""
    has_alpha: bool
    """Whether some of it may be transparent."""
    has_icc_profile: bool
    """Whether it says by a profile which colours its numbers mean."""


def decode_image(
    source: Source,
    size: int | tuple[int, int] | None = None,
    mode: Mode = "RGB",
    *,
    dtype: torch.dtype = torch.uint8,
    interpolation: Interpolation = "bilinear",
    draft: bool = False,
    exif_orientation: bool = True,
    background: int | tuple[int, int, int] = 255,
    value_range: tuple[float, float] | None = None,
    icc_profile: IccProfile = "ignore",
    damaged: Damaged = "raise",
    max_pixels: int | None = MAX_PIXELS,
    backend: Backend = "pillow",
) -> Tensor:
    """The picture in `source`, which is its bytes or a path, as a tensor (C, H, W). `mode`: 3 channels for "RGB", 4 for
    "RGBA", 1 for "L" (grey), 2 for "LA".

    `size`: None keeps the size; an int is the shorter side of the result, the longer one keeps the aspect ratio,
    rounded down (as torchvision's `Resize`); (height, width) is exact. `interpolation` is a filter of Pillow's; all
    but "nearest" average where they shrink.

    `dtype`: torch.uint8 counts from 0 to 255, torch.uint16 from 0 to 65535, torch.float32 from 0 to 1. Greys of 16
    bits are scaled to that range, not cut off at 255. Pillow reads colours of 16 bits as 8. Floating point pixels are
    given as they are for torch.float32, and refused otherwise, unless `value_range` says which values are black and
    white; that also holds for whole numbers of 16 and 32 bits, and what is beyond is cut off.

    `draft`: a JPEG of twice the wanted size or more may be decoded at 1/2, 1/4 or 1/8 of its size: faster, nearly the
    same. `exif_orientation`: turn the picture upright, as `PIL.ImageOps.exif_transpose`; `size` means the upright one.
    (Pillow always does so for TIFF files.) `background`: what shows through transparent pixels in "RGB" and "L": a grey
    level or (red, green, blue), 0 to 255. `icc_profile="to_srgb"` converts the colours by the profile in the file;
    "ignore" takes the numbers as they are stored, as Pillow and torchvision do.

    `damaged="conceal"` gives what was decoded before the data ended or broke, and black or grey for the rest.
    `max_pixels`: a larger picture is refused before its pixels are decoded. `backend="torchvision"`: JPEG files are
    decoded by torchvision and resized by torch: faster, a level up or down after resizing. Other files are left to
    Pillow.

    Of a file with several frames the first is decoded; the first such file of the process is named in a warning.

    Raises DecodeError (a ValueError) with the source's name and Pillow's words; OSError for a file that cannot be
    opened; ImportError where Pillow, or the backend, is not installed; ValueError and TypeError for arguments.
    """
    request = Request.checked(
        size=size,
        mode=mode,
        dtype=dtype,
        interpolation=interpolation,
        draft=draft,
        exif_orientation=exif_orientation,
        background=background,
        value_range=value_range,
        icc_profile=icc_profile,
        damaged=damaged,
        max_pixels=max_pixels,
        backend=backend,
    )
    name = _name(source)
    require_pillow()
    if backend == "torchvision":
        image_torchvision.decoder()
    with stream_of(source) as stream:
        result, num_unused = _attempt(name, lambda: _decode(stream, request))
    if num_unused:
        _frames.report(name, num_unused)
    return result


def image_info(source: Source, *, max_pixels: int | None = MAX_PIXELS) -> ImageInfo:
    """What the file `source` (bytes or a path) tells, its pixels not decoded (but by formats that cannot tell
    otherwise). `max_pixels` and what is raised are as in `decode_image`."""
    name = _name(source)
    require_pillow()
    with stream_of(source) as stream:
        return _attempt(name, lambda: _info(stream, max_pixels))


def _decode(stream: BinaryIO, request: Request) -> tuple[Tensor, int]:
    """The picture, and how many frames to report."""
    with opened(stream, request.max_pixels) as image:
        if isinstance(request.size, int):  # then the longer side follows from the file, which may be one pixel wide
            resized = request.size_for(image.width, image.height) or image.size
            check_num_pixels("after resizing ", resized, request.max_pixels)
        result = None
        if request.backend == "torchvision":
            result = image_torchvision.decode(stream, image, request)
        if result is None:
            result = image_pillow.decode(image, request)
        return result, _frames.num_to_report(image)


def _info(stream: BinaryIO, max_pixels: int | None) -> ImageInfo:
    with opened(stream, max_pixels) as image:
        return ImageInfo(
            format=image.format or "",
            mode=image.mode,
            width=image.width,
            height=image.height,
            has_alpha=is_transparent(image),
            has_icc_profile=bool(image.info.get("icc_profile")),
            orientation=orientation_of(image),
            num_frames=num_frames_of(image),
        )


def _name(source: Any) -> str:
    if not isinstance(source, bytes | bytearray | memoryview | str | os.PathLike):
        raise TypeError(f"decode_image: the source must be bytes or a path, got {type(source).__name__}")
    return name_of(cast(Source, source))


def _attempt(name: str, work: Callable[[], Result]) -> Result:
    """Whatever Pillow raises (it raises nearly everything) becomes a DecodeError. What the failed calls held is let go:
    errors may be kept for long, and their tracebacks would keep the pictures."""
    try:
        return work()
    except ImportError:
        raise
    except RefusedError as error:
        _let_go(error)
        raise DecodeError(f"{name} {error}") from error.__cause__
    except Exception as error:
        _let_go(error)
        raise DecodeError(f"{name} cannot be decoded: {type(error).__name__}: {error}") from error


def _let_go(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class _UnusedFrames:
    """Says once in a process that only the first frame of a file is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = False

    def num_to_report(self, image: ImageFile) -> int:
        """How many frames the image has, if it is the first of this process to have several; else 0."""
        if self._said or image.format in STILL_FORMATS:
            return 0
        try:  # the pixels are decoded already, so that a damaged second frame harms nothing
            num_frames = num_frames_of(image) if getattr(image, "is_animated", False) else 1
        except Exception:
            return 0
        if num_frames < 2:
            return 0
        with self._lock:
            first, self._said = not self._said, True
        return num_frames if first else 0

    def report(self, name: str, num_frames: int) -> None:
        warnings.warn(
            f"decode_image: {name} has {num_frames} frames, of which the first is used. image_info(source).num_frames "
            "tells how many a file has. This is said once, for the first such file.",
            stacklevel=3,
        )


_frames = _UnusedFrames()
