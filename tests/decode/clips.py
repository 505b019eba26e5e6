"""Clips: small real videos, made with PyAV when a test asks for them.

Frame k of every clip shows k as its brightness (see `number_in`), so a test knows which frame it got.
"""

import io
import struct
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import torch

RATE = 30
TIME_BASE = Fraction(1, 90_000)
TICKS = 3_000  # between two frames at RATE
LEVELS = 6  # brightness a frame: 40 frames fit into a byte, and lossy coding moves it by less than half of that


def make_clip(
    num_frames: int = 30,
    *,
    times: Sequence[int] | None = None,
    codec: str = "libx264",
    container: str = "mp4",
    width: int = 64,
    height: int = 48,
    key_interval: int = 250,
    num_b_frames: int = 0,
    rotation: float | None = None,
    sound: bool = False,
    noise: int = 0,
    pix_fmt: str = "yuv420p",
) -> bytes:
    """`times`: when each frame is shown, in units of TIME_BASE; None: RATE frames a second from 0."""
    times = [k * TICKS for k in range(num_frames)] if times is None else times
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, pix_fmt
        # MPEG encoders know few clocks; the frames' own times are put into this one.
        stream.codec_context.time_base = Fraction(1, RATE) if codec.startswith("mpeg") else TIME_BASE
        stream.codec_context.gop_size = key_interval
        if codec == "libx264":
            # Fixed groups: no key frame where the picture changes, and B-frames wherever they are allowed.
            params = f"scenecut=0:keyint={key_interval}:min-keyint={key_interval}:bframes={num_b_frames}:b-adapt=0"
            stream.options = {"x264-params": params + ":crf=12:threads=1", "preset": "veryfast"}
        else:
            stream.bit_rate = 8_000_000  # so that small steps of brightness are not saved away
            if codec == "libvpx-vp9":
                stream.options = {"deadline": "realtime", "cpu-used": "8"}
        if rotation is not None:
            stream.set_display_rotation(rotation)
        audio = output.add_stream("aac", rate=16_000) if sound else None
        for k, ticks in enumerate(times):
            frame = picture(k, width, height, noise).reformat(format=pix_fmt)
            frame.pts, frame.time_base = ticks, TIME_BASE
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            write_sound(output, audio, seconds=len(times) / RATE)
    return file.getvalue()


def picture(k: int, width: int, height: int, noise: int = 0) -> av.VideoFrame:
    """Brightness says k; the top left quarter is brighter, so that a turn shows."""
    pixels = np.full((height, width, 3), 10 + LEVELS * k % 240, np.float64)
    if noise:
        pixels += np.random.default_rng(k).normal(0, noise, pixels.shape)
    pixels[: height // 2, : width // 2] += 40
    return av.VideoFrame.from_ndarray(pixels.clip(0, 255).astype(np.uint8), format="rgb24")


def number_in(frame: torch.Tensor) -> int:
    """Which frame of a clip a decoded (3, H, W) picture is, by the brightness of its lower right part."""
    height, width = frame.shape[-2:]
    return round((frame[:, height * 5 // 8 :, width * 5 // 8 :].double().mean().item() - 10) / LEVELS)


def numbers_in(frames: torch.Tensor) -> list[int]:
    return [number_in(frame) for frame in frames]


def write_sound(output: av.container.OutputContainer, stream: av.AudioStream, seconds: float) -> None:
    samples = np.zeros((1, int(16_000 * seconds)), np.float32)
    for begin in range(0, samples.shape[1] - 1023, 1024):
        frame = av.AudioFrame.from_ndarray(samples[:, begin : begin + 1024], format="fltp", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 16_000, begin, Fraction(1, 16_000)
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))


@cache
def sound_only() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        write_sound(output, output.add_stream("aac", rate=16_000), seconds=1)
    return file.getvalue()


def times_of(clip: bytes) -> list[float]:
    """What FFmpeg's own plain decoding says: the times of all frames, in the order of presentation."""
    with av.open(io.BytesIO(clip)) as container:
        return [
            frame.pts * frame.time_base.numerator / frame.time_base.denominator for frame in container.decode(video=0)
        ]


def without_index(clip: bytes) -> bytes:
    """An mp4 whose moov atom, which says where the frames are, is gone: a recording that was never closed."""
    place = clip.rindex(b"moov") - 4
    (length,) = struct.unpack(">I", clip[place : place + 4])
    return clip[:place] + clip[place + length :]


def index_first(clip: bytes) -> bytes:
    """The same packets, the moov atom in front: cut short, such a file still opens."""
    with tempfile.TemporaryDirectory() as folder:  # FFmpeg reads its own output again for this
        path = Path(folder) / "clip.mp4"
        options = {"movflags": "faststart"}
        with av.open(io.BytesIO(clip)) as source, av.open(str(path), "w", options=options) as output:
            stream = output.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    output.mux(packet)
        return path.read_bytes()


def damaged(clip: bytes, first: int, last: int) -> bytes:
    """The clip with most of each packet from number `first` to `last` inverted; their headers are left as they were."""
    spoiled = bytearray(clip)
    with av.open(io.BytesIO(clip)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        for packet in packets[first : last + 1]:
            for place in range(packet.pos + 24, packet.pos + packet.size):
                spoiled[place] ^= 0xFF
    return bytes(spoiled)
