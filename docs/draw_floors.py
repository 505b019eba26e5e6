"""Draw floors: the floors of ``docs/design.md`` in, their picture out.

pip install matplotlib
python docs/draw_floors.py docs/images/floors.png
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

INK, FAINT = "#222222", "#777777"
FLOORS = (  # from the top: number, what it is, what stands there, what it knows, colour
    (3, "frameworks and tools", "lightning   integrations   observe   commands", "its framework", "#f7e6cf"),
    (2, "the loader", "loader   iterators   lanes   inline   safety", "torch, NumPy", "#d7e3f7"),
    (
        1,
        "what a loader is told, and what it may do",
        "plan   split   isolation   rng   state   placement   transfer\nexecutors   decode   remote   samplers",
        "torch, NumPy",
        "#dcefdc",
    ),
    (0, "the engine", "pipeline   pool   segment   ticket   gather   stats", "the standard library", "#e9e0f2"),
)
HEIGHT, GAP = 1.0, 0.28


def draw(picture: Path) -> None:
    figure, axes = plt.subplots(figsize=(9.6, 4.3), dpi=150)
    for place, floor in enumerate(FLOORS):
        draw_floor(axes, -place * (HEIGHT + GAP), *floor)
    top, bottom = HEIGHT, -(len(FLOORS) - 1) * (HEIGHT + GAP)
    axes.add_patch(FancyArrowPatch((10.25, top), (10.25, bottom), arrowstyle="-|>", mutation_scale=16, color=FAINT))
    axes.text(10.42, (top + bottom) / 2, "imports go downward", rotation=270, va="center", fontsize=11, color=INK)
    axes.set_xlim(-0.1, 10.8)
    axes.set_ylim(bottom - 0.15, top + 0.15)
    axes.set_axis_off()
    figure.subplots_adjust(0, 0, 1, 1)
    picture.parent.mkdir(exist_ok=True)
    figure.savefig(picture, facecolor="white")
    plt.close(figure)


def draw_floor(axes: Any, bottom: float, number: int, title: str, modules: str, knows: str, colour: str) -> None:
    box = FancyBboxPatch(
        (0.06, bottom + 0.06), 9.88, HEIGHT - 0.12, "round,pad=0.06", facecolor=colour, edgecolor="none"
    )
    axes.add_patch(box)
    middle = bottom + HEIGHT / 2
    axes.text(0.35, middle, str(number), ha="center", va="center", fontsize=20, weight="bold", color=INK)
    axes.text(0.8, bottom + HEIGHT - 0.24, title, va="center", fontsize=11, weight="bold", color=INK)
    axes.text(9.85, bottom + HEIGHT - 0.24, f"knows {knows}", ha="right", va="center", fontsize=9.5, color=FAINT)
    axes.text(0.8, bottom + 0.36, modules, va="center", fontsize=10, color=INK, linespacing=1.5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    draw(parser.parse_args().picture)
