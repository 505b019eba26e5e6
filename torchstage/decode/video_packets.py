"""Packets: an open container in, the packets of its video stream out, forward only, with jumps to key frames.

`PacketsInMemory` has read the whole file: every time is known before anything is decoded. `PacketsOnDisk` is for files
too large for that: it believes the header, and seeks. Guarantees: a jump lands on a key frame at or before the wanted
time, and only where that saves decoding; `read` gives None after the last packet, again and again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from torchstage.decode.fault import DecodeError
from torchstage.decode.video_choice import Span
from torchstage.decode.video_open import words_of

if TYPE_CHECKING:
    from av import Packet
    from av.container import InputContainer
    from av.video.stream import VideoStream

LONGEST_GROUP_SECONDS = 10  # encoders' usual limit between key frames: beyond it a blind seek pays
FALLBACK_RATE = 25  # FFmpeg's own for streams that carry no rate
MIN_MISSING_SECONDS, MIN_MISSING_SHARE = 1, Fraction(1, 10)  # a header's duration is often wrong by less


class PacketsInMemory:
    """All packets of the stream. `damage` says in words what the reader found wrong, or what the file lacks."""

    is_whole = True  # what the file holds is known, whatever its header says

    def __init__(self, container: InputContainer, stream: VideoStream, name: str) -> None:
        from av.error import FFmpegError

        self.time_base = time_base_of(stream, name)
        self.step = step_of(stream, self.time_base)
        self.damage: str | None = None
        self._name = name
        self._packets: list[Packet[Any]] = []
        self._next = 0
        ends: list[Fraction] = []  # of every stream: a file cut short ends early in all of them
        try:
            for packet in container.demux():
                if packet.size == 0:
                    continue  # FFmpeg's own at the end, and the empty ones of AVI: nothing new is shown
                if packet.stream_index == stream.index:
                    self._packets.append(packet)
                    if packet.is_corrupt:
                        self.damage = "the container's reader marks a packet as corrupt"
                if packet.pts is not None:
                    ends.append((packet.pts + (packet.duration or 0)) * packet.time_base)
        except FFmpegError as error:
            self.damage = words_of(error)
        shown = [packet for packet in self._packets if not getattr(packet, "is_discard", False)]
        times = sorted(packet.pts for packet in shown if packet.pts is not None)
        self.is_timed = bool(times) and len(times) == len(shown)
        self.is_foreseen = self.is_timed and len(set(times)) == len(times)
        self._times = times if self.is_timed else [k * self.step for k in range(len(shown))]
        keys = [(p.pts, k) for k, p in enumerate(self._packets) if p.is_keyframe and p.pts is not None]
        self._keys = sorted(keys) if self.is_timed else []
        self._last_duration = max(((p.pts, p.duration or 0) for p in shown if p.pts is not None), default=(0, 0))[1]
        self.damage = self.damage or missing_part(container, stream, len(self._packets), max(ends, default=Fraction(0)))

    def span(self) -> Span:
        """From the packets' own times. A last packet without a duration lasts as long as the others on average."""
        times = self._times
        if not times:
            raise DecodeError(f"{self._name}: the video stream holds no frame")
        usual = (times[-1] - times[0]) // (len(times) - 1) if len(times) > 1 else 0
        end = times[-1] + (self._last_duration or usual or self.step)
        return Span(times[0] * self.time_base, end * self.time_base, len(times))

    def planned(self, seconds: float) -> int | None:
        """The time, in ticks, of the frame for `seconds`, if the packets tell it."""
        place = bisect_right(self._times, seconds, key=self.seconds)
        return self._times[place - 1] if place and self.is_timed else None

    def seconds(self, ticks: int) -> float:
        return ticks * self.time_base.numerator / self.time_base.denominator

    def read(self, conceal: bool) -> Packet[Any] | None:
        if self._next == len(self._packets):
            return None
        self._next += 1
        return self._packets[self._next - 1]

    def jump(self, seconds: float) -> bool:
        """Go on at the last key frame at or before `seconds`, if it lies ahead. True: the decoder starts anew."""
        place = bisect_right(self._keys, seconds, key=lambda key: self.seconds(key[0]))
        if not place or self._keys[place - 1][1] <= self._next:
            return False
        self._next = self._keys[place - 1][1]
        return True

    def rewind(self) -> None:
        self._next = 0

    def close(self) -> None:
        self._packets.clear()


class PacketsOnDisk:
    """One packet at a time, from the container's file."""

    is_whole, is_timed, is_foreseen = False, True, False

    def __init__(self, container: InputContainer, stream: VideoStream, name: str) -> None:
        from av.error import FFmpegError

        self.time_base = time_base_of(stream, name)
        self.step = step_of(stream, self.time_base)
        self._name, self._ffmpeg_error = name, FFmpegError
        self._container, self._stream = container, stream
        self._demux: Iterator[Packet[Any]] = container.demux(stream)
        self._pushed_back: Packet[Any] | None = None
        self._position: int | None = None  # decoding time of the packet read last
        self._sought: int | None = None

    def span(self) -> Span:
        """As the header says: reading the whole file would cost more than decoding a few frames of it."""
        stream, container = self._stream, self._container
        first, length = stream.start_time, stream.duration
        begin = first * self.time_base if first is not None else Fraction(container.start_time or 0, 10**6)
        if length:
            return Span(begin, begin + length * self.time_base, stream.frames or None)
        if not container.duration:
            raise DecodeError(f"{self._name}: the header tells no duration; give timestamps instead of num_frames")
        return Span(begin, begin + Fraction(container.duration, 10**6), stream.frames or None)

    def planned(self, seconds: float) -> None:
        """Not known before the frames come."""

    def seconds(self, ticks: int) -> float:
        return ticks * self.time_base.numerator / self.time_base.denominator

    def read(self, conceal: bool) -> Packet[Any] | None:
        packet, self._pushed_back = self._pushed_back, None
        try:
            while packet is None or packet.size == 0:
                packet = next(self._demux)
        except StopIteration:
            return None
        except self._ffmpeg_error:
            if conceal:
                return None
            raise
        self._position = packet.dts if packet.dts is not None else packet.pts
        return packet

    def jump(self, seconds: float) -> bool:
        """Seek to a key frame at or before `seconds`, if one is known, or likely, to lie ahead. Once for each time."""
        target = int(Fraction(seconds) // self.time_base)
        if target == self._sought or not self._is_ahead(target):
            return False
        self._sought = target
        begin, back = self._stream.start_time or 0, 0
        while True:
            try:
                self._seek(max(begin, target - back))
            except OSError:  # a container that cannot seek: go on reading
                return False
            key = self._first_key()
            # Containers look up decoding times, or guess: what they find may be shown after `seconds`.
            if key is not None and (key.pts is None or key.pts <= target):
                self._pushed_back = key
                return True
            if target - back <= begin:
                self.rewind()
                return True
            back = 2 * back or int(1 / self.time_base)

    def _seek(self, ticks: int) -> None:
        self._container.seek(ticks, stream=self._stream)
        self._demux, self._pushed_back = self._container.demux(self._stream), None

    def _first_key(self) -> Packet[Any] | None:
        while (packet := self.read(conceal=True)) is not None and not packet.is_keyframe:
            pass
        return packet

    def _is_ahead(self, target: int) -> bool:
        position = self._position if self._position is not None else (self._stream.start_time or 0)
        index = getattr(self._stream, "index_entries", None)  # PyAV 16 and newer
        if index is not None and len(index) > 1:
            place = index.search_timestamp(target)
            return place >= 0 and index[place].timestamp > position
        return (target - position) * self.time_base > LONGEST_GROUP_SECONDS

    def rewind(self) -> None:
        """To the very first packet, which may be decoded well before the first frame is shown."""
        begin = self._stream.start_time or 0
        try:
            self._seek(begin - int(1 / self.time_base))
        except OSError:  # some containers refuse a time before their first
            self._seek(begin)

    def close(self) -> None:
        self._demux, self._pushed_back = iter(()), None


def time_base_of(stream: VideoStream, name: str) -> Fraction:
    if not stream.time_base:
        raise DecodeError(f"{name}: the video stream has no time base")
    return stream.time_base


def step_of(stream: VideoStream, time_base: Fraction) -> int:
    """Ticks between two frames at the stream's own rate; only used where the frames carry no times."""
    rate = stream.average_rate or stream.guessed_rate or FALLBACK_RATE
    return max(1, round(1 / (rate * time_base)))


def missing_part(container: InputContainer, stream: VideoStream, num_packets: int, end: Fraction) -> str | None:
    """What the header promises and the file does not hold, in words; None where nothing is known to be missing."""
    if container.format.name.startswith("mov") and num_packets < stream.frames:  # others only estimate the count
        return f"the header counts {stream.frames} frames, the file holds {num_packets}"
    if container.duration:
        promised = Fraction(container.duration, 10**6)  # Matroska counts from 0, others from the first frame
        if promised - end > max(MIN_MISSING_SECONDS, promised * MIN_MISSING_SHARE):
            return f"the header tells {float(promised):g} s, the file ends at {float(end):g} s"
    return None
