"""Image colour: Pillow's image of any mode in, one of the wanted mode out: 8 bits a channel.

Guarantees: the number of channels is the wanted one, whatever the file has; colours come from the palette, not its
indices; what is transparent shows the background and never the colour that a file hides under it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from torchstage.decode.image_open import RefusedError
from torchstage.decode.image_request import Mode, Request

if TYPE_CHECKING:
    from PIL.Image import Image

ALPHA_MODES = ("RGBA", "LA", "PA", "RGBa", "La")
SPACE_OF_PROFILE = slice(16, 20)  # where the header of an ICC profile names the colours that it is for
KEYED_MODES = ("1", "L", "P", "RGB")  # in which a file can name one colour (or entries of its palette) as transparent


def in_mode(image: Image, request: Request) -> Image:
    """The loaded image in `request.mode`; itself, if nothing is to be done."""
    if request.icc_profile == "to_srgb":
        image = in_srgb(image)
    if not is_transparent(image):
        return image if image.mode == request.mode else _opaque(image, request.mode)
    image = with_alpha(image)
    if request.mode in ("RGBA", "LA"):
        return image if image.mode == request.mode else image.convert(request.mode)
    return on_background(image, request)


def is_transparent(image: Image) -> bool:
    """Whether anything in the image may be transparent: a channel, a palette or a colour that says so."""
    if image.mode in ALPHA_MODES:
        return True
    if image.mode in KEYED_MODES and image.info.get("transparency") is not None:
        return True
    return image.mode == "P" and image.palette is not None and image.palette.mode.endswith("A")


def with_alpha(image: Image) -> Image:
    """The transparent image as RGBA."""
    if image.mode == "La":  # grey that is multiplied by its alpha; Pillow has one way out of it
        image = image.convert("LA")
    return image if image.mode == "RGBA" else image.convert("RGBA")


def on_background(image: Image, request: Request) -> Image:
    from PIL import Image as pillow  # noqa: N813 - it is a module

    canvas = pillow.new("RGB", image.size, request.background)
    canvas.paste(image, mask=image)
    return canvas if request.mode == "RGB" else canvas.convert(request.mode)


def in_srgb(image: Image) -> Image:
    """Through the profile that the file carries. An image without one is taken for sRGB already."""
    profile = image.info.get("icc_profile")
    if not profile:
        return image
    from PIL import ImageCms

    alpha = image.convert("LA" if image.mode == "La" else "RGBA").getchannel("A") if is_transparent(image) else None
    try:
        converted = ImageCms.profileToProfile(
            _in_space(image, profile[SPACE_OF_PROFILE]),
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
            outputMode="RGB",
        )
    except (ImageCms.PyCMSError, OSError) as error:
        raise RefusedError(
            f"has an ICC profile that cannot be applied to its {image.mode} pixels ({error}). Use icc_profile='ignore' "
            "to decode it without."
        ) from error
    assert converted is not None  # None is for conversion in place
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _in_space(image: Image, space: bytes) -> Image:
    """The opaque colours of the image, in the mode that a profile of this space is for, if that loses nothing."""
    if image.mode in ("LA", "La", "1"):
        image = image.convert("L")
    elif image.mode not in ("L", "CMYK"):
        image = image.convert("RGB")
    return image.convert("RGB") if image.mode == "L" and space == b"RGB " else image


def _opaque(image: Image, mode: Mode) -> Image:
    if image.mode == "LAB" and mode != "RGB":  # Pillow converts it to RGB alone
        image = image.convert("RGB")
    return image.convert(mode)
