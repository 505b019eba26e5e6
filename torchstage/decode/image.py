"""Image: the bytes or the path of a picture in, a tensor of its pixels out.

Pillow decodes, and is the reference: with ``background=None`` and ``exif_orientation=False`` the pixels of an 8-bit
picture are those of ``Image.open(source).convert(mode).resize(...)``. Guarantees: a picture is opened, read to its end
and closed in the calling thread; nothing process-wide is changed; what cannot be decoded is one DecodeError that names
the source.
"""

import io
import os
import re
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from torchstage.decode.fault import DecodeError, name_of
from torchstage.decode.image_pixels import DTYPES, MODES, Wanted, pixels_of

ImageSource = bytes | bytearray | memoryview | str | os.PathLike[str]
ImageBackend = Literal["pillow", "torchvision"]

OUR_FILE = re.compile(r"<_io\.BytesIO object at 0x[0-9a-fA-F]+>")
ORIENTATION = 0x0112  # EXIF's tag
NUM_ORIENTATIONS = 8
SWAPPED = (5, 6, 7, 8)  # orientations that exchange width and height
DRAFT_FACTOR = 2  # a source this much larger than wanted may be decoded at a fraction of its size
NOT_ANIMATED = ("MPO",)  # its further pictures are previews and other views of the first


class ImageInfo(NamedTuple):
    """What the header of a picture tells. ``height`` and ``width`` are those that are stored, before any turn."""

    format: str
    mode: str
    height: int
    width: int
    num_frames: int
    orientation: int


def decode_image(
    source: ImageSource,
    size: int | tuple[int, int] | None = None,
    mode: str = "RGB",
    *,
    exif_orientation: bool = True,
    background: tuple[int, int, int] | None = (255, 255, 255),
    icc_to_srgb: bool = False,
    draft: bool = False,
    dtype: torch.dtype = torch.uint8,
    max_pixels: int | None = None,
    backend: ImageBackend = "pillow",
) -> Tensor:
    """The pixels of a picture, (C, H, W), in memory of their own. Of an animation, its first frame, with one warning
    for the whole program.

    Args:
        source: the encoded bytes, or the path of a file.
        size: None keeps the stored size; an int is the shorter side of the result (the longer one keeps the aspect
            ratio, rounded down); (height, width) is exact. Pillow's bilinear filter, which averages where it shrinks.
        mode: "RGB", "L", "RGBA" or "LA": 3, 1, 4 or 2 channels, whatever the file has. Palettes become their colours.
        exif_orientation: turn the picture upright, as ``PIL.ImageOps.exif_transpose`` does. ``size`` then means the
            upright picture.
        background: what shows through where a picture with transparency is asked for without alpha. None: alpha is
            dropped, and the colours under it, which may be anything, come out.
        icc_to_srgb: convert from the colour profile in the file, if there is one, to sRGB. False: it is ignored.
        draft: let a JPEG that is at least twice the wanted size be decoded at a half, a quarter or an eighth: faster,
            and not the same pixels.
        dtype: ``torch.uint8``; ``torch.uint16``, 0 to 65535; or ``torch.float32``, 0 to 1. Grey pictures of 16 bits are
            scaled to that range, never cut off; pictures of floats are given as they are, to float32 alone.
        max_pixels: a picture of more pixels is an error. None: ``PIL.Image.MAX_IMAGE_PIXELS``.
        backend: "torchvision" decodes and resizes plain JPEG files with torchvision (faster; not the same pixels), and
            all else as "pillow" does.

    Raises:
        DecodeError: damaged or truncated data, no picture, too many pixels, a picture that has no such mode or dtype;
            with the name of the source and Pillow's words.
        OSError: the file cannot be read. ImportError: Pillow or the backend is not installed. TypeError, ValueError:
            arguments.
    """
    wanted = Wanted(_checked_size(size), mode, background, dtype)
    _check(source, mode, background, dtype, max_pixels, backend)
    name, data = name_of(source), _bytes_of(source)
    try:
        with _opened(data, max_pixels) as image:
            _warn_of_frames(image, name)
            turn = _orientation_of(image) if exif_orientation else 1
            if backend == "torchvision" and _is_plain_jpeg(image) and mode in ("RGB", "L") and not icc_to_srgb:
                return _by_torchvision(data, wanted, turn)
            if draft:
                _draft(image, wanted, turn)
            image.load()
            turn = _orientation_of(image) if exif_orientation else 1  # of PNG, it may come after the pixels
            return pixels_of(image, wanted, turn, icc_to_srgb)
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error.__cause__
    except Exception as error:  # Pillow's decoders raise whatever damaged data leads them to
        raise DecodeError(f"{name}: {_words_of(error)}") from error.with_traceback(None)


def image_info(source: ImageSource) -> ImageInfo:
    """What the header of a picture tells, and how many frames there are. Raises as ``decode_image`` does."""
    name, data = name_of(source), _bytes_of(source)
    try:
        with _opened(data, None) as image:
            num_frames: int = getattr(image, "n_frames", 1)
            return ImageInfo(
                image.format or "", image.mode, image.height, image.width, num_frames, _orientation_of(image)
            )
    except DecodeError as error:
        raise DecodeError(f"{name}: {error}") from error.__cause__
    except Exception as error:
        raise DecodeError(f"{name}: {_words_of(error)}") from error.with_traceback(None)


def _words_of(error: Exception) -> str:
    """Pillow's words. It calls what it was given by its address in memory; the message names it already."""
    return f"{type(error).__name__}: {OUR_FILE.sub('this', str(error))}"


def _opened(data: bytes | bytearray | memoryview, max_pixels: int | None) -> Any:
    image_module = _pillow()
    if not len(data):
        raise DecodeError("there are no bytes in it")
    limit = image_module.MAX_IMAGE_PIXELS if max_pixels is None else max_pixels
    try:
        image = image_module.open(io.BytesIO(data))
    except (image_module.DecompressionBombError, image_module.DecompressionBombWarning) as error:
        raise DecodeError(
            f"{error} Where that is no attack, raise PIL.Image.MAX_IMAGE_PIXELS, and max_pixels with it."
        ) from error
    if limit is not None and image.width * image.height > limit:
        words = f"it has {image.width} x {image.height} pixels, more than max_pixels={limit}"
        image.close()
        raise DecodeError(words)
    return image


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("decode_image needs Pillow: pip install 'torchstage[image]'") from error
    return Image


def _bytes_of(source: ImageSource) -> bytes | bytearray | memoryview:
    return source if isinstance(source, bytes | bytearray | memoryview) else Path(source).read_bytes()


def _orientation_of(image: Any) -> int:
    found: Any = image.getexif().get(ORIENTATION, 1)
    return found if isinstance(found, int) and 1 <= found <= NUM_ORIENTATIONS else 1


def _draft(image: Any, wanted: Wanted, turn: int) -> None:
    """Have a JPEG decoded smaller, where it is large enough for that."""
    if wanted.size is None or image.format not in ("JPEG", "MPO"):
        return
    height, width = image.height, image.width
    upright = (width, height) if turn in SWAPPED else (height, width)
    new_height, new_width = wanted.size_of(*upright)
    if turn in SWAPPED:
        new_height, new_width = new_width, new_height
    if height >= DRAFT_FACTOR * new_height and width >= DRAFT_FACTOR * new_width:
        image.draft(None, (new_width, new_height))


def _is_plain_jpeg(image: Any) -> bool:
    return image.format == "JPEG" and image.mode in ("RGB", "L")


def _by_torchvision(data: bytes | bytearray | memoryview, wanted: Wanted, turn: int) -> Tensor:
    try:
        torchvision_io: Any = import_module("torchvision.io")
        functional: Any = import_module("torchvision.transforms.v2.functional")
    except ImportError as error:
        raise ImportError("decode_image: backend='torchvision' needs torchvision: pip install torchvision") from error
    modes = torchvision_io.ImageReadMode
    read_mode = modes.RGB if wanted.mode == "RGB" else modes.GRAY
    encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    picture: Tensor = torchvision_io.decode_jpeg(encoded, mode=read_mode, apply_exif_orientation=turn != 1)
    if wanted.size is not None:
        picture = functional.resize(picture, list(wanted.size_of(*picture.shape[-2:])), antialias=True)
    if wanted.dtype is torch.uint8:
        return picture
    return picture.float().div_(255) if wanted.dtype is torch.float32 else (picture.int() * 257).to(torch.uint16)


# Frames -----------------------------------------------------------------------------------------------------

_has_warned: list[bool] = []
_warning = threading.Lock()


def _warn_of_frames(image: Any, name: str) -> None:
    if image.format in NOT_ANIMATED or _has_warned or not getattr(image, "is_animated", False):
        return
    with _warning:
        if _has_warned:
            return
        _has_warned.append(True)
    warnings.warn(
        f"decode_image: {name} has {image.n_frames} frames; of such pictures the first frame is taken. This is said "
        "once. image_info(source).num_frames tells how many there are.",
        UserWarning,
        stacklevel=3,
    )


# Arguments --------------------------------------------------------------------------------------------------


def _checked_size(size: Any) -> int | tuple[int, int] | None:
    sides: tuple[Any, ...] = () if size is None else (size,)
    if isinstance(size, tuple | list):
        sides = tuple(cast(Sequence[Any], size))
    if len(sides) > 2 or not all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in sides):
        raise ValueError(f"decode_image: size must be None, an int or (height, width), of at least 1, got {size!r}")
    return sides[0] if len(sides) == 1 else (sides[0], sides[1]) if sides else None


def _check(source: Any, mode: Any, background: Any, dtype: Any, max_pixels: Any, backend: Any) -> None:
    if not isinstance(source, bytes | bytearray | memoryview | str | os.PathLike):
        raise TypeError(f"decode_image: the source must be bytes or a path, got {type(source).__name__}")
    if mode not in MODES:
        raise ValueError(f"decode_image: mode must be one of {', '.join(MODES)}, got {mode!r}")
    if dtype not in DTYPES:
        raise ValueError(f"decode_image: dtype must be torch.uint8, torch.uint16 or torch.float32, got {dtype!r}")
    if max_pixels is not None and (not isinstance(max_pixels, int) or max_pixels < 1):
        raise ValueError(f"decode_image: max_pixels must be a positive integer or None, got {max_pixels!r}")
    if backend not in get_args(ImageBackend):
        raise ValueError(f"decode_image: backend must be 'pillow' or 'torchvision', got {backend!r}")
    parts: Sequence[Any] = cast(Sequence[Any], background) if isinstance(background, tuple | list) else ()
    is_colour = len(parts) == 3 and all(isinstance(part, int) and 0 <= part <= 255 for part in parts)
    if background is not None and not is_colour:
        raise ValueError(f"decode_image: background must be three integers from 0 to 255, or None, got {background!r}")
