"""Plots: `benchmarks/results/*.json` in, the pictures of `docs/images/benchmarks/` out. No number is typed.

    python -m benchmarks.plots

Guarantees: the same results give the same file, byte for byte, with the same matplotlib; each file holds a digest of
the figures that it shows, whatever matplotlib drew it, so that a test can tell a picture of other results; a picture
whose results are not there yet says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case
from benchmarks.cases import growth_batch, growth_length, growth_threads, video_sweep
from benchmarks.loaders import Entry
from benchmarks.summary import AHEAD, BEHIND, EVEN, FEW, NOT_YET, result_of, summaries, verdict

FOLDER = Path(__file__).parent.parent / "docs" / "images" / "benchmarks"
PICTURES = {
    "ratios": "StageLoader against DataLoader's best, case by case",
    "video_sweep": "Clips a second against the CPU cores that were used",
    "growth": "Cost and memory as the dataset, the batch and the number of workers grow",
}
SETTINGS = {"svg.hashsalt": "torchstage", "font.family": "DejaVu Sans", "font.size": 9.0, "axes.grid": True}
SETTINGS |= {"grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "white"}
COLOURS = {"torchstage": "#c0392b", "torch": "#555555", "spdl": "#2471a3", "grain": "#1e8449"}
VERDICT_COLOURS = {AHEAD: "#c0392b", BEHIND: "#555555", EVEN: "#b9770e", FEW: "#c8b68a"}
OTHER_COLOUR = "#8e6c8a"
MARKS = ("o", "s", "^", "D", "v", "P")

Points = list[tuple[float, list[float]]]  # a place on the axis, the figures of the rounds


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in PICTURES:
        draw(name, FOLDER / f"{name}.svg")


def draw(name: str, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    with mpl.rc_context(SETTINGS):
        shown = SHOWN[name]()
        figure = DRAWN[name](shown)
        metadata = {"Date": None, "Creator": None, "Description": f"figures: {digest(shown)}"}
        figure.savefig(path, format="svg", metadata=metadata, bbox_inches="tight")
    from matplotlib import pyplot

    pyplot.close(figure)


def digest(shown: Any) -> str:
    """Of the figures, as JSON; rounded, since that is all that can be seen."""
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()[:16]


def digest_in(path: Path) -> str | None:
    """What the file says that it shows."""
    found = re.search(r"figures: ([0-9a-f]{16})", path.read_text())
    return found[1] if found else None


def _ratios_shown() -> list[list[Any]]:
    """A line for each case that has a ratio: title, unit, verdict, lowest, median, highest."""
    found: list[list[Any]] = []
    for one in summaries():
        if ratios := one.dataloader.ratios:
            figures = _rounded((min(ratios), median(ratios), max(ratios)))
            unit = one.headline.unit.replace("`", "")
            found.append([one.case.title, unit, verdict(ratios), *figures])
    return sorted(found, key=lambda line: line[4])


def _ratios(shown: list[list[Any]]) -> Any:
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.36 * max(len(shown), 3)))
    if not shown:
        return _empty(figure, axes)
    for place, (_, _, said, low, middle, high) in enumerate(shown):
        colour = VERDICT_COLOURS[said]
        axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axes.plot([middle], [place], "o", color=colour, markersize=6)
        axes.annotate(f"{middle:.2g}" if middle < 10 else f"{middle:.0f}", (high, place), (6, 0),
                      textcoords="offset points", va="center", fontsize=8)  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_yticks(range(len(shown)), [f"{title}\n{unit}" for title, unit, *_ in shown], fontsize=7)
    axes.set_ylim(-0.7, len(shown) - 0.3)
    axes.margins(x=0.1)
    axes.set_xlabel("StageLoader / DataLoader's best (median, lowest to highest): above 1, StageLoader is ahead")
    keys = [Line2D([], [], marker="o", color=colour, label=said) for said, colour in VERDICT_COLOURS.items()]
    axes.legend(handles=keys, frameon=False, loc="lower right", fontsize=8)
    return figure


def _sweep_shown() -> dict[str, list[list[float]]]:
    """Of each loader: workers, cores, clips a second; medians."""
    rounds = _rounds(video_sweep.CASE.name)
    found: dict[str, list[list[float]]] = {}
    for entry in video_sweep.ENTRIES:
        points = [
            [count, *_rounded((median(cores), median(clips)))]
            for count in video_sweep.COUNTS
            if (cores := _figures(rounds, entry, f"cpu_cores_{count}"))
            and (clips := _figures(rounds, entry, f"clips_per_second_{count}"))
        ]
        if points:
            found[_plain(entry.label)] = points
    return found


def _sweep(shown: dict[str, list[list[float]]]) -> Any:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.8))
    if not shown:
        return _empty(figure, axes)
    for (label, points), mark in zip(shown.items(), MARKS, strict=False):
        counts, cores, clips = zip(*points, strict=True)
        dashes = "--" if "completion" in label else "-"
        axes.plot(cores, clips, dashes, marker=mark, color=_colour(label), label=label, alpha=0.85)
        for at in (0, len(counts) - 1):
            axes.annotate(f"{counts[at]:g}", (cores[at], clips[at]), (5, -10 if at else 5), fontsize=7,
                          textcoords="offset points", color=_colour(label))  # fmt: skip
    axes.set_xlabel("CPU cores used (numbers at the ends: workers)")
    axes.set_ylabel("clips/s")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="lower right")
    return figure


LENGTHS, SIZES, COUNTS = growth_length.POWERS, growth_batch.SIZES, growth_threads.COUNTS
CURVES: Mapping[str, tuple[Case, Sequence[int], str, str]] = {  # case, places, their metric, what the axis is
    "first batch, shuffled, ms": (growth_length.CASE, LENGTHS, "first_ms_{}_shuffled", "10^n samples: n"),
    "added PSS, shuffled, MiB": (growth_length.CASE, LENGTHS, "added_pss_mib_{}_shuffled", "10^n samples: n"),
    "CPU us a sample": (growth_batch.CASE, SIZES, "cpu_us_{}", "batch size"),
    "added PSS by batch size, MiB": (growth_batch.CASE, SIZES, "added_pss_mib_{}", "batch size"),
    "samples/s of samples that wait": (growth_threads.CASE, COUNTS, "samples_per_second_{}", "workers"),
    "added PSS by workers, MiB": (growth_threads.CASE, COUNTS, "added_pss_mib_{}", "workers"),
}
SMALLEST_MIB = 0.1  # less is drawn there: logarithms know no zero


def _growth_shown() -> dict[str, dict[str, list[list[float]]]]:
    """Of each curve and loader: the place on the axis, and the median there."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    for title, (case, places, metric, _) in CURVES.items():
        rounds = _rounds(case.name)
        lines: dict[str, list[list[float]]] = {}
        for entry in case.entries:
            points: Points = [(place, _figures(rounds, entry, metric.format(place))) for place in places]
            line = [[place, *_rounded([median(figures)])] for place, figures in points if figures]
            if line:
                lines[_plain(entry.label)] = line
        found[title] = lines
    return found


def _growth(shown: dict[str, dict[str, list[list[float]]]]) -> Any:
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, grid = pyplot.subplots(3, 2, figsize=(11, 9.5))
    for (title, lines), axes in zip(shown.items(), grid.flat, strict=True):
        _, places, _, axis = CURVES[title]
        if not lines:
            _empty(figure, axes)
            axes.set_title(title)
            continue
        for (label, line), mark in zip(lines.items(), MARKS, strict=False):
            xs, ys = zip(*line, strict=True)
            dashes = "--" if "completion" in label or "Elastic" in label or "0 workers" in label else "-"
            heights = [max(y, SMALLEST_MIB) for y in ys]
            axes.plot(xs, heights, dashes, marker=mark, markersize=4, color=_colour(label), label=label, alpha=0.85)
        if places[0] == 1:
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel(axis)
        if axes in grid[:, -1]:  # one for both pictures of a row
            axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.02, 0.5))
    figure.tight_layout()
    return figure


def _empty(figure: Any, axes: Any) -> Any:
    axes.text(0.5, 0.5, NOT_YET, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
    return figure


def _rounds(case: str) -> list[Mapping[str, Mapping[str, float]]]:
    result = result_of(case)
    return result["rounds"] if result else []


def _figures(rounds: Sequence[Mapping[str, Mapping[str, float]]], entry: Entry, metric: str) -> list[float]:
    return [measured[entry.key][metric] for measured in rounds if metric in measured.get(entry.key, {})]


def _rounded(figures: Sequence[float]) -> list[float]:
    return [float(f"{figure:.4g}") for figure in figures]


def _plain(label: str) -> str:
    return label.replace("**", "")


def _colour(label: str) -> str:
    package = {"StageLoader": "torchstage", "DataLoader": "torch", "SPDL": "spdl", "Grain": "grain"}
    return next((COLOURS[known] for name, known in package.items() if label.startswith(name)), OTHER_COLOUR)


SHOWN: Mapping[str, Callable[[], Any]] = {"ratios": _ratios_shown, "video_sweep": _sweep_shown, "growth": _growth_shown}
DRAWN: Mapping[str, Callable[[Any], Any]] = {"ratios": _ratios, "video_sweep": _sweep, "growth": _growth}

if __name__ == "__main__":
    main()
