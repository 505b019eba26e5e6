"""Mixed: three datasets in, one that decodes, one of plain Python, one of both; which place is best for each, out.

And whether the loader finds that place by itself, each time anew. Decoding gives the GIL away, the tokenizer keeps it.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from benchmarks.adapters import Collate
from benchmarks.case import Case, Cell, Column, Goal, Headline, Round
from benchmarks.cases.photographs import folder
from benchmarks.cases.tokens import Tokenizer, filled, learned, texts
from benchmarks.loaders import Entry, dataloader
from benchmarks.placed import AUTO, PROCESS, THREAD, choice_of, placed
from benchmarks.probes import Metrics, close
from torchstage import Stage, StagedDataset, StageLoader

NUM_SAMPLES = {"decode": 256, "python": 256, "both": 128}  # an epoch of about half a second
NUM_SAMPLES_QUICK = 128
NUM_IMAGES = 256
SIDE_PIXELS = 224
NUM_CHARACTERS = 1800  # about as long as a photograph takes, 4 ms
BATCH_SIZE = 16
NUM_WORKERS = 2
NUM_TURNS = 3
AUTO_SECONDS = 6.0  # of whole epochs, until it has found its place
WARM_UP_SECONDS = 3.0
NUM_TRIALS = 3
TRIAL_SECONDS = 3.0  # far more than a choice takes
NEARLY_BEST = 0.9  # a place that reaches this share of the best one's speed is as right as it


class Photographs(StagedDataset):
    """JPEG files, decoded and made small by Pillow."""

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self.files = sorted(folder(NUM_IMAGES).glob("*/*.jpg"))

    def __len__(self) -> int:
        return self.num_samples

    def fetch(self, index: int) -> Path:
        return self.files[index % len(self.files)]

    def decode(self, path: Path) -> torch.Tensor:
        return pixels(path)


class Tokens(StagedDataset):
    """Texts, tokenized in plain Python."""

    def __init__(self, num_samples: int) -> None:
        self.texts = texts(num_samples, NUM_CHARACTERS)
        self.tokenizer = Tokenizer(learned())

    def __len__(self) -> int:
        return len(self.texts)

    def fetch(self, index: int) -> str:
        return self.texts[index]

    def transform(self, text: str) -> torch.Tensor:
        return filled(self.tokenizer(text))


class Captioned(Photographs):
    """A photograph and a text: as long for the one as for the other."""

    def __init__(self, num_samples: int) -> None:
        super().__init__(num_samples)
        self.texts = texts(num_samples, NUM_CHARACTERS)
        self.tokenizer = Tokenizer(learned())

    def fetch(self, index: int) -> Any:
        return super().fetch(index), self.texts[index]

    def decode(self, sample: Any) -> Any:
        path, text = sample
        return pixels(path), text

    def transform(self, sample: Any) -> Any:
        return tokenized(sample, self.tokenizer)


def pixels(path: Path) -> torch.Tensor:
    """uint8, 3 x SIDE_PIXELS x SIDE_PIXELS."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as image:
        small = image.convert("RGB").resize((SIDE_PIXELS, SIDE_PIXELS))
    return torch.from_numpy(np.array(small)).permute(2, 0, 1)


def tokenized(sample: Any, tokenizer: Tokenizer) -> Any:
    """The text of a pair, as numbers; the rest as it is."""
    rest, text = sample
    return rest, filled(tokenizer(text))


DATASETS: dict[str, Callable[[int], Any]] = {"decode": Photographs, "python": Tokens, "both": Captioned}
TITLES = {"decode": "decode only", "python": "Python only", "both": "half and half"}


class Sources(Captioned):
    """What the stages by hand are given: where a photograph is, and a text."""

    decode = transform = None  # type: ignore[assignment] - a StagedDataset may have none


class TokenizeText:
    """In a process, and first: only the text travels."""

    def __init__(self) -> None:
        self.tokenizer = Tokenizer(learned())

    def __call__(self, sample: Any) -> Any:
        return tokenized(sample, self.tokenizer)


def decode_picture(sample: Any) -> Any:
    path, numbers = sample
    return pixels(path), numbers


def by_hand_loader(
    dataset: Any, batch_size: int, num_workers: int, *, shuffle: bool = False, collate_fn: Collate = default_collate
) -> Iterable[Any]:
    """Half and half as a user may lay it out by hand: decoding in threads, tokenizing in processes."""
    assert type(dataset) is Captioned
    return StageLoader(
        Sources(len(dataset)),
        batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        collate_fn=collate_fn,
        persistent_workers=True,
        stages=[Stage(TokenizeText(), name="tokenize", executor="process"), Stage(decode_picture)],
    )


def run(entry: Entry, quick: bool) -> Metrics:
    """All loaders of one dataset, in turns; then what auto chooses, each time anew."""
    name = entry.options["dataset"]
    dataset = DATASETS[name](NUM_SAMPLES_QUICK if quick else NUM_SAMPLES[name])
    places = {place: one for place, one in PLACES.items() if place != "both" or name == "both"}
    loaders = {
        key: one.build(dataset, BATCH_SIZE, shuffle=True)
        for key, one in {"dataloader": DATALOADER, "auto": AUTO_ENTRY, **places}.items()
    }
    for key, loader in loaders.items():
        _warm_up(loader, AUTO_SECONDS if key == "auto" else WARM_UP_SECONDS)
    speeds: dict[str, list[float]] = {key: [] for key in loaders}
    for turn in range(2 if quick else NUM_TURNS):
        keys = list(loaders)
        for key in keys[turn % len(keys) :] + keys[: turn % len(keys)]:
            speeds[key].append(_speed(loaders[key], len(dataset)))
    for loader in loaders.values():
        close(loader)
    medians = {key: statistics.median(found) for key, found in speeds.items()}
    best = max(medians[place] for place in places)
    right = [place for place in places if medians[place] >= NEARLY_BEST * best]
    counts = Counter(_choice(dataset) for _ in range(3 if quick else NUM_TRIALS))
    return {
        **{f"samples_per_second_{key}": median for key, median in medians.items()},
        "auto_against_best": medians["auto"] / best,
        "share_right": sum(counts[place] for place in right) / counts.total(),
    }


def _warm_up(loader: Any, seconds: float) -> None:
    """Whole epochs, until processes are up wherever there are some."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in loader:
            pass


def _speed(loader: Any, num_samples: int) -> float:
    """Of one epoch."""
    begin = time.perf_counter()
    num_batches = sum(1 for _ in loader)
    seconds = time.perf_counter() - begin
    assert num_batches == num_samples // BATCH_SIZE, "batches were lost"
    return num_batches * BATCH_SIZE / seconds


def _choice(dataset: Any) -> str | None:
    """Where a loader that is new chooses to run; None: it did not in time, which is wrong."""
    loader = AUTO_ENTRY.build(dataset, BATCH_SIZE, shuffle=True)
    begin = time.perf_counter()
    chosen = None
    while chosen is None and time.perf_counter() - begin < TRIAL_SECONDS:
        for _ in loader:
            chosen = choice_of(loader)
            if chosen is not None:
                break
    close(loader)
    return chosen


DATALOADER = dataloader(NUM_WORKERS)
AUTO_ENTRY = placed(AUTO, NUM_WORKERS)
BY_HAND = Entry(
    "stageloader-by-hand",
    "**StageLoader**, decoding in threads, tokenizing in processes",
    "torchstage",
    by_hand_loader,
    NUM_WORKERS,
    {},
    ("torchstage",),
)
PLACES = {"threads": placed(THREAD, NUM_WORKERS), "processes": placed(PROCESS, NUM_WORKERS), "both": BY_HAND}
ROWS = tuple(
    replace(AUTO_ENTRY, key=f"mixed-{name}", label=title, options={"dataset": name}) for name, title in TITLES.items()
)


def _figure(row: Entry, metric: str) -> Callable[[Round], float]:
    return lambda round_: round_[row.key][metric]


CASE = Case(
    name="mixed",
    title="Decoding, Python, and half of each",
    question=(
        f"JPEG files of 500 x 375 pixels, decoded and resized to {SIDE_PIXELS} x {SIDE_PIXELS} by Pillow; texts of "
        f"{NUM_CHARACTERS} characters for the tokenizer of the case above; and samples of both. Batch {BATCH_SIZE}, "
        f"shuffled, {NUM_WORKERS} workers, samples a second. All loaders of a row take turns in one process, an epoch "
        f"each, {NUM_TURNS} times, when they have run for a while. A choice is right if the place it names, set by "
        f"hand, reached {NEARLY_BEST:g} of the fastest place's median."
    ),
    entries=ROWS,
    run=run,
    imports=("PIL.Image", "torchstage"),
    columns=(
        Column("samples_per_second_dataloader", "DataLoader", 0),
        Column("samples_per_second_auto", "**StageLoader**, auto", 0),
        Column("samples_per_second_threads", "threads by hand", 0),
        Column("samples_per_second_processes", "processes by hand", 0),
        Column("samples_per_second_both", "decoding in threads, tokenizing in processes", 0),
        Column("auto_against_best", "auto / best by hand", 2),
        Column("share_right", f"right choices, of {NUM_TRIALS} new loaders", 2),
    ),
    goals=(
        *(
            Goal(
                f"StageLoader, auto / its best place by hand, {row.label}",
                _figure(row, "auto_against_best"),
                at_least=0.9,
            )
            for row in ROWS
        ),
        *(
            Goal(f"share of auto's choices that were right, {row.label}", _figure(row, "share_right"), at_least=1.0)
            for row in ROWS
        ),
    ),
    headline=Headline(
        unit="samples/s, half decoding and half Python",
        ours=(Cell(ROWS[2].key, "samples_per_second_auto", AUTO_ENTRY.label),),
        dataloader=(Cell(ROWS[2].key, "samples_per_second_dataloader", DATALOADER.label),),
        peers=(),
        why="Where half of a sample's time is plain Python, threads do not pay; the loader finds that out.",
    ),
    minutes=1.2,
)
