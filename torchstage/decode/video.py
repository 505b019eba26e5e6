"""Video: the bytes or the path of a clip and the wanted frames in, a uint8 tensor and the frames' times out.

A frame is chosen by time: for a wanted time it is the last frame shown at or before it. Times are those of the file
itself, in seconds. Guarantees: one thread, the caller's (no codec threads, no scaler threads); the file, the
container and the decoder are closed when the call returns, also by an exception, and an exception keeps none of
them alive; nothing process-wide is changed, FFmpeg's logging included.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from torch import Tensor

from torchstage.decode.fault import DecodeError, name_of
from torchstage.decode.video_choice import Wanted
from torchstage.decode.video_open import Source

Missing = Literal["raise", "repeat", "drop"]
Damaged = Literal["raise", "conceal"]
Backend = Literal["pyav", "torchcodec"]
Choice = TypeVar("Choice", bound=str)


class DecodedVideo(NamedTuple):
    """Frames and their times. A tuple, so `default_collate` makes batches of it."""

    frames: Tensor
    """uint8, (T, 3, H, W), RGB."""
    pts_seconds: Tensor
    """float64, (T,): when each frame is first shown, on the clock of the file."""


def decode_video(
    source: Source,
    num_frames: int | None = None,
    timestamps: Sequence[float] | None = None,
    size: int | tuple[int, int] | None = None,
    *,
    missing: Missing = "raise",
    damaged: Damaged = "raise",
    rotate: bool = True,
    backend: Backend = "pyav",
) -> DecodedVideo:
    """Frames of the first video stream of `source` (the default one, if the file marks one).

    Which frames: `timestamps` (seconds on the file's clock), one frame for each, in the order given; or `num_frames`,
    the frames at ``first + (k + 0.5) * (end - first) / num_frames`` for k = 0, 1, ..., where `first` is the time of
    the first frame and `end` the time at which the last one ceases to be shown; or neither: every frame, once.
    The frame for a time t is the last one with ``pts <= t``.

    `size`: None keeps the stored size; an int is the shorter side of the result (the longer one keeps the aspect
    ratio, rounded down); (height, width) is exact. Scaling is swscale's bilinear filter, which averages where it
    shrinks.

    `missing` says what becomes of a time before the first frame or at or after `end`, and of `num_frames` beyond the
    frames that there are: "raise" a DecodeError; "repeat" the nearest frame (its pts tells); "drop", so that T is
    smaller than asked for. A frame that is shown so long that two times fall on it is returned for both.

    `damaged`: "raise" a DecodeError where the decoder, or the container's reader, finds damage on its way to the
    wanted frames; "conceal" takes what FFmpeg makes of it, and passes over packets that it refuses.

    `rotate`: apply the file's display matrix (turns by 90 degrees and mirrors; other angles are left as stored).
    `size` then means the turned frame. `backend="torchcodec"` decodes with torchcodec; see docs/decode-videos.md.

    Raises DecodeError (a ValueError) with the source's name and FFmpeg's words; OSError for a file that cannot be
    read; ImportError where the backend is not installed; ValueError and TypeError for arguments.
    """
    wanted = Wanted(_count(num_frames), _times(timestamps), _one_of("missing", missing, get_args(Missing)))
    if wanted.count is not None and wanted.times is not None:
        raise ValueError("decode_video: give num_frames or timestamps, not both")
    size = _size(size)
    conceal = _one_of("damaged", damaged, get_args(Damaged)) == "conceal"
    name = _name(source)
    try:
        if _one_of("backend", backend, get_args(Backend)) == "torchcodec":
            from torchstage.decode.video_torchcodec import decode
        else:
            from torchstage.decode.video_pyav import decode
        return DecodedVideo(*decode(source, name, wanted, size, conceal, rotate))
    except DecodeError as error:
        # Errors may be kept for long (skipped samples are), and the inner traceback holds packets and pictures.
        raise error.with_traceback(None) from error.__cause__


def _name(source: Any) -> str:
    if isinstance(source, bytes | bytearray | memoryview | str | os.PathLike):
        return name_of(cast(Source, source))
    raise TypeError(f"decode_video: the source must be bytes or a path, got {type(source).__name__}")


def _count(num_frames: object) -> int | None:
    if num_frames is None:
        return None
    if isinstance(num_frames, bool) or not isinstance(num_frames, int):
        raise TypeError(f"decode_video: num_frames must be an int, got {num_frames!r}")
    if num_frames < 1:
        raise ValueError(f"decode_video: num_frames must be at least 1, got {num_frames}")
    return num_frames


def _times(timestamps: Sequence[float] | None) -> tuple[float, ...] | None:
    if timestamps is None:
        return None
    times = tuple(float(seconds) for seconds in timestamps)
    if not times:
        raise ValueError("decode_video: timestamps is empty; leave it out to get every frame")
    if not all(math.isfinite(seconds) for seconds in times):
        raise ValueError(f"decode_video: timestamps must be finite seconds, got {list(times)}")
    return times


def _size(size: Any) -> int | tuple[int, int] | None:
    if size is None or (isinstance(size, int) and size >= 1):
        return size
    if isinstance(size, tuple | list):
        sides = tuple(cast("Sequence[Any]", size))
        if len(sides) == 2 and all(isinstance(side, int) and side >= 1 for side in sides):
            return (sides[0], sides[1])
    raise ValueError(f"decode_video: size must be None, an int or (height, width), of at least 1, got {size!r}")


def _one_of(argument: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    if value not in choices:
        raise ValueError(f"decode_video: {argument} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value
