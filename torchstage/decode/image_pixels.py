"""Image pixels: an opened picture of whatever kind in, a tensor of the mode, size and dtype that was asked for out.

Guarantees: the number of channels is the mode's; 16 bits are scaled, never cut off; where a picture has no such form,
an error says which it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchstage.decode.fault import DecodeError

_from_numpy: Callable[[Any], Tensor] = vars(torch)["from_numpy"]  # torch leaves it untyped

MODES = {"RGB": 3, "L": 1, "RGBA": 4, "LA": 2}  # and their channels
DTYPES = (torch.uint8, torch.uint16, torch.float32)
DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N")  # grey, of 16 bits or more
MAX_16 = 65535
TURNS = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE"}
TURNS[8] = "ROTATE_90"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the result is to be."""

    size: int | tuple[int, int] | None
    mode: str
    background: tuple[int, int, int] | None
    dtype: torch.dtype

    def size_of(self, height: int, width: int) -> tuple[int, int]:
        """The result's height and width, of a picture that stands upright."""
        size = self.size
        if size is None:
            return height, width
        if not isinstance(size, int):
            return size
        if height <= width:
            return size, max(1, size * width // height)
        return max(1, size * height // width), size


def pixels_of(image: Any, wanted: Wanted, turn: int, icc_to_srgb: bool) -> Tensor:
    """The picture's pixels, (C, H, W). ``turn``: its EXIF orientation, 1 to 8."""
    if icc_to_srgb and image.info.get("icc_profile"):
        image = _in_srgb(image)
    if turn != 1:
        image = image.transpose(getattr(_transposes(), TURNS[turn]))
    if image.mode in DEEP or image.mode == "F":
        return _deep(image, wanted)
    image = _in_mode(image, wanted)
    size = wanted.size_of(image.height, image.width)
    if size != (image.height, image.width):
        image = image.resize((size[1], size[0]), _bilinear())
    pixels = _tensor(image, MODES[wanted.mode])
    if wanted.dtype is torch.uint8:
        return pixels
    return pixels.float().div_(255) if wanted.dtype is torch.float32 else (pixels.int() * 257).to(torch.uint16)


def _in_mode(image: Any, wanted: Wanted) -> Any:
    """The picture in the wanted mode, its transparency put on the background where the mode has none."""
    mode = wanted.mode
    has_alpha = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info
    if has_alpha and mode in ("RGB", "L") and wanted.background is not None:
        from PIL import Image

        if image.mode in ("La", "RGBa"):
            image = image.convert("LA" if image.mode == "La" else "RGBA")
        over = image.convert("RGBA")
        under = Image.new("RGBA", over.size, (*wanted.background, 255))
        return Image.alpha_composite(under, over).convert(mode)
    return image if image.mode == mode else image.convert(mode)


def _tensor(image: Any, num_channels: int) -> Tensor:
    height, width = image.height, image.width
    data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    if num_channels == 1:
        return data.view(1, height, width)
    return data.view(height, width, num_channels).permute(2, 0, 1).contiguous()


def _deep(image: Any, wanted: Wanted) -> Tensor:
    """A grey picture of 16 bits, or of floats."""
    is_float = image.mode == "F"
    values: Any = np.asarray(image).astype(np.float32 if is_float else np.int64)
    if is_float and wanted.dtype is not torch.float32:
        raise DecodeError(f"its pixels are floats (mode F), which {wanted.dtype} cannot hold; use dtype=torch.float32")
    if not is_float and (values.min() < 0 or values.max() > MAX_16):
        raise DecodeError(
            f"its pixels are integers from {values.min()} to {values.max()} (mode {image.mode}), more than 16 bits"
        )
    grey = _from_numpy(values.astype(np.float32))
    size = wanted.size_of(grey.shape[0], grey.shape[1])
    if size != tuple(grey.shape):
        from PIL import Image

        resized = Image.fromarray(grey.numpy()).resize((size[1], size[0]), _bilinear())
        grey = _from_numpy(np.array(resized))
    if not is_float:
        grey = grey.div(MAX_16).clamp_(0, 1)
    if wanted.dtype is torch.uint8:
        grey = (grey * 255).round_().to(torch.uint8)
    elif wanted.dtype is torch.uint16:
        grey = (grey.double() * MAX_16).round_().to(torch.int32).to(torch.uint16)
    return _in_channels(grey, wanted)


def _in_channels(grey: Tensor, wanted: Wanted) -> Tensor:
    full = {torch.uint8: 255, torch.uint16: MAX_16, torch.float32: 1.0}[wanted.dtype]
    planes = [grey] if wanted.mode in ("L", "LA") else [grey, grey, grey]
    if wanted.mode in ("LA", "RGBA"):
        planes.append(torch.full(grey.shape, full, dtype=wanted.dtype))
    return torch.stack(planes) if wanted.dtype is not torch.uint16 else _stacked(planes)


def _stacked(planes: list[Tensor]) -> Tensor:
    """torch.stack, for a dtype that few of torch's operators know."""
    return torch.stack([plane.view(torch.int16) for plane in planes]).view(torch.uint16)


def _in_srgb(image: Any) -> Any:
    """The picture's colours as sRGB has them. Its transparency stays."""
    from io import BytesIO

    from PIL import ImageCms

    known: Any = ImageCms
    profile = known.ImageCmsProfile(BytesIO(image.info["icc_profile"]))
    if image.mode == "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    alpha = image.getchannel("A") if image.mode in ("RGBA", "LA") else None
    plain = image.convert({"RGBA": "RGB", "LA": "L"}[image.mode]) if alpha is not None else image
    if plain.mode not in ("RGB", "L", "CMYK"):
        return image  # of 16 bits, or of one: no transform takes these
    converted = known.profileToProfile(plain, profile, known.createProfile("sRGB"), outputMode="RGB")
    if alpha is not None:
        converted.putalpha(alpha)
    return converted


def _transposes() -> Any:
    from PIL import Image

    return Image.Transpose


def _bilinear() -> Any:
    from PIL import Image

    return Image.Resampling.BILINEAR
