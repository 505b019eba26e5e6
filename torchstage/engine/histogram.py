"""Histogram: durations in, how many lay in each bin out, and the duration that a share of them lie below.

Guarantees: bins are the same for every process and never move, so that histograms can be added and subtracted.
"""

from bisect import bisect_right
from operator import add, sub

BINS_PER_OCTAVE = 8
LOWEST_OCTAVE = -27  # 2 ** -27 s are 7 ns: no stage is shorter
NUM_BINS = 40 * BINS_PER_OCTAVE  # up to 2 ** 13 s, two hours

Histogram = list[int]  # samples in each bin

_EDGES = [2 ** (number / BINS_PER_OCTAVE + LOWEST_OCTAVE) for number in range(1, NUM_BINS)]


def bin_of(seconds: float) -> int:
    """The bin of a duration. Each ends where the next begins, a twelfth later: its middle is 4.5 % off at most."""
    return bisect_right(_EDGES, seconds)


def joined(one: Histogram, other: Histogram, sign: int = 1) -> Histogram:
    """The sum of two, or their difference."""
    return list(map(add if sign > 0 else sub, one, other))


def percentile(histogram: Histogram, share: float) -> float | None:
    """The duration that this share of all lie at or below, as the middle of its bin; None if there is none."""
    left = share * sum(histogram)
    if left <= 0:
        return None
    for number, count in enumerate(histogram):
        left -= count
        if left <= 0:
            return float(2 ** ((number + 0.5) / BINS_PER_OCTAVE + LOWEST_OCTAVE))
    return None
