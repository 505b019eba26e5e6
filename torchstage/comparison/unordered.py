"""Unordered: two records of one epoch in, the samples that only one of them has out, whatever their order.

Guarantees: samples are counted, so that one that comes twice is not the same as one that comes once.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torchstage.comparison.fingerprint import Fingerprint
from torchstage.comparison.leaf import digest_of
from torchstage.comparison.matching import Place
from torchstage.comparison.record import GaveUp, Hung, Raised, Record
from torchstage.comparison.report import Difference


@dataclass(frozen=True, slots=True)
class Sample:
    """``index`` None: unknown. ``sample`` None: it stands for a whole batch."""

    batch: int
    sample: int | None
    index: Any


def differences_in_any_order(reference: Record, candidate: Record, place: Place) -> Iterator[Difference]:
    """Samples of one that the other has not, then the sizes of batches, errors, and what stopped the reading."""
    by_sample = all(is_by_sample(record) for record in (reference, candidate))
    ones, others = (_samples(record, by_sample=by_sample) for record in (reference, candidate))
    unit = "sample" if by_sample else "batch"
    for mine, theirs, is_reference in ((ones, others, True), (others, ones, False)):
        for digest, found in mine.items():
            for sample in found[len(theirs.get(digest, [])) :]:
                words = f"{len(found)} x this {unit}", f"{len(theirs.get(digest, []))} x this {unit}"
                side = "reference" if is_reference else "candidate"
                known = place.at(
                    sample.batch, *(words if is_reference else words[::-1]), note=f"its place is the {side}'s"
                )
                yield replace(known, sample=sample.sample, index=sample.index)
    sizes = [Counter(record.size_of(at) for at in range(len(record.events))) for record in (reference, candidate)]
    if by_sample and sizes[0] != sizes[1]:
        yield place.at(None, _sizes(sizes[0]), _sizes(sizes[1]))
    errors = [Counter(e.say() for e in record.events if isinstance(e, Raised)) for record in (reference, candidate)]
    for words in errors[0] | errors[1]:
        if errors[0][words] != errors[1][words]:
            one, other = (f"raises {words}, {each[words]} times" for each in errors)
            yield place.at(None, one, other)
    if not (reference.is_whole and candidate.is_whole):
        yield place.at(None, _end_of(reference), _end_of(candidate))


def _end_of(record: Record) -> str:
    last = record.events[-1] if record.events else None
    return last.say() if isinstance(last, Hung | GaveUp) else "ends"


def _sizes(found: Counter[int | None]) -> str:
    return "batches of " + ", ".join(f"{size} ({count} x)" for size, count in sorted(found.items(), key=str))


def is_by_sample(record: Record) -> bool:
    batches = [at for at, event in enumerate(record.events) if isinstance(event, Fingerprint)]
    return all(record.layout_of(at) is not None and record.size_of(at) is not None for at in batches)


def _samples(record: Record, *, by_sample: bool) -> dict[bytes, list[Sample]]:
    found: dict[bytes, list[Sample]] = {}
    for at, event in enumerate(record.events):
        if not isinstance(event, Fingerprint):
            continue
        batch, indices = record.first + at, record.indices_of(at)
        if not by_sample:
            found.setdefault(event.digest, []).append(Sample(batch, None, None))
            continue
        for sample, digest in enumerate(_digests(event, record, at)):
            index = None if indices is None else indices[sample]
            found.setdefault(digest, []).append(Sample(batch, sample, index))
    return found


def _digests(event: Fingerprint, record: Record, at: int) -> list[bytes]:
    layout = record.layout_of(at)
    if layout == "one":
        return [event.digest]
    is_list, size = layout == "items", record.size_of(at) or 0
    parts: list[list[bytes]] = [[] for _ in range(size)]
    for leaf in event.leaves:
        if is_list and leaf.path:
            item = re.match(r"\[(\d+)\]", leaf.path)
            assert item is not None
            rest = leaf.path[item.end() :]
            parts[int(item[1])].append(digest_of(rest.encode(), leaf.what.encode(), leaf.digest, leaf.how.encode()))
            continue
        rows = leaf.rows if leaf.rows is not None and leaf.rows.count == size else None
        what = leaf.what if rows is None else _of_one(leaf.what, size)
        for sample, found in enumerate(parts):
            data = leaf.digest if rows is None else rows.digest(sample)
            shared = b"" if is_list else data  # a list of another length is a batch of another size
            words = (leaf.what.partition(" of ")[0] if is_list else what).encode()
            found.append(digest_of(leaf.path.encode(), words, shared, leaf.how.encode()))
    return [digest_of(*found) for found in parts]


def _of_one(what: str, size: int) -> str:
    """The description of a tensor, array or list, without the number of its rows."""
    return re.sub(rf"(shape \[|(?:list|tuple) of ){size}\b", r"\g<1>", what, count=1)
