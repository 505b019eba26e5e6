"""Summary: a case's headline and its results in; ours, DataLoader's best, the best peer, and their ratios out.

Guarantees: figures come from results alone; a ratio is taken within a round, against the best of that round; a case
without results, or whose results lack what the headline asks for, gives a summary that says so by its empty lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import NAMES, Case, Cell, Headline, load

RESULTS = Path(__file__).parent / "results"
NOT_YET = "not measured yet"
FEWEST_ROUNDS = 3  # to say that one is ahead of another
AHEAD, BEHIND, EVEN = "ahead in each round", "behind in each round", "neither"
FEW = f"fewer than {FEWEST_ROUNDS} rounds"

Measured = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Best:
    """The best of some loaders. `name` is the one with the best median; a figure is the best of its round.

    `ratios` are ours against it, above 1 where ours is ahead.
    """

    name: str = ""
    figures: list[float] = field(default_factory=list[float])
    ratios: list[float] = field(default_factory=list[float])


@dataclass(frozen=True, slots=True)
class Summary:
    case: Case
    headline: Headline
    ours: Best
    dataloader: Best
    peers: Best

    @property
    def is_measured(self) -> bool:
        return bool(self.ours.figures)


def summaries() -> Iterator[Summary]:
    """Of each case that has a headline, in the order of the cases."""
    for name in NAMES:
        case = load(name)
        if case.headline is not None:
            yield summary(case, case.headline, result_of(name))


def result_of(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def summary(case: Case, headline: Headline, result: dict[str, Any] | None) -> Summary:
    rounds: list[Measured] = result["rounds"] if result else []
    ours = _best(headline, headline.ours, (), rounds)
    others = [_best(headline, cells, headline.ours, rounds) for cells in (headline.dataloader, headline.peers)]
    return Summary(case, headline, ours, *others)


def _best(headline: Headline, cells: Sequence[Cell], ours: Sequence[Cell], rounds: Sequence[Measured]) -> Best:
    best: Callable[[list[float]], float] = min if headline.less_is_better else max
    by_name = {cell.name: found for cell in cells if (found := _figures(cell, rounds))}
    if not by_name:
        return Best()
    name = best_key(by_name, less_is_better=headline.less_is_better)
    figures, ratios = list[float](), list[float]()
    for measured in rounds:
        theirs, mine = (_of_round(some, measured) for some in (cells, ours))
        if not theirs:
            continue
        figures.append(best(theirs))
        if mine:
            ratio = best(mine) / best(theirs)
            ratios.append(1 / ratio if headline.less_is_better else ratio)
    return Best(name, figures, ratios)


def verdict(ratios: Sequence[float]) -> str:
    """What the rounds together allow to say."""
    if len(ratios) < FEWEST_ROUNDS:
        return FEW
    return AHEAD if min(ratios) > 1 else BEHIND if max(ratios) < 1 else EVEN


def best_key(by_name: dict[str, list[float]], *, less_is_better: bool) -> str:
    """The name whose median is best; the first of equals."""
    medians = {name: median(figures) for name, figures in by_name.items()}
    return (min if less_is_better else max)(medians, key=lambda name: medians[name])


def _figures(cell: Cell, rounds: Sequence[Measured]) -> list[float]:
    return [measured[cell.key][cell.metric] for measured in rounds if cell.metric in measured.get(cell.key, {})]


def _of_round(cells: Sequence[Cell], measured: Measured) -> list[float]:
    return [figure for cell in cells for figure in _figures(cell, [measured])]
