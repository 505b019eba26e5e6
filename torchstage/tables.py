"""Tables: rows of words in, aligned lines out; and durations in words.

Guarantees: what is not known is a dash.
"""

from collections.abc import Sequence

NUM_LEFT = 2  # columns of words; the others hold numbers


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their head, one a line."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join("  ".join(_aligned(row, widths)).rstrip() for row in (head, *rows))


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.ljust(width) if column < NUM_LEFT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]


def seconds(value: float | None) -> str:
    """In the unit that suits it."""
    if value is None:
        return "-"
    if 0 < value < 1e-3:
        return f"{value * 1e6:.1f} us"
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"
