"""Clips: nothing in, a folder of short H.264 videos out, and how long each takes to decode.

Pans and zooms over the photographs of `photographs`, half of them with key frames far apart, half with close ones.
Guarantees: the same files every time, made once and kept under the system's temporary folder; a folder half made is
never seen under the final name.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cases.kept import kept
from benchmarks.cases.photographs import folder as photographs

WIDTH, HEIGHT = 320, 240
NUM_FRAMES, RATE = 90, 30
KEY_INTERVALS = (12, 250)  # close ones, and encoders' usual limit
BULK = 4  # clips that are read in one go
NUM_WANTED, SIZE = 8, (224, 224)
VERSION = 1  # raise it when the files change: the folder of another version is left alone


def folder(num_clips: int) -> Path:
    """`num_clips` files of 320 x 240 pixels and 3 s, their bytes already in the page cache."""
    return kept(f"h264-v{VERSION}-{num_clips}", partial(_fill, num_clips), "*.mp4")


def paths(num_clips: int) -> list[Path]:
    return sorted(folder(num_clips).glob("*.mp4"))


def read(files: Sequence[Path]) -> list[bytes]:
    return [file.read_bytes() for file in files]


def decode(clip: bytes) -> Any:
    """The decoder of every loader here."""
    from torchstage.decode import decode_video

    return decode_video(clip, num_frames=NUM_WANTED, size=SIZE)


def measured_seconds(num_clips: int) -> tuple[list[float], list[float]]:
    """The reading of each bulk and the decoding of each clip, one at a time: CPU seconds, kept beside the clips.

    CPU seconds, so that a busy machine does not make the waits longer.
    """
    seconds = folder(num_clips) / "seconds.json"
    if not seconds.exists():
        files = paths(num_clips)
        decode(files[0].read_bytes())  # imports, and tables that FFmpeg fills once
        bulks, clips = [], []
        for begin in range(0, num_clips, BULK):
            start = time.thread_time()
            contents = read(files[begin : begin + BULK])
            bulks.append(time.thread_time() - start)
            for content in contents:
                start = time.thread_time()
                decode(content)
                clips.append(time.thread_time() - start)
        unfinished = seconds.with_name(f"seconds-{os.getpid()}.json")
        unfinished.write_text(json.dumps([bulks, clips]))
        unfinished.replace(seconds)
    bulks, clips = json.loads(seconds.read_text())
    return bulks, clips


def _fill(num_clips: int, path: Path) -> None:
    from PIL import Image

    pictures = sorted(photographs(64).glob("*/*.jpg"))
    random_ = random.Random(0)
    for number in range(num_clips):
        with Image.open(pictures[number % len(pictures)]) as picture:
            _encode(path / f"{number:04}.mp4", picture.convert("RGB"), number, random_)


def _encode(path: Path, picture: Any, number: int, random_: random.Random) -> None:
    """A window that moves across the picture and grows or shrinks."""
    import av

    begin, end = _window(picture, random_), _window(picture, random_)
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "veryfast", "g": str(KEY_INTERVALS[number % 2]), "x264-params": "threads=1"}
        for k in range(NUM_FRAMES):
            share = k / (NUM_FRAMES - 1)
            box = tuple(round(a + share * (b - a)) for a, b in zip(begin, end, strict=True))
            frame = av.VideoFrame.from_image(picture.resize((WIDTH, HEIGHT), box=box))
            frame.pts, frame.time_base = k, Fraction(1, RATE)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def _window(picture: Any, random_: random.Random) -> tuple[int, int, int, int]:
    width = random_.randint(picture.width // 2, picture.width)
    height = width * HEIGHT // WIDTH
    left, top = random_.randint(0, picture.width - width), random_.randint(0, picture.height - height)
    return left, top, left + width, top + height
