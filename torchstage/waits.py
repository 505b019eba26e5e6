"""Waits: a record of a loader's in; how many of its waits were no longer than each of some durations out.

Guarantees: exact at these durations, which are edges of the bins that waits are counted in.
"""

from itertools import accumulate
from typing import Any

from torchstage.engine.histogram import BINS_PER_OCTAVE, LOWEST_OCTAVE
from torchstage.engine.ledger import Total
from torchstage.stats import LoaderStats

OCTAVES = range(-13, 7)  # 0.12 ms, which no one minds, to 64 s


def waits_of(stats: LoaderStats) -> list[tuple[float, int]]:
    """Seconds, and how many of all waits since the loader was made were no longer; the last one: all of them.

    ``stats`` must be as the loader gave it, no copy.
    """
    kept: Any = getattr(stats, "_kept")  # noqa: B009  # of the record's own package
    total: Total = kept[1]
    numbers = [0, *accumulate(total.waits)]
    edges = [(2.0**octave, numbers[(octave - LOWEST_OCTAVE) * BINS_PER_OCTAVE]) for octave in OCTAVES]
    return [*edges, (float("inf"), numbers[-1])]
