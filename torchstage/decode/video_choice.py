"""Choice: what the caller asked for and the times of a clip in, the times to look for out.

Guarantees: exact arithmetic; a time that a decoder gave back finds the same frame again (both are the same division
of the same integers); nothing is repeated or left out unless `missing` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from torchstage.decode.fault import DecodeError


@dataclass(frozen=True, slots=True)
class Wanted:
    """A count, or times in seconds, or neither: every frame."""

    count: int | None
    times: tuple[float, ...] | None
    missing: Literal["raise", "repeat", "drop"]


@dataclass(frozen=True, slots=True)
class Span:
    """When a clip is shown: from `first` to `end`, in seconds. `num_frames` is None where it is not known."""

    first: Fraction
    end: Fraction
    num_frames: int | None


def times_in(span: Span, wanted: Wanted, name: str) -> list[float] | None:
    """The times to look for, each within the span; None: every frame is wanted.

    Raises DecodeError where `missing` is "raise" and the clip cannot give what was asked for.
    """
    if wanted.times is not None:
        return _within(span, wanted.times, wanted.missing, name)
    if wanted.count is None:
        return None
    if span.num_frames is not None and span.num_frames < wanted.count:
        if wanted.missing == "raise":
            raise DecodeError(
                f"{name}: {wanted.count} frames were asked for, the clip has {span.num_frames}. "
                f"Ask for fewer, or say missing='repeat' or missing='drop'."
            )
        if wanted.missing == "drop":
            return None
    return evenly(span, wanted.count)


def evenly(span: Span, count: int) -> list[float]:
    """The middles of `count` equal parts. At a constant rate and `count` frames, each frame is met in its middle."""
    length = span.end - span.first
    return [float(span.first + length * Fraction(2 * k + 1, 2 * count)) for k in range(count)]


def _within(span: Span, times: Sequence[float], missing: str, name: str) -> list[float]:
    first, end = float(span.first), float(span.end)
    outside = [seconds for seconds in times if not first <= seconds < end]
    if outside and missing == "raise":
        raise out_of_reach(name, outside, first, end)
    if missing == "drop":
        inside = [seconds for seconds in times if first <= seconds < end]
        if not inside:
            raise out_of_reach(name, outside, first, end)
        return inside
    return [max(first, seconds) for seconds in times]  # past the end, the last frame is the last one before


def out_of_reach(name: str, outside: Sequence[float], first: float, end: float) -> DecodeError:
    shown = ", ".join(f"{seconds:g}" for seconds in outside[:3]) + (", ..." if len(outside) > 3 else "")
    return DecodeError(
        f"{name}: no frame is shown at {shown} s; the clip runs from {first:g} s up to {end:g} s. "
        f"Ask within it, or say missing='repeat' or missing='drop'."
    )
