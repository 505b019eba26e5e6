"""Draw pipeline: the numbered model of ``docs/index.md`` in, its picture out.

pip install matplotlib
python docs/draw_pipeline.py docs/images/pipeline.png
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

YOURS, LOADERS, OTHER = "#d7e3f7", "#dcefdc", "#f7e6cf"
INK, FAINT = "#222222", "#777777"
WIDTH, GAP, HEIGHT = 1.0, 0.16, 0.8


STEPS = (
    *(("sampler", YOURS), ("admit", YOURS)),
    *(("fetch", LOADERS), ("decode", LOADERS), ("transform", LOADERS), ("collate", LOADERS)),
    *(("in order", YOURS), ("transfer", OTHER), ("user", YOURS)),
)


def left_of(number: int) -> float:
    """Where the box of this number (from 1) begins."""
    return (number - 1) * (WIDTH + GAP)


def draw(picture: Path) -> None:
    figure, axes = plt.subplots(figsize=(9.9, 2.75), dpi=150)
    for number, (name, colour) in enumerate(STEPS, start=1):
        draw_step(axes, number, name, colour)
        if number < len(STEPS):
            arrow(axes, (left_of(number) + WIDTH, HEIGHT / 2), (left_of(number + 1), HEIGHT / 2))
    who(axes, 1, 2, "your thread, in next()", YOURS)
    who(axes, 3, 6, "loader threads, event loop, processes, executors", LOADERS)
    who(axes, 7, 7, "your thread", YOURS)
    who(axes, 8, 8, "side stream", OTHER)
    who(axes, 9, 9, "your thread", YOURS)
    bound(axes)
    axes.set_xlim(-0.1, left_of(len(STEPS)) + WIDTH + 0.1)
    axes.set_ylim(-0.7, 1.8)
    axes.set_axis_off()
    figure.subplots_adjust(0, 0, 1, 1)
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, facecolor="white")
    plt.close(figure)


def draw_step(axes: Any, number: int, name: str, colour: str) -> None:
    left, middle = left_of(number), left_of(number) + WIDTH / 2
    box = FancyBboxPatch((left + 0.04, 0.04), WIDTH - 0.08, HEIGHT - 0.08, "round,pad=0.04", fc=colour, ec=FAINT)
    axes.add_patch(box)
    axes.text(middle, 0.54, str(number), ha="center", va="center", fontsize=14, weight="bold", color=INK)
    axes.text(middle, 0.2, name, ha="center", va="center", fontsize=11.5, color=INK)


def arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(begin, end, arrowstyle="-|>", mutation_scale=12, color=FAINT, shrinkA=0, shrinkB=0))


def who(axes: Any, first: int, last: int, words: str, colour: str) -> None:
    """A band under the steps that the same thread, or threads, take."""
    left, right = left_of(first), left_of(last) + WIDTH
    axes.add_patch(
        FancyBboxPatch((left + 0.03, -0.52), right - left - 0.06, 0.24, "round,pad=0.03", fc=colour, ec="none")
    )
    axes.text((left + right) / 2, -0.4, words, ha="center", va="center", fontsize=10, color=INK)


def bound(axes: Any) -> None:
    """What is in flight is bounded at the door: each batch that is handed out lets one in."""
    door, user = left_of(2) + WIDTH / 2, left_of(9) + WIDTH / 2
    axes.plot([user, user, door], [HEIGHT, 1.25, 1.25], color=FAINT)
    arrow(axes, (door, 1.25), (door, HEIGHT))
    words = "each batch that you take lets one in: batches in flight are bounded here alone"
    axes.text((door + user) / 2, 1.5, words, ha="center", va="center", fontsize=11.5, color=INK)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    draw(parser.parse_args().picture)
