"""Case: what one table asks: which loaders, what a fresh process measures, what is shown, what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from benchmarks.loaders import Entry
from benchmarks.probes import Metrics

QUICK_NAMES = (  # what `--quick` runs, unless cases are named: under five minutes on two cores
    "image_folder",
    "tensor_dataset",
    "decode_images",
    "video",
    "latency_fetch",
    "shards",
    "first_batch",
    "heavy_tail",
    "noop",
    "training_beside",
)
NAMES = (
    "image_folder",
    "jpeg_stream",
    "guards",
    "more_threads",
    "string_index",
    "cheap_memory",
    "tensor_dataset",
    "decode_images",
    "decode_large_images",
    "video",
    "video_sweep",
    "video_waits",
    "latency_fetch",
    "shards",
    "first_batch",
    "epoch_border",
    "heavy_tail",
    "noop",
    "growth_length",
    "growth_batch",
    "growth_threads",
    "resume",
    "state_cost",
    "training_beside",
    "python_bound",
    "transport",
    "mixed",
    "probe_prediction",
    "decode_places",
    "bad_samples",
    "transfer",
)

Round = Mapping[str, Metrics]  # an entry's key -> what it measured in this round


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is the metric's name; `digits` follow the point."""

    key: str
    heading: str
    digits: int


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of the project's plan. `got` is asked once a round; the median of the rounds is compared."""

    says: str
    got: Callable[[Round], float]
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Against:
    """Adds a column: this metric, divided by the highest of the `entries` in the same round."""

    metric: str
    entries: tuple[Entry, ...]
    heading: str = "against DataLoader's best"


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of each round: the metric of one entry. `name` is who it is of, as the pages say it."""

    key: str
    metric: str
    name: str


@dataclass(frozen=True, slots=True)
class Headline:
    """What a case comes down to: ours, DataLoader's best, the best of the other libraries; and what decides it.

    `why` is said to be true whoever is ahead. Where `less_is_better`, ratios are turned round: above 1, ours is ahead.
    """

    unit: str
    ours: tuple[Cell, ...]
    dataloader: tuple[Cell, ...]
    peers: tuple[Cell, ...]
    why: str
    digits: int = 0
    less_is_better: bool = False


def cells(metric: str, *entries: Entry) -> tuple[Cell, ...]:
    """The same metric of several entries."""
    return tuple(Cell(entry.key, metric, entry.label) for entry in entries)


@dataclass(frozen=True, slots=True)
class Case:
    """`run(entry, quick)` is called once in a process of its own, which has imported `imports` before.

    `minutes` is what a round takes on two cores, start of the processes included: for the estimate of a run.
    """

    name: str
    title: str
    question: str
    entries: tuple[Entry, ...]
    run: Callable[[Entry, bool], Metrics]
    columns: tuple[Column, ...]
    imports: tuple[str, ...] = ()
    goals: tuple[Goal, ...] = ()
    against: Against | None = None
    left_out_when_quick: tuple[Entry, ...] = ()
    headline: Headline | None = None
    minutes: float = 0.5


def load(name: str) -> Case:
    if name not in NAMES:
        raise SystemExit(f"there is no case '{name}'. Choose from: {', '.join(NAMES)}")
    return import_module(f"benchmarks.cases.{name}").CASE


def best(round_: Round, entries: tuple[Entry, ...], metric: str) -> str:
    """The key of the entry whose `metric` is highest in this round."""
    return max((entry.key for entry in entries if entry.key in round_), key=lambda key: round_[key][metric])


def against_best(
    ours: Entry, others: tuple[Entry, ...], metric: str = "samples_per_second"
) -> Callable[[Round], float]:
    """For a goal: the speed of an entry, divided by the best of the others in the same round."""
    return lambda round_: round_[ours.key][metric] / round_[best(round_, others, metric)][metric]
