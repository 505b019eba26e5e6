"""Where we win: the cases' headlines in, docs/where-we-win.md out: who is ahead, by how much, and why.

    python -m benchmarks.where_we_win

Guarantees: no number is typed, and none decides by itself: which part of the page a case stands in follows from its
rounds (`benchmarks.summary.verdict`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.readme import ratio
from benchmarks.summary import AHEAD, BEHIND, EVEN, FEW, FEWEST_ROUNDS, NOT_YET, Best, Summary, summaries, verdict
from benchmarks.table import cell

PATH = Path(__file__).parent.parent / "docs" / "where-we-win.md"

HEAD = f"""\
# Where we win, and where we do not

Written by `python -m benchmarks.draw` from `benchmarks/results/`: the numbers, and which part a case stands in.
[Benchmarks](benchmarks.md) has all rows, the machine and the versions. Ratios are taken within a round and turned so
that above 1 StageLoader is ahead; they are medians (lowest to highest round). A case is called ahead or behind if it
was so in each of at least {FEWEST_ROUNDS} rounds. DataLoader stands for the best of its settings in that case; of the
other libraries (SPDL, Grain, torchdata, WebDataset) the best one that has a row there is named.

![Ratios to DataLoader's best](images/benchmarks/ratios.svg)
"""
RULES = """\
## In short

- **Threads pay where a sample waits or gives the GIL away**: files, networks, decoding, most of NumPy and torch. All
  threads share each batch and one dataset, so the first batch comes early, a slow sample holds nobody up, and memory
  hardly grows with the number of workers.
- **Threads do not pay for plain Python.** The loader measures that and uses processes; the first epoch pays for it.
- **Samples that cost next to nothing need no workers.** `num_workers=0` is the fastest loader for them.
- **Transforms that hold the GIL for part of their time** (ToTensor, Normalize) hold all threads back; worker processes
  do not wait for each other. [Profiles](profiles.md) shows how much of the image case that is.
- **Two cores are two cores.** Where decoding keeps them busy, loaders differ little. Their own cost shows where there
  are more cores: the case with waiting clips plays 8, 16 and 32 workers.
"""
PARTS = {
    AHEAD: "Ahead of DataLoader",
    EVEN: "No difference to DataLoader that these rounds show",
    BEHIND: "Behind DataLoader",
    FEW: "Measured in too few rounds to say",
}
ALONE = "Beside other libraries alone"


def main() -> None:
    PATH.write_text(page())


def page() -> str:
    """docs/where-we-win.md."""
    all_of_them = list(summaries())
    measured = [one for one in all_of_them if one.is_measured]
    against = [one for one in measured if one.dataloader.ratios]
    parts = [HEAD, RULES]
    for said, heading in PARTS.items():
        parts += _part(heading, [one for one in against if verdict(one.dataloader.ratios) == said])
    parts += _part(ALONE, [one for one in measured if not one.dataloader.ratios])
    behind = [one for one in measured if one.peers.ratios and verdict(one.peers.ratios) == BEHIND]
    parts.append("## Another library is ahead of StageLoader\n\n" + _behind(behind))
    unmeasured = [one for one in all_of_them if not one.is_measured]
    if unmeasured:
        lines = [f"- {one.case.title}: `python -m benchmarks {one.case.name}`" for one in unmeasured]
        parts.append("\n".join([f"## {NOT_YET.capitalize()}", "", *lines, ""]))
    return "\n".join(parts)


def _part(heading: str, members: Sequence[Summary]) -> list[str]:
    if not members:
        return []
    ordered = sorted(members, key=lambda one: -median(one.dataloader.ratios or one.peers.ratios or [0.0]))
    return ["\n".join([f"## {heading}", "", *map(_line, ordered), ""])]


def _line(one: Summary) -> str:
    digits = one.headline.digits
    compared = [said for said in (_to("DataLoader", one.dataloader), _to("", one.peers)) if said]
    figures = "; ".join([cell(one.ours.figures, digits), *compared])
    return f"- **{one.case.title}** ({one.headline.unit}): {figures}. {one.headline.why} Case `{one.case.name}`."


def _to(name: str, best: Best) -> str:
    """Who, and by how much; empty where there is none."""
    return f"{ratio(best)} times as good as {name or _plain(best.name)}" if best.ratios else ""


def _behind(members: Sequence[Summary]) -> str:
    if not members:
        return "In no case, in each round.\n"
    lines = [f"- {one.case.title} ({one.headline.unit}): {_to('', one.peers)}." for one in members]
    return "\n".join([*lines, ""])


def _plain(name: str) -> str:
    return name.replace("**", "")


if __name__ == "__main__":
    main()
