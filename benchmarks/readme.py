"""Readme: the cases' headlines in, the table of README.md out, between two marks. No number is typed.

python -m benchmarks.readme
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.summary import NOT_YET, Best, Summary, summaries
from benchmarks.table import cell, markdown

PATH = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADINGS = (
    "what is measured",
    "StageLoader",
    "DataLoader's best",
    "best of the others",
    "ours / DataLoader",
    "ours / others",
    "case",
)


def main() -> None:
    PATH.write_text(filled(PATH.read_text()))


def filled(text: str) -> str:
    """The same text with the table between its marks."""
    if BEGIN not in text or END not in text:
        raise SystemExit(f"README.md has no place for the table: {BEGIN} and {END}, each on a line of its own")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    return markdown([HEADINGS, *(_line(one) for one in summaries())])


def _line(one: Summary) -> list[str]:
    script = f"[{one.case.name}](benchmarks/cases/{one.case.name}.py)"
    title = f"{one.case.title}: {one.headline.unit}"
    if not one.is_measured:
        return [title, NOT_YET, "", "", "", "", script]
    digits = one.headline.digits
    return [
        title,
        cell(one.ours.figures, digits),
        cell(one.dataloader.figures, digits) if one.dataloader.figures else "",
        _named(one.peers, digits),
        ratio(one.dataloader),
        ratio(one.peers),
        script,
    ]


def _named(best: Best, digits: int) -> str:
    return f"{cell(best.figures, digits)}, {best.name.replace('**', '')}" if best.figures else ""


def ratio(best: Best) -> str:
    """Ours against it, above 1 where ours is ahead; empty where there is none."""
    return cell(best.ratios, 2) if best.ratios else ""


if __name__ == "__main__":
    main()
