"""torchcodec: the same frames as with PyAV, decoded by torchcodec. Only when it is asked for.

What differs: torchcodec always applies the file's rotation; it reports no damaged frames beyond what makes it fail; it
scales after decoding (torch's antialiased bilinear filter); and it needs FFmpeg's libraries on the system. Guarantees:
one codec thread; frames chosen by the same times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchstage.decode.fault import DecodeError
from torchstage.decode.video_choice import Span, Wanted, times_in
from torchstage.decode.video_open import Source
from torchstage.decode.video_pixels import scaled


def decode(
    source: Source, name: str, wanted: Wanted, size: int | tuple[int, int] | None, conceal: bool, rotate: bool
) -> tuple[Tensor, Tensor]:
    """uint8 (T, 3, H, W) and float64 seconds (T,)."""
    if not rotate:
        raise ValueError("decode_video: torchcodec always applies the file's rotation; use backend='pyav'")
    decoder_of = _import_decoder()
    if isinstance(source, bytes | bytearray | memoryview):
        opened: Any = bytes(source)
        num_bytes = len(opened)
    else:
        opened, num_bytes = os.fspath(source), os.stat(source).st_size  # noqa: PTH116
    if num_bytes == 0:
        raise DecodeError(f"{name}: the file is empty (zero bytes)")
    try:
        decoder = decoder_of(opened, num_ffmpeg_threads=1)
        about = decoder.metadata
        first, end = Fraction(about.begin_stream_seconds), Fraction(about.end_stream_seconds)
        times = times_in(Span(first, end, about.num_frames), wanted, name)
        found = decoder.get_frames_in_range(0, about.num_frames) if times is None else _played_at(decoder, times, end)
        pictures: Tensor = found.data
        return _resized(pictures, size), found.pts_seconds
    except DecodeError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DecodeError(f"{name}: torchcodec: {error}") from error.with_traceback(None)


def _import_decoder() -> Any:
    try:
        from torchcodec.decoders import VideoDecoder  # pyright: ignore[reportMissingImports, reportUnknownVariableType]
    except (ImportError, RuntimeError, OSError) as error:  # it is missing, or FFmpeg's libraries are
        raise ImportError(
            "decode_video: backend='torchcodec' needs torchcodec and FFmpeg's libraries: pip install torchcodec, and "
            "FFmpeg from the system's packages. Or use backend='pyav'."
        ) from error
    return VideoDecoder  # pyright: ignore[reportUnknownVariableType]


def _played_at(decoder: Any, times: Sequence[float], end: Fraction) -> Any:
    """torchcodec refuses times past the end; the ones that are left by now mean the last frame."""
    if max(times) < end:
        return decoder.get_frames_played_at(list(times))
    last = decoder.get_frame_at(len(decoder) - 1).pts_seconds
    return decoder.get_frames_played_at([last if seconds >= end else seconds for seconds in times])


def _resized(pictures: Tensor, size: int | tuple[int, int] | None) -> Tensor:
    height, width = pictures.shape[-2:]
    shape = scaled((height, width), size)
    if shape == (height, width):
        return pictures
    return torch.nn.functional.interpolate(pictures, size=shape, mode="bilinear", antialias=True)
