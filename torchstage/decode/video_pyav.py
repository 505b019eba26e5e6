"""PyAV: a clip and what is wanted of it in, pictures and times out. `video` says what the caller is promised.

Guarantees: only the wanted frames become pictures; the decoder goes on at the key frame nearest before a wanted frame
where that saves work; H.264 frames that nobody wants and no other frame refers to are not decoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from torchstage.decode.fault import DecodeError
from torchstage.decode.video_choice import Wanted, out_of_reach, times_in
from torchstage.decode.video_open import OF_THE_SYSTEM, Source, open_container, video_stream, words_of
from torchstage.decode.video_packets import PacketsInMemory, PacketsOnDisk
from torchstage.decode.video_pixels import Painter

if TYPE_CHECKING:
    from av import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

LARGEST_IN_MEMORY = 64 * 2**20  # bytes of a file whose packets are all kept while it is decoded

Timed = tuple[int, "VideoFrame"]  # a frame, and when it is first shown, in ticks of the stream


def decode(
    source: Source, name: str, wanted: Wanted, size: int | tuple[int, int] | None, conceal: bool, rotate: bool
) -> tuple[Tensor, Tensor]:
    """uint8 (T, 3, H, W) and float64 seconds (T,)."""
    try:
        from av.error import FFmpegError
    except ModuleNotFoundError as error:
        raise ImportError("decode_video needs PyAV: pip install 'torchstage[video]'") from error
    try:
        with Clip(source, name, conceal) as clip:
            return clip.pictures(wanted, Painter(size, rotate))
    except FFmpegError as error:
        if isinstance(error, OSError) and error.errno in OF_THE_SYSTEM:
            raise
        raise DecodeError(f"{name}: {words_of(error)}") from error.with_traceback(None)


class Clip:
    """An open clip: its container, the packets of its video stream, and their decoder."""

    def __init__(self, source: Source, name: str, conceal: bool) -> None:
        from av.error import FFmpegError

        self._name, self._conceal, self._ffmpeg_error = name, conceal, FFmpegError
        self._ready: deque[Timed] = deque()
        self._needed: frozenset[int | None] | None = None  # times whose frames must be decoded; None: all
        self._drained = False
        self._num_decoded = 0
        self._container, num_bytes = open_container(source, name)
        try:
            stream = video_stream(self._container, name)
            self._codec = stream.codec_context
            self._packets = self._read(stream, num_bytes)
        except BaseException:
            self._container.close()
            raise

    def _read(self, stream: VideoStream, num_bytes: int) -> PacketsInMemory | PacketsOnDisk:
        if num_bytes > LARGEST_IN_MEMORY:
            return PacketsOnDisk(self._container, stream, self._name)
        packets = PacketsInMemory(self._container, stream, self._name)
        if packets.damage is not None and not self._conceal:
            raise self._damaged(packets.damage)
        return packets

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, and let go of all that is large, whoever still holds this clip (a traceback does)."""
        self._ready.clear()
        self._packets.close()
        self._container.close()
        del self._packets, self._codec, self._container

    def pictures(self, wanted: Wanted, painter: Painter) -> tuple[Tensor, Tensor]:
        times = times_in(self._packets.span(), wanted, self._name)
        if times is None:
            return self._every(painter)
        if self._codec.name == "h264" and self._packets.is_foreseen:  # elsewhere "not referred to" is less certain
            self._needed = frozenset(self._packets.planned(seconds) for seconds in times)
            if (found := self._chosen(times, wanted, painter)) is not None:
                return found
            self._begin_anew()
        found = self._chosen(times, wanted, painter)
        assert found is not None, "every frame was decoded, so none can be missing"
        return found

    def _every(self, painter: Painter) -> tuple[Tensor, Tensor]:
        pictures: list[Tensor] = []
        seconds: list[float] = []
        while (timed := self._next()) is not None:
            pictures.append(painter.paint(timed[1]).contiguous())
            seconds.append(self._packets.seconds(timed[0]))
        if not pictures:
            raise DecodeError(f"{self._name}: no frame could be decoded")
        return torch.stack(pictures), torch.tensor(seconds, dtype=torch.float64)

    def _chosen(self, times: list[float], wanted: Wanted, painter: Painter) -> tuple[Tensor, Tensor] | None:
        """The frames for `times`. None: a frame came that was not foreseen, and one left out may be the right one."""
        found: dict[int, tuple[Tensor, float]] = {}
        last, picture = None, None
        for place, timed in self._in_order(times, wanted.missing):
            if self._needed is not None and timed[0] not in self._needed:
                return None
            if picture is None or timed is not last:
                last, picture = timed, painter.paint(timed[1]).contiguous()
            found[place] = picture, self._packets.seconds(timed[0])
        if not found:
            raise DecodeError(f"{self._name}: no frame is shown at any of the times that were asked for")
        pictures, seconds = zip(*(found[place] for place in sorted(found)), strict=True)
        return torch.stack(pictures), torch.tensor(seconds, dtype=torch.float64)

    def _in_order(self, times: list[float], missing: str) -> Iterator[tuple[int, Timed]]:
        """For each time, the earliest first: its place in `times`, and the last frame at or before it."""
        packets = self._packets
        held: Timed | None = None
        ahead: Timed | None = None
        for place in sorted(range(len(times)), key=times.__getitem__):
            planned = packets.planned(times[place])
            while held is None or held[0] != planned:
                ahead = ahead or self._next(times[place])
                if ahead is None or packets.seconds(ahead[0]) > times[place]:
                    break
                held, ahead = ahead, None
            if held is None:
                raise DecodeError(f"{self._name}: no frame at or before {times[place]:g} s could be decoded")
            if ahead is None and held[0] != planned and not packets.is_whole:  # the header told a later end
                end = packets.seconds(held[0] + (getattr(held[1], "duration", 0) or packets.step))
                if times[place] >= end and missing == "raise":
                    raise out_of_reach(self._name, [times[place]], float(packets.span().first), end)
                if times[place] >= end and missing == "drop":
                    continue
            yield place, held

    def _next(self, toward: float | None = None) -> Timed | None:
        """The next frame in the order of presentation; or, on the way to `toward` seconds, one nearer to them."""
        if toward is not None and not self._drained and self._packets.jump(toward):
            self._codec.flush_buffers()
            self._ready.clear()
        while not self._ready and not self._drained:
            packet = self._packets.read(self._conceal)
            self._drained = packet is None
            self._decode(packet)
        return self._ready.popleft() if self._ready else None

    def _decode(self, packet: Packet[Any] | None) -> None:
        """Hand a packet (None: there are no more) to the decoder, and take the frames that are ready."""
        if self._needed is not None and packet is not None:
            self._codec.skip_frame = "DEFAULT" if packet.pts in self._needed else "NONREF"
        try:
            frames = self._codec.decode(packet)  # pyright: ignore[reportUnknownMemberType] - PyAV's Packet is a bare generic
        except self._ffmpeg_error as error:
            if self._conceal:
                return
            raise self._damaged(words_of(error), packet.pts if packet is not None else None) from error.with_traceback(
                None
            )
        for frame in frames:
            ticks = (
                frame.pts
                if self._packets.is_timed and frame.pts is not None
                else self._num_decoded * self._packets.step
            )
            self._num_decoded += 1
            if frame.is_corrupt and not self._conceal:
                raise self._damaged("FFmpeg marks a frame as corrupt", ticks)
            self._ready.append((ticks, frame))

    def _begin_anew(self) -> None:
        self._packets.rewind()
        self._codec.flush_buffers()
        self._codec.skip_frame = "DEFAULT"
        self._ready.clear()
        self._needed, self._drained, self._num_decoded = None, False, 0

    def _damaged(self, what: str, ticks: int | None = None) -> DecodeError:
        where = "" if ticks is None else f" at {self._packets.seconds(ticks):g} s"
        return DecodeError(
            f"{self._name}: the clip is damaged{where}: {what}. damaged='conceal' takes what can be decoded."
        )
