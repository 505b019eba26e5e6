"""Image open: the bytes or the path of a picture in, Pillow's opened image out, of a size that is allowed.

Guarantees: the image is used by the thread that opened it, and closed by it; no file stays open, by whatever way the
block is left. The formats that Pillow knows are registered once, by one thread, before the first picture (two threads
that register at once can miss a format). Pillow's limit for the number of pixels is neither read nor changed here.
"""

from __future__ import annotations

import io
import os
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Source = bytes | bytearray | memoryview | str | os.PathLike[str]

MAX_BYTES_READ_AT_ONCE = 16 * 2**20  # one read is cheaper than many; of a huge file a part may do
PREFIX_BYTES = 16  # what Pillow shows its formats, to ask whether a file is one of theirs
JPEG_FORMATS = ("JPEG", "MPO")  # MPO: a JPEG with others behind it, as many phones write
END_OF_JPEG = b"\xff\xd9"
ORIENTATION_TAG = 0x0112  # of EXIF and TIFF

_registering = threading.Lock()


class RefusedError(Exception):
    """A picture that is not decoded. The message goes on after the picture's name."""


def require_pillow() -> None:
    try:
        import_module("PIL.Image")
    except ImportError as error:
        raise ImportError("decode_image needs Pillow: pip install 'torchstage[image]'") from error


def stream_of(source: Source) -> BinaryIO:
    """What Pillow reads from. Raises OSError where the file cannot be opened or read."""
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(bytes(source))
    file = Path(source).open("rb")  # noqa: SIM115 - it may be the result
    try:
        if os.fstat(file.fileno()).st_size > MAX_BYTES_READ_AT_ONCE:
            return file
        with file:
            return io.BytesIO(file.read())
    except BaseException:
        file.close()
        raise


@contextmanager
def opened(stream: BinaryIO, max_pixels: int | None) -> Generator[ImageFile]:
    """The image, its pixels not yet decoded. Raises RefusedError, and whatever Pillow raises."""
    with identified(stream) as image:
        check_num_pixels("", image.size, max_pixels)
        yield image
        check_num_pixels("", image.size, max_pixels)  # icons and drawings tell their size when they are decoded


def identified(stream: BinaryIO) -> ImageFile:
    """As `PIL.Image.open` finds the format: the first that says yes.

    `open` itself would look at a limit that belongs to the whole process, and warn where it finds a picture large.
    """
    from PIL import Image

    register_formats()
    prefix = stream.read(PREFIX_BYTES)
    if not prefix:
        raise RefusedError("is empty, so there is no image in it")
    reasons: list[str] = []
    for name in tuple(Image.ID):
        factory, accepts = Image.OPEN[name]
        try:
            verdict = accepts(prefix) if accepts else True
            if isinstance(verdict, str):  # of this format, but Pillow was built without it
                reasons.append(verdict)
            elif verdict:
                stream.seek(0)
                return factory(stream, "")
        except (SyntaxError, IndexError, TypeError, struct.error) as error:
            if accepts:  # formats that look at everything have nothing to tell
                reasons.append(f"{name}: {error}")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise RefusedError(f"is not an image of a format that Pillow can read{why}")


def register_formats() -> None:
    from PIL import Image

    with _registering:
        Image.preinit()  # the common ones come first, as for Pillow itself
        Image.init()


def check_num_pixels(when: str, size: tuple[int, int], max_pixels: int | None) -> None:
    """`when` goes before the verb: an empty string, or "after resizing "."""
    width, height = size
    if max_pixels is not None and width * height > max_pixels:
        raise RefusedError(
            f"{when}has {width * height} pixels ({width} x {height}), more than max_pixels={max_pixels}. If it is "
            "meant to be so large, raise max_pixels, or turn the check off with None."
        )


def load(image: ImageFile, conceal: bool) -> None:
    """Decode the pixels. With `conceal`, what was decoded before the damage is kept, the rest is what Pillow makes of
    it: black, or grey in a JPEG file."""
    if conceal and image.format in JPEG_FORMATS:
        image.fp = cast("IO[bytes]", _EndedJpeg(image.fp))
    try:
        image.load()
    except Exception:
        if not conceal:
            raise
        image.tile = []  # nothing is left to decode
        image.load()  # raises where there are no pixels at all


class _EndedJpeg:
    """A JPEG stream that was perhaps cut off, with the marker of its end after it: so libjpeg gives what it has."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._ended = False

    def read(self, num_bytes: int = -1) -> bytes:
        data = self._stream.read(num_bytes)
        if data or self._ended:
            return data
        self._ended = True
        return END_OF_JPEG

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def orientation_of(image: ImageFile) -> int:
    """1 to 8, as EXIF counts. 1, upright, where there is none or it cannot be read.

    Formats other than JPEG may tell only once their pixels are decoded.
    """
    try:
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:  # a broken block of EXIF data says nothing, and the pixels do not need it
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def num_frames_of(image: ImageFile) -> int:
    """How many there are: frames of an animation, pages of a TIFF file, pictures of an MPO file, layers of a PSD file.
    Some formats have to read the whole file to know."""
    return getattr(image, "n_frames", 1)
