"""Report: what was found, as data and as a table.

Guarantees: frozen, plain values; it can be pickled and turned into JSON.
"""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from torchstage.comparison.watch import Cost
from torchstage.tables import seconds, table

MIB = 2**20


class LoadersDiffer(AssertionError):  # noqa: N818  # an assertion, named after what it says
    """Two loaders do not give the same. ``comparison`` has all that was found."""

    def __init__(self, comparison: "Comparison") -> None:
        super().__init__(str(comparison))
        self.comparison = comparison

    def __reduce__(self) -> Any:
        return LoadersDiffer, (self.comparison,)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the loaders differ. Epochs, batches and samples count from 0.

    ``field``: the place in the batch, as ``[0]['image']``; empty: all of it. ``sample``: the first sample of the batch
    that differs; None: it cannot be told, or no single one. ``index``: its dataset index in the reference, None:
    unknown; ``candidate_index``: that of the candidate's sample in the same place. ``reference`` and ``candidate``:
    what each of them has there, in words. ``rank`` None: no ranks were asked for. ``part``: "epoch", or "restart":
    after it was restarted in mid-epoch.
    """

    epoch: int
    batch: int | None
    field: str
    sample: int | None
    index: Any
    reference: str
    candidate: str
    note: str = ""
    candidate_index: Any = None
    part: str = "epoch"
    rank: int | None = None

    @property
    def place(self) -> str:
        """Where it is, in words."""
        words = [] if self.rank is None else [f"rank {self.rank}"]
        words.append(f"epoch {self.epoch}")
        if self.batch is not None:
            words.append(f"batch {self.batch}")
        if self.part == "restart":
            words.append("after the restart")
        if self.field:
            words.append(self.field)
        if self.sample is not None:
            words.append(f"sample {self.sample}")
            is_other = self.candidate_index is not None and self.candidate_index != self.index
            if self.index is not None:
                words.append(f"dataset index {self.index!r}" + (f" and {self.candidate_index!r}" if is_other else ""))
            else:
                words.append("dataset index unknown")
        return ", ".join(words)

    def __str__(self) -> str:
        note = f"\n    {self.note}" if self.note else ""
        return f"{self.place}\n    reference  {self.reference}\n    candidate  {self.candidate}{note}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``torchstage.compare`` found. ``print`` shows it.

    ``differences``: the first ones; ``num_more``: how many there are beside them. ``reference`` and ``candidate``: what
    each of them cost: seconds, CPU seconds, peak memory in bytes. ``scope``: what was compared. ``notes``: what to
    know about it.
    """

    differences: tuple[Difference, ...]
    num_more: int
    reference: Cost
    candidate: Cost
    scope: str
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    def raise_if_different(self) -> None:
        """Raises LoadersDiffer, an AssertionError, with what ``print`` shows."""
        if not self.equal:
            raise LoadersDiffer(self)

    def __str__(self) -> str:
        lines = [f"{'EQUAL' if self.equal else 'DIFFERENT'}: {self.scope}"]
        for difference in self.differences:
            lines += ["", *(f"  {line}" for line in str(difference).splitlines())]
        if self.num_more:
            lines += ["", f"  and {self.num_more} more"]
        if self.reference.seconds is not None:
            lines += ["", _costs(self.reference, self.candidate)]
        if self.notes:
            lines += ["", *(f"Note: {note}." for note in self.notes)]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {"equal": self.equal, **dataclasses.asdict(self)}

    def as_json(self) -> str:
        """The same, for programs."""
        return json.dumps(self.as_dict(), indent=2, default=repr)


def _costs(reference: Cost, candidate: Cost) -> str:
    pair = (reference, candidate)
    kind = "PSS" if all(one.is_shared_counted_once for one in pair) else "RSS"
    rows = [
        _row("samples", [one.num_samples for one in pair], "{:.0f}"),
        _row("batches", [one.num_batches for one in pair], "{:.0f}"),
        ("time", "", *(seconds(one.seconds) for one in pair), _ratio([one.seconds for one in pair])),
        _row("samples a second", [one.samples_per_second for one in pair], "{:.1f}"),
        ("first batch after", "", *(seconds(one.first_batch_seconds) for one in pair), ""),
        _row("CPU seconds, all processes", [one.cpu_seconds for one in pair], "{:.2f}"),
        _row(f"peak memory ({kind}), MiB", [_mib(one.peak_bytes) for one in pair], "{:.0f}"),
        (*_row("of it added, MiB", [_mib(one.added_bytes) for one in pair], "{:.0f}")[:-1], ""),
    ]
    return table(("", "", reference.name, candidate.name, "ratio"), rows)


def _row(name: str, values: list[Any], form: str) -> tuple[str, ...]:
    return (name, "", *("-" if value is None else form.format(value) for value in values), _ratio(values))


def _ratio(values: list[Any]) -> str:
    first, second = values
    return f"{second / first:.2f}" if first and second is not None else ""


def _mib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / MIB
