"""Probe prediction: nine functions in, what the probe expects of threads and processes beside what these give, out.

    python -m benchmarks probe_prediction && python -m benchmarks.cases.probe_prediction      # measure, then draw

The second command draws the table into docs/probe.md. The functions differ in how much of their time they hold the GIL:
from all of it (plain Python, JSON) to none (waiting), with libraries in between.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks import table
from benchmarks.case import Case, Column, Goal, Round
from benchmarks.cases.mixed import NUM_CHARACTERS, NUM_IMAGES, pixels
from benchmarks.cases.photographs import folder
from benchmarks.cases.tokens import Tokenizer, corpus, filled, learned, texts
from benchmarks.loaders import Entry
from benchmarks.placed import PROCESS, THREAD, placed
from benchmarks.probes import Metrics, close

NUM_WORKERS, BATCH_SIZE, NUM_SAMPLES = 2, 16, 4096
TURN_SECONDS, TURN_SECONDS_QUICK, NUM_TURNS = 1.5, 0.5, 3
WARM_UP_BATCHES = 4
HASHED_BYTES, PACKED_BYTES = 2_000_000, 60_000
MATRIX_SIZE, NUM_PRODUCTS = 64, 60
WAIT_SECONDS = 0.005
NEARLY_BEST = 0.9  # a place that reaches this share of the best one's speed is as right as it
PAGE = Path(__file__).parents[2] / "docs/probe.md"
RESULT = Path(__file__).parents[1] / "results/probe_prediction.json"
BEGIN, END = "<!-- drawn by benchmarks/cases/probe_prediction.py -->", "<!-- end of what is drawn -->"

Make = Callable[[], Callable[[int], Any]]


class Made(Dataset[Any]):
    """Sample i is what the function of this name makes of i. Whoever uses it makes the function's data anew."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = FUNCTIONS[name]()

    def __reduce__(self) -> Any:
        return Made, (self.name,)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def jpeg() -> Callable[[int], Any]:
    files = sorted(folder(NUM_IMAGES).glob("*/*.jpg"))
    return lambda index: pixels(files[index % len(files)])


def resize() -> Callable[[int], Any]:
    picture = torch.rand(1, 3, 375, 500)
    return lambda index: torch.nn.functional.interpolate(picture, (224, 224), mode="bilinear", antialias=True)[0]


def compress() -> Callable[[int], Any]:
    data = corpus().encode()[:PACKED_BYTES]
    return lambda index: len(zlib.compress(data))


def sha256() -> Callable[[int], Any]:
    data = bytes(HASHED_BYTES)
    return lambda index: hashlib.sha256(data).digest()[0]


def matmul() -> Callable[[int], Any]:
    import numpy as np

    matrix = np.eye(MATRIX_SIZE, dtype=np.float32)

    def multiply(index: int) -> float:
        product = matrix
        for _ in range(NUM_PRODUCTS):
            product = product @ matrix
        return float(product[0, 0])

    return multiply


def tokenize() -> Callable[[int], Any]:
    tokenizer, lines = Tokenizer(learned()), texts(256, NUM_CHARACTERS)
    return lambda index: filled(tokenizer(lines[index % len(lines)]))


def parse_json() -> Callable[[int], Any]:
    text = json.dumps([{"index": number, "words": ["a", "few", "words"], "value": number / 7} for number in range(900)])
    return lambda index: len(json.loads(text))


def wait() -> Callable[[int], Any]:
    def sleep(index: int) -> int:
        time.sleep(WAIT_SECONDS)
        return index

    return sleep


def half_and_half() -> Callable[[int], Any]:
    decode, cut = jpeg(), tokenize()
    return lambda index: (decode(index), cut(index))


FUNCTIONS: dict[str, Make] = {
    "jpeg": jpeg,
    "resize": resize,
    "compress": compress,
    "sha256": sha256,
    "matmul": matmul,
    "tokenize": tokenize,
    "json": parse_json,
    "wait": wait,
    "half": half_and_half,
}
TITLES = {
    "jpeg": "decode a JPEG file, Pillow",
    "resize": "resize a picture, torch",
    "compress": f"zlib, {PACKED_BYTES:,} bytes of text",
    "sha256": f"SHA-256, {HASHED_BYTES:,} bytes",
    "matmul": f"{NUM_PRODUCTS} products of {MATRIX_SIZE} x {MATRIX_SIZE}, NumPy",
    "tokenize": "tokenizer, plain Python",
    "json": "parse JSON",
    "wait": f"wait {1e3 * WAIT_SECONDS:g} ms",
    "half": "JPEG file and tokenizer",
}


def run(entry: Entry, quick: bool) -> Metrics:
    """What is predicted first, as for a user; then threads and processes in turns."""
    from torchstage.probe.measured import predicted

    dataset = Made(entry.options["function"])
    prediction = predicted(dataset, BATCH_SIZE, NUM_WORKERS)
    assert prediction is not None, "too little was seen"
    loaders = {"threads": _loader(dataset, THREAD), "processes": _loader(dataset, PROCESS)}
    speeds: dict[str, list[float]] = {place: [] for place in loaders}
    for _ in range(1 if quick else NUM_TURNS):
        for place, loader in loaders.items():
            speeds[place].append(_speed(loader, TURN_SECONDS_QUICK if quick else TURN_SECONDS))
    for loader in loaders.values():
        close(loader)
    got = {place: statistics.median(found) for place, found in speeds.items()}
    expected = {"threads": prediction.threads_per_second, "processes": prediction.processes_per_second}
    best_expected = max(expected, key=lambda place: expected[place])
    return {
        "sample_ms": 1e3 * prediction.sample_seconds,
        "share_without_gil": prediction.share_without_gil,
        **{f"expected_{place}": value for place, value in expected.items()},
        **{f"got_{place}": value for place, value in got.items()},
        **{f"ratio_{place}": expected[place] / got[place] for place in got},
        "is_right": float(got[best_expected] >= NEARLY_BEST * max(got.values())),
    }


def _loader(dataset: Any, method: str) -> Any:
    return placed(method, NUM_WORKERS).build(dataset, BATCH_SIZE)


def _speed(loader: Any, seconds: float) -> float:
    """Samples a second, without the first few batches: then all threads and processes are there."""
    num_batches, begin = 0, time.perf_counter()
    for number, _ in enumerate(loader):
        if number == WARM_UP_BATCHES:
            num_batches, begin = 0, time.perf_counter()
        num_batches += 1
        if number > WARM_UP_BATCHES and time.perf_counter() - begin >= seconds:
            break
    return (num_batches - 1) * BATCH_SIZE / (time.perf_counter() - begin)


ROWS = tuple(
    replace(placed(THREAD, NUM_WORKERS), key=f"probe-{name}", label=title, options={"function": name})
    for name, title in TITLES.items()
)


def _middle_of(metric: str) -> Callable[[Round], float]:
    """By how much a typical function's prediction is off, in either direction: 1 is exact."""
    return lambda round_: statistics.median(
        max(found[metric], 1 / found[metric]) for row in ROWS if (found := round_.get(row.key))
    )


CASE = Case(
    name="probe_prediction",
    title="What the probe predicts",
    question=(
        f"Each function makes the samples of a dataset; batch {BATCH_SIZE}. One thread alone works for up to half a "
        "second and is looked at. From this come its milliseconds a sample, the share of them without the GIL, and "
        f"the samples a second that are expected of {NUM_WORKERS} threads and of {NUM_WORKERS} processes. Then both "
        f"are measured, {NUM_TURNS} times in turn, and the median is taken. Right: the place of which more is expected "
        f"gave {NEARLY_BEST:g} of the better one or more."
    ),
    entries=ROWS,
    run=run,
    imports=("PIL.Image", "torchstage"),
    columns=(
        Column("sample_ms", "ms a sample", 2),
        Column("share_without_gil", "without the GIL", 2),
        Column("expected_threads", "threads, predicted", 0),
        Column("got_threads", "threads, measured", 0),
        Column("ratio_threads", "predicted / measured", 2),
        Column("expected_processes", "processes, predicted", 0),
        Column("got_processes", "processes, measured", 0),
        Column("ratio_processes", "predicted / measured", 2),
        Column("is_right", "right", 0),
    ),
    goals=(
        Goal(
            "a typical function's threads, predicted and measured, apart by", _middle_of("ratio_threads"), at_most=1.25
        ),
        Goal("its processes, apart by", _middle_of("ratio_processes"), at_most=1.25),
        Goal(
            "share of functions for which the right place was predicted",
            lambda round_: statistics.mean(found["is_right"] for row in ROWS if (found := round_.get(row.key))),
            at_least=1.0,
        ),
    ),
)


def drawn(page: str) -> str:
    """docs/probe.md with the table of what was measured."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = "Not measured yet." if not RESULT.exists() else _table(json.loads(RESULT.read_text()))
    return f"{before}{BEGIN}\n\n{told}\n\n{END}{after}"


def _table(result: dict[str, Any]) -> str:
    """Without its heading: the page has one."""
    return table.of_case(result).partition("\n\n")[2].strip()


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
