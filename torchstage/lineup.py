"""Lineup: a line and where its stages run in, the stages that statistics tell of, in their order, out.

Guarantees: a stage is there before anything was done in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchstage.engine.ledger import Site
from torchstage.line import Line, Station
from torchstage.sites import Sites

TORCHS = "torch"  # the label of the place where torch's own iterators make batches


@dataclass(frozen=True, slots=True)
class Lined:
    """A stage's name, whether it makes whole batches, and where it runs."""

    name: str
    of_batches: bool
    site: Site


def lineup_of(
    line: Line, sites: Sites | None, home: Site, *, is_batched: bool, finish: Sequence[str], whole: Site | None = None
) -> tuple[Lined, ...]:
    """``sites`` None: all at ``home``, as is what is done with whole batches. ``whole``: where whole batches are made,
    before they are received."""

    def site_of(station: Station) -> Site:
        return whole or (home if sites is None else sites.site(station.where))

    first: list[Lined] = []
    stations = line.by_sample
    if line.takes_batches and is_batched and line.spreads:
        first = [Lined("fetch", False, whole or (home if sites is None else sites.site(line.many_where)))]
        stations = line.after_many
    return (
        *first,
        *(Lined(station.label, False, site_of(station)) for station in stations),
        *([] if whole is None else [Lined("collate", True, whole)]),
        *(Lined(name, True, home) for name in (finish if whole is None else ("receive", *finish[1:]))),
    )


def finish_names(*, pins: bool, moves: bool) -> tuple[str, ...]:
    """What is done with whole batches."""
    return ("collate", *(["pin_memory"] if pins else []), *(["transfer"] if moves else []))
