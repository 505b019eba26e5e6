"""Table: `benchmarks/results/*.json` in, the Markdown of `docs/benchmarks.md` out. No number is typed.

    python -m benchmarks.draw        # this page and all others

A cell is the median of the rounds, with the lowest and the highest; so is a ratio, which is taken within a
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks import plots
from benchmarks.case import NAMES, load
from benchmarks.summary import NOT_YET, result_of

HEAD = """\
# Benchmarks

Written by `python -m benchmarks.draw` from `benchmarks/results/`; `python -m benchmarks` measures it again.
Every loader runs in a fresh process, all loaders of a case in turn, round by round. A cell is the median of
the rounds (lowest to highest); ratios are taken within a round. [Where we win](where-we-win.md) sums it up.
"""
PICTURES = tuple(f"![{alt}](images/benchmarks/{name}.svg)\n" for name, alt in plots.PICTURES.items())


def main() -> None:
    print(page(), end="")


def page() -> str:
    """docs/benchmarks.md: each case, with its results if there are some."""
    return "\n".join([HEAD, *PICTURES, *(_part(name) for name in NAMES)])


def _part(name: str) -> str:
    result = result_of(name)
    if result is not None:
        return of_case(result)
    case = load(name)
    return f"## {case.title}\n\n{case.question}\n\n{NOT_YET.capitalize()}: `python -m benchmarks {name}`.\n"


def of_case(result: dict[str, Any]) -> str:
    """A heading, the question, a line for each loader, a line for each goal, and where it was measured."""
    parts = [f"## {result['title']}", result["question"], _loaders(result)]
    if result["goals"]:
        parts.append(_goals(result["goals"]))
    parts.append(where(result))
    return "\n\n".join(parts) + "\n"


def _loaders(result: dict[str, Any]) -> str:
    against = result["against"]
    columns = result["columns"]
    headings = ["loader", columns[0]["heading"], *([against["heading"]] if against else [])]
    headings += [column["heading"] for column in columns[1:]]
    lines = [headings]
    for key, label in result["labels"].items():
        if key in result["skipped"]:
            lines.append([label, f"skipped: {result['skipped'][key]}"] + [""] * (len(headings) - 2))
            continue
        cells = [cell(_figures(result, key, column["key"]), column["digits"]) for column in columns]
        if against:
            cells.insert(1, cell(_ratios(result, key), digits=2))
        lines.append([label, *cells])
    return markdown(lines)


def _figures(result: dict[str, Any], key: str, metric: str) -> list[float]:
    return [measured[key][metric] for measured in result["rounds"] if metric in measured.get(key, {})]


def _ratios(result: dict[str, Any], key: str) -> list[float]:
    """This loader's metric over the best of the compared ones, in each round that has both."""
    against = result["against"]
    ratios: list[float] = []
    for measured in result["rounds"]:
        compared = [measured[other][against["metric"]] for other in against["keys"] if other in measured]
        if compared and key in measured:
            ratios.append(measured[key][against["metric"]] / max(compared))
    return ratios


def _goals(goals: Sequence[dict[str, Any]]) -> str:
    lines = [["goal", "wanted", "measured", "reached"]]
    for goal in goals:
        figures, low, high = goal["figures"], goal["at_least"], goal["at_most"]
        wanted = f"at least {low:g}" if low is not None else f"at most {high:g}"
        if not figures:
            lines.append([goal["says"], wanted, "not measured", ""])
            continue
        middle = median(figures)
        reached = middle >= low if low is not None else middle <= high
        lines.append([goal["says"], wanted, cell(figures, digits=2), "yes" if reached else "**no**"])
    return markdown(lines)


def where(result: dict[str, Any]) -> str:
    """The machine, the versions and how busy others kept it: what a reader needs to judge the numbers."""
    machine = result["machine"]
    every_run = [metrics for measured in result["rounds"] for metrics in measured.values()]
    others = [metrics["cores_used_by_others"] for metrics in every_run]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    build = f" ({machine['python_build']})" if "python_build" in machine else ""
    rounds = f"{len(result['rounds'])} rounds" if len(result["rounds"]) > 1 else "1 round"
    quick = " of `--quick`" if result["quick"] else ""
    busy = f" Other programs kept {cell(others, digits=2)} cores busy." if others else ""
    return (
        f"{rounds}{quick} on {machine['date']}, {result['minutes']} minutes: {machine['processor']}, "
        f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}{build}, {packages}.{busy}"
    )


def cell(figures: Sequence[float], digits: int) -> str:
    """The median, with the lowest and the highest of several."""
    if not figures:
        return "not measured"
    middle = f"{median(figures):,.{digits}f}"
    if len(figures) == 1:
        return middle
    return f"{middle} ({min(figures):,.{digits}f} to {max(figures):,.{digits}f})"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line is its heading."""
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([rows[0], "|" + "---|" * len(lines[0]), *rows[1:]])


if __name__ == "__main__":
    main()
