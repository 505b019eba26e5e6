"""Open: bytes or a path in, FFmpeg's container and its video stream out.

Guarantees: a path is a file and nothing else (never a URL or a pattern); a clip can make FFmpeg open nothing but
itself; FFmpeg's codecs are silent for this clip alone, through an option and not through the process-wide hook.
"""

from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING

from torchstage.decode.fault import DecodeError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.error import FFmpegError
    from av.video.stream import VideoStream

Source = bytes | bytearray | memoryview | str | os.PathLike[str]

# Added to the level of each message of this clip's codecs: above TRACE (56), so that FFmpeg's callback, whichever is
# installed, drops it at once. PyAV's looks at the level before it takes the GIL.
SILENT = {"log_level_offset": "100"}
ATTACHED_PICTURE, DEFAULT = 0x400, 0x1  # AV_DISPOSITION_*: the cover of an album is no video
OF_THE_SYSTEM = frozenset({errno.ENOENT, errno.EACCES, errno.EISDIR, errno.EMFILE, errno.ENFILE, errno.EIO})


def open_container(source: Source, name: str) -> tuple[InputContainer, int]:
    """The container, and the number of bytes behind it."""
    import av

    if isinstance(source, bytes | bytearray | memoryview):
        num_bytes, file, may_open = len(source), io.BytesIO(source), "none"
    else:
        # "file:" keeps FFmpeg from reading a colon in a file's name as a protocol.
        num_bytes, file, may_open = os.stat(source).st_size, f"file:{os.fspath(source)}", "file"  # noqa: PTH116
    if num_bytes == 0:
        raise DecodeError(f"{name}: the file is empty (zero bytes)")
    return av.open(file, mode="r", options={**SILENT, "protocol_whitelist": may_open}), num_bytes


def video_stream(container: InputContainer, name: str) -> VideoStream:
    """The stream that the file marks as its default, else the first; its decoder runs in the caller's thread."""
    streams = [s for s in container.streams.video if not getattr(s, "disposition", 0) & ATTACHED_PICTURE]
    if not streams:
        others = ", ".join(sorted({stream.type for stream in container.streams})) or "nothing"
        raise DecodeError(f"{name}: there is no video stream; the file holds: {others}")
    stream = next((s for s in streams if getattr(s, "disposition", 0) & DEFAULT), streams[0])
    codec = stream.codec_context
    if codec is None:  # pyright: ignore[reportUnnecessaryComparison] - PyAV's types leave it out
        raise DecodeError(f"{name}: FFmpeg has no decoder for the video stream")
    codec.options = dict(SILENT)
    # Many loader threads decode at once: more threads would not help, and FFmpeg's own have deadlocked.
    codec.thread_count = 1
    codec.thread_type = "NONE"
    return stream


def words_of(error: FFmpegError) -> str:
    """FFmpeg's words for its error code. Not its log: that is of whichever thread wrote last."""
    return f"FFmpeg: {error.strerror or type(error).__name__}"
