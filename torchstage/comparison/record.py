"""Record: what a loader gave in one epoch, without the batches themselves: fingerprints, errors, and dataset indices.

Guarantees: plain data that can be sent to another process; it grows with the number of samples, not with their size.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from torchstage.comparison.fingerprint import Fingerprint


@dataclass(frozen=True, slots=True)
class Raised:
    """An error in the place of a batch."""

    kind: str
    message: str

    def say(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True)
class Hung:
    """No batch came in time, and the loader was left alone. ``stack``: where it was waited for."""

    seconds: float
    stack: str

    def say(self) -> str:
        return f"nothing in {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class GaveUp:
    """It raised so many errors in a row that it was left alone."""

    num_errors: int

    def say(self) -> str:
        return f"nothing but errors, {self.num_errors} in a row"


Event = Fingerprint | Raised | Hung | GaveUp
Layout = Literal["rows", "items", "one"]


@dataclass(slots=True)
class Record:
    """``first``: the number of the first event in its epoch. ``length``: what ``len`` said. ``indices``: of each batch,
    if they are known. ``layout``: where the samples are in a batch, if the loader says so: along the first dimension,
    items of a list, or the batch is one sample. ``is_cut``: it was not read to its end, as was asked for."""

    events: list[Event] = field(default_factory=list[Event])
    first: int = 0
    length: int | None = None
    indices: list[list[Any]] | None = None
    why_no_indices: str = ""
    layout: Layout | None = None
    is_cut: bool = False

    @property
    def num_batches(self) -> int:
        return sum(isinstance(event, Fingerprint) for event in self.events)

    @property
    def num_errors(self) -> int:
        return sum(isinstance(event, Raised) for event in self.events)

    @property
    def num_samples(self) -> int | None:
        """None: it cannot be told of some batch."""
        sizes = [self.size_of(at) for at, event in enumerate(self.events) if isinstance(event, Fingerprint)]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def is_whole(self) -> bool:
        """Whether it is known how it went on to its end."""
        return not any(isinstance(event, Hung | GaveUp) for event in self.events)

    def indices_of(self, at: int) -> list[Any] | None:
        """Of the event in this place of ``events``."""
        return self.indices[at] if self.indices is not None and at < len(self.indices) else None

    def size_of(self, at: int) -> int | None:
        """How many samples that batch has."""
        indices, event = self.indices_of(at), self.events[at]
        if self.layout == "one":
            return 1
        if indices is not None:
            return len(indices)
        return rows_of(event) if isinstance(event, Fingerprint) and self.layout_of(at) == "rows" else None

    def layout_of(self, at: int) -> Layout | None:
        """Where the samples of that batch are; None: it cannot be told."""
        event = self.events[at]
        if self.layout is not None or not isinstance(event, Fingerprint):
            return self.layout
        num_rows, num_items, indices = rows_of(event), items_of(event), self.indices_of(at)
        if indices is not None:
            has_rows, has_items = num_rows == len(indices), num_items == len(indices)
            return None if has_rows == has_items else "rows" if has_rows else "items"
        return "rows" if num_rows is not None and num_rows != num_items else None


def rows_of(batch: Fingerprint) -> int | None:
    """How many rows all of its tensors, arrays and lists of plain values have; None: not the same number."""
    counts = {leaf.rows.count for leaf in batch.leaves if leaf.rows is not None}
    return counts.pop() if len(counts) == 1 else None


def items_of(batch: Fingerprint) -> int | None:
    """How many items the batch has, if it is a list or a tuple."""
    what, _, rest = batch.leaves[0].what.partition(" of ")
    return int(rest.split()[0]) if what in ("list", "tuple") else None
