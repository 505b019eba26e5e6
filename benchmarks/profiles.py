"""Profiles: what `benchmarks.ceiling` measured in, the Markdown of `docs/profiles.md` out. No number is typed."""

from __future__ import annotations

from typing import Any

from benchmarks.table import cell, markdown, where

HEAD = """\
# Profiles: where the time goes

Written by `python -m benchmarks.ceiling` from `benchmarks/results/ceiling.json`; `--measure` measures it again.
`benchmarks/ceiling.py` says what each row is. A cell is the median of the rounds (lowest to highest); ratios are taken
within a round.
"""
READING = """\
## How to read this

- **Image case.** Two threads without any loader are the ceiling: crop, flip, ToTensor and Normalize hold the GIL for a
  part of their time, so two threads do less than twice the work of one. What StageLoader lacks to that row, the loader
  costs. What that row lacks to two processes that throw their batches away is the GIL's: only transforms that hold it
  less can change that.
- **Cheap samples.** The work is the same, and a thread of its own costs it little. What is lost is the hand-over: the
  consumer wakes, takes the GIL and asks for more, and each time the working thread waits for the GIL. Where the
  training step does anything at all, the two overlap and the loss is gone (`benchmarks/results/cheap_memory.json`). For
  datasets like that `num_workers=0` is the better choice.
- **First batch.** The first two samples are made by one thread alone, to see what the dataset opens and changes. With N
  threads and a batch of B samples, the first batch of the first epoch takes at least (2 + (B - 2) / N) samples' time,
  rounded up, instead of B / N. Later epochs do not pay it, nor does `isolation="shared"`.
"""


def page(result: dict[str, Any]) -> str:
    """docs/profiles.md."""
    parts: dict[str, list[dict[str, Any]]] = {
        name: [measured[name] for measured in result["rounds"]] for name in ("steps", "wholes", "cheap")
    }
    question = f"{result['num_images']} images in batches of {result['batch_size']}."
    tables = "\n\n".join((question, _steps_table(parts["steps"]), _wholes_table(parts["wholes"])))
    return "\n".join(
        (
            HEAD,
            f"## The image case\n\n{tables}\n",
            f"## Cheap samples in memory\n\n{_cheap_table(parts['cheap'])}\n",
            where(result) + "\n",
            READING,
        )
    )


def _rows(rounds: list[dict[str, Any]]) -> list[str]:
    return [name for name, metrics in rounds[0].items() if isinstance(metrics, dict)]


def _steps_table(rounds: list[dict[str, Any]]) -> str:
    lines = [["step", "ms an image, one thread", "two threads do"]]
    for name in _rows(rounds):
        rows = [each[name] for each in rounds]
        milliseconds = [1e3 / row["calls_per_second_1"] / row["images_per_call"] for row in rows]
        ratios = [row["calls_per_second_2"] / row["calls_per_second_1"] for row in rows]
        lines.append([name, cell(milliseconds, 2), cell(ratios, 2)])
    return markdown(lines)


def _wholes_table(rounds: list[dict[str, Any]]) -> str:
    lines = [["who does the work", "images/s", "against the first", "CPU ms an image"]]
    names = _rows(rounds)
    for name in names:
        rates = [each[name]["images_per_second"] for each in rounds]
        ratios = [each[name]["images_per_second"] / each[names[0]]["images_per_second"] for each in rounds]
        lines.append(
            [name, cell(rates, 0), cell(ratios, 2), cell([each[name]["cpu_ms_per_image"] for each in rounds], 2)]
        )
    return markdown(lines)


def _cheap_table(rounds: list[dict[str, Any]]) -> str:
    names = _rows(rounds)
    keys = list(rounds[0][names[0]])
    lines = [["who does the work", *(f"against the first, batches of {key.removeprefix('seconds_')}" for key in keys)]]
    for name in names:
        ratios = [[each[names[0]][key] / each[name][key] for each in rounds] for key in keys]
        lines.append([name, *(cell(each, 2) for each in ratios)])
    return markdown(lines)
