"""Pixels: decoded frames in, RGB planes written into a tensor out.

Guarantees: one scaler for a clip, set up once, without threads of its own; the frame's own colour space and range are
used; all pictures of a clip have one size, that of the first, whatever the stream does later.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

TINY = 8  # pixels
ROUNDING = 1 / 64  # display matrices are in 16.16 fixed point; files write 65535 for 65536


class Painter:
    """Writes frames as (3, H, W) pictures of one size, all turned as the first of them asks to be."""

    def __init__(self, size: int | tuple[int, int] | None, rotate: bool) -> None:
        from av.video.reformatter import VideoReformatter

        self._reformatter = VideoReformatter()
        self._size = size
        self._turn: Turn | None = None if rotate else UPRIGHT
        self._shape: tuple[int, int] | None = None

    def paint(self, frame: VideoFrame) -> Tensor:
        """uint8 (3, H, W), as a view that is not contiguous."""
        if self._turn is None:
            self._turn = turn_of(frame)
        if self._shape is None:
            shown = (frame.width, frame.height) if self._turn[0] else (frame.height, frame.width)
            self._shape = scaled(shown, self._size)
        height, width = self._shape[::-1] if self._turn[0] else self._shape
        return turned(self._rgb(frame, height, width), self._turn)

    def _rgb(self, frame: VideoFrame, height: int, width: int) -> Tensor:
        picture = self._reformatter.reformat(frame, width, height, "rgb24", interpolation="BILINEAR", **one_thread())
        return torch.from_numpy(picture.to_ndarray()).permute(2, 0, 1)  # pyright: ignore[reportUnknownMemberType] - torch's types


def one_thread() -> dict[str, Any]:
    """PyAV 17 and newer scale with as many threads as there are cores, unless told otherwise; before, with one."""
    import av

    return {"threads": 1} if int(av.__version__.partition(".")[0]) >= 17 else {}


def scaled(shape: tuple[int, int], size: int | tuple[int, int] | None) -> tuple[int, int]:
    """(height, width) after scaling; an int is the shorter side, the longer one is rounded down."""
    if size is None:
        return shape
    if isinstance(size, tuple):
        return size
    height, width = shape
    return (size, width * size // height) if height <= width else (height * size // width, size)


Turn = tuple[bool, bool, bool]  # rows become columns; then mirror rows; then mirror columns
UPRIGHT: Turn = (False, False, False)


def turn_of(frame: VideoFrame) -> Turn:
    """The frame's display matrix, if it is made of turns by 90 degrees and mirrors; else upright.

    FFmpeg maps the stored point (x, y) to (a x + c y, b x + d y), with y pointing down.
    """
    from av.video.reformatter import VideoReformatter

    # A frame whose side data were looked at is freed by the garbage collector alone: the two refer to each other.
    # So they are read from a copy of a few pixels, which has the same side data.
    tiny = VideoReformatter().reformat(frame, TINY, TINY, "gray", interpolation="POINT", **one_thread())
    try:
        matrix = bytes(tiny.side_data["DISPLAYMATRIX"])  # pyright: ignore - PyAV's types leave this key out
    except KeyError:
        return UPRIGHT
    a, b, _, c, d, *_ = (value / 65536 for value in struct.unpack("=9i", matrix))
    if max(abs(b), abs(c)) < ROUNDING:
        return (False, d < 0, a < 0)
    if max(abs(a), abs(d)) < ROUNDING:
        return (True, b < 0, c < 0)
    return UPRIGHT


def turned(picture: Tensor, turn: Turn) -> Tensor:
    transpose, mirror_rows, mirror_columns = turn
    if transpose:
        picture = picture.transpose(1, 2)
    axes = [axis for axis, mirror in ((1, mirror_rows), (2, mirror_columns)) if mirror]
    return picture.flip(axes) if axes else picture
