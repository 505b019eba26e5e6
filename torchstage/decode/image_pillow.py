"""Image Pillow: an opened image and the request in, the tensor out. The reference: what it gives is Pillow's own.

The steps, in order: decode the first frame; turn it upright; convert it to the wanted mode; resize it. Where a draft
is allowed and the file is a JPEG of twice the wanted size or more, it is decoded at 1/2, 1/4 or 1/8 of its size, which
costs a part of the time, and resized before it is turned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from torchstage.decode.image_colour import in_mode
from torchstage.decode.image_open import JPEG_FORMATS, load, orientation_of
from torchstage.decode.image_pixels import DEEP_MODES, filter_of, tensor_of, tensor_of_deep
from torchstage.decode.image_request import Request

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

SMALLEST_DRAFT = 2  # times the wanted size
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}  # EXIF's orientation, and how Pillow names what undoes it
SIDEWAYS = (5, 6, 7, 8)  # orientations in which width and height change places


def decode(image: ImageFile, request: Request) -> Tensor:
    if request.draft and draft_scale(image, request) >= SMALLEST_DRAFT:
        return _by_draft(image, request)
    load(image, request.damaged == "conceal")
    upright = turned(image, orientation_of(image)) if request.exif_orientation else image
    size = request.size_for(upright.width, upright.height)
    if upright.mode in DEEP_MODES:
        return tensor_of_deep(upright, size, request)
    picture = in_mode(upright, request)
    if size is not None and size != picture.size:
        picture = picture.resize(size, filter_of(request))
    return tensor_of(picture, request.dtype)


def draft_scale(image: ImageFile, request: Request) -> int:
    """How many times the wanted size the file is, in whole numbers; 0 where a draft cannot be made."""
    if image.format not in JPEG_FORMATS:
        return 0
    size = stored_size(image, request)
    return 0 if size is None else min(image.width // size[0], image.height // size[1])


def stored_size(image: ImageFile, request: Request) -> tuple[int, int] | None:
    """The wanted (width, height) as the file lies, before it is turned upright. Of JPEG files."""
    if request.exif_orientation and orientation_of(image) in SIDEWAYS:
        size = request.size_for(image.height, image.width)
        return None if size is None else (size[1], size[0])
    return request.size_for(image.width, image.height)


def turned(image: Image, orientation: int) -> Image:
    from PIL import Image as pillow  # noqa: N813 - it is a module

    if orientation not in TURNS:
        return image
    return image.transpose(pillow.Transpose[TURNS[orientation]])


def _by_draft(image: ImageFile, request: Request) -> Tensor:
    orientation = orientation_of(image) if request.exif_orientation else 1
    size = stored_size(image, request)
    assert size is not None
    drafted = image.draft(None, size)
    box = None if drafted is None else drafted[1]  # of a width of 375, half is 187.5 and not 188
    load(image, request.damaged == "conceal")
    picture = in_mode(image, request).resize(size, filter_of(request), box)
    return tensor_of(turned(picture, orientation), request.dtype)
