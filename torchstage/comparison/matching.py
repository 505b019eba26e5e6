"""Matching: two records of one epoch in, their differences out, with the place of each.

Guarantees: whether two batches are equal is decided by the hash of all that is in them; a difference that cannot be
named is reported all the same.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from torchstage.comparison.fingerprint import Fingerprint
from torchstage.comparison.leaf import Leaf, Numbers
from torchstage.comparison.nearly import Tolerance, far
from torchstage.comparison.record import Event, GaveUp, Hung, Raised, Record
from torchstage.comparison.report import Difference

NOTHING = "no batch: the epoch is over"


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is looked now."""

    epoch: int
    part: str
    rank: int | None

    def at(self, batch: int | None, reference: str, candidate: str, field: str = "", note: str = "") -> Difference:
        return Difference(self.epoch, batch, field, None, None, reference, candidate, note, None, self.part, self.rank)


def differences_in_order(
    reference: Record, candidate: Record, place: Place, tolerance: Tolerance | None
) -> Iterator[Difference]:
    """Batch by batch, in the order in which they came."""
    yield from _lengths(reference, candidate, place)
    numbers = _numbers(reference)
    for at in range(max(len(reference.events), len(candidate.events))):
        one = reference.events[at] if at < len(reference.events) else None
        other = candidate.events[at] if at < len(candidate.events) else None
        batch = reference.first + at
        if one is None or other is None:
            yield from _missing(reference, candidate, at, place)
            return
        if isinstance(one, Fingerprint) and isinstance(other, Fingerprint):
            if is_equal(one, other, tolerance):
                continue
            if other.digest in numbers and one.digest != other.digest:
                note = f"the candidate's batch {batch} is the reference's batch {numbers[other.digest]}"
                yield replace(_first_of(reference, candidate, at, place, tolerance), note=note)
                continue
            yield from _in_batch(reference, candidate, at, place, tolerance)
        elif isinstance(one, Hung | GaveUp) or one != other:
            yield place.at(batch, _say(one), _say(other))


def _first_of(reference: Record, candidate: Record, at: int, place: Place, tolerance: Tolerance | None) -> Difference:
    return next(_in_batch(reference, candidate, at, place, tolerance))


def is_equal(one: Fingerprint, other: Fingerprint, tolerance: Tolerance | None) -> bool:
    if one.digest != other.digest:
        return False
    if tolerance is None:
        return True
    pairs = zip(one.leaves, other.leaves, strict=True)
    return all((a.stored is None) == (b.stored is None) and far(a, b, tolerance) is None for a, b in pairs)


def _lengths(reference: Record, candidate: Record, place: Place) -> Iterator[Difference]:
    if reference.length != candidate.length and place.part == "epoch":
        words = [
            "no len()" if length is None else f"len() is {length}" for length in (reference.length, candidate.length)
        ]
        yield place.at(None, *words)


def _numbers(record: Record) -> dict[bytes, int]:
    """Of each batch that is there once."""
    found: dict[bytes, int] = {}
    for at, event in enumerate(record.events):
        if isinstance(event, Fingerprint):
            found[event.digest] = -1 if event.digest in found else record.first + at
    return {digest: number for digest, number in found.items() if number >= 0}


def _missing(reference: Record, candidate: Record, at: int, place: Place) -> Iterator[Difference]:
    counts = [f"{len(record.events)} batches" for record in (reference, candidate)]
    note = f"the reference gives {counts[0]}, the candidate {counts[1]}"
    events = [record.events[at] if at < len(record.events) else None for record in (reference, candidate)]
    yield place.at(reference.first + at, *(_say(event) for event in events), note=note)


def _say(event: Event | None) -> str:
    if event is None:
        return NOTHING
    if isinstance(event, Fingerprint):
        return f"a batch, {event.leaves[0].say()}"
    return event.say() if not isinstance(event, Raised) else f"raises {event.say()}"


def _in_batch(
    reference: Record, candidate: Record, at: int, place: Place, tolerance: Tolerance | None
) -> Iterator[Difference]:
    one, other = reference.events[at], candidate.events[at]
    assert isinstance(one, Fingerprint)
    assert isinstance(other, Fingerprint)
    batch, is_named = reference.first + at, False
    for found in _leaves(_by_path(one), _by_path(other), tolerance):
        is_named = True
        known = place.at(batch, found.reference, found.candidate, found.path, found.note)
        sample = _sample_of(reference, candidate, at, found)
        if sample is not None:
            index, other_index = (_index(record, at, sample) for record in (reference, candidate))
            known = replace(known, sample=sample, index=index, candidate_index=other_index)
        yield known
    if not is_named:  # such as two keys of the same name
        yield place.at(batch, one.leaves[0].say(), other.leaves[0].say(), note="the fingerprints of all of it differ")


def _index(record: Record, at: int, sample: int) -> Any:
    indices = record.indices_of(at)
    return indices[sample] if indices is not None and sample < len(indices) else None


@dataclass(frozen=True, slots=True)
class Found:
    """``row``: along the first dimension, or the item of a list."""

    path: str
    reference: str
    candidate: str
    row: int | None = None
    note: str = ""


def _sample_of(reference: Record, candidate: Record, at: int, found: Found) -> int | None:
    layouts = {reference.layout_of(at), candidate.layout_of(at)} - {None}
    if layouts == {"one"}:
        return 0
    if layouts == {"rows"}:
        return found.row
    if layouts == {"items"}:
        item = re.match(r"\[(\d+)\]", found.path)
        return int(item[1]) if item else found.row if not found.path else None
    return None


def _by_path(batch: Fingerprint) -> dict[str, Leaf]:
    return {leaf.path: leaf for leaf in batch.leaves}


def _leaves(ones: dict[str, Leaf], others: dict[str, Leaf], tolerance: Tolerance | None) -> Iterator[Found]:
    """Where they differ, and not once more for all that is inside that."""
    told: list[str] = []
    for path, one in ones.items():
        if _is_inside(path, told):
            continue
        other = others.get(path)
        if other is None:
            told.append(path)
            yield Found(path, one.say(), "nothing of this name")
            continue
        found = _leaf(one, other, ones, others, tolerance)
        if found is not None:
            if one.what != other.what or one.how or other.how:
                told.append(path)
            yield found
    for path, other in others.items():
        if path not in ones and not _is_inside(path, told):
            told.append(path)
            yield Found(path, "nothing of this name", other.say())


def _is_inside(path: str, told: list[str]) -> bool:
    return any(
        path.startswith(each) and (not each or path[len(each) : len(each) + 1] in ("", "[", ".")) for each in told
    )


def _leaf(
    one: Leaf, other: Leaf, ones: dict[str, Leaf], others: dict[str, Leaf], tolerance: Tolerance | None
) -> Found | None:
    note = f"compared by {one.how or other.how}" if one.how or other.how else ""
    if bool(one.kind) != bool(other.kind) and (item := _first_item(one, other, ones, others)) is not None:
        return item
    if one.what != other.what or one.how != other.how:
        return Found(one.path, one.say(), other.say(), note=note)
    if tolerance is not None and one.stored is not None and other.stored is not None:
        distance = far(one, other, tolerance)
        return None if distance is None else Found(one.path, *distance.words, distance.row, distance.note)
    if one.digest == other.digest:
        return None
    if one.rows is None or other.rows is None:
        if one.shown.startswith("keys ") and sorted(one.shown) == sorted(other.shown):
            note = "the keys are in another order"
        return Found(one.path, one.say(), other.say(), note=note)
    row = one.rows.first_other(other.rows)
    if row is None:
        return Found(one.path, one.say(), other.say())
    words = _element(one, other, row) or (one.rows.say(row), other.rows.say(row))
    others_too = one.rows.num_other(other.rows)
    note = f"differs in {others_too} of {one.rows.count} {'items' if one.kind else 'rows'}, first in {row}"
    return Found(one.path, f"{one.what}: {words[0]}", f"{other.what}: {words[1]}", row, note)


def _first_item(one: Leaf, other: Leaf, ones: dict[str, Leaf], others: dict[str, Leaf]) -> Found | None:
    """Of a list of plain values of one type, and one of several types."""
    plain, mixed, inside = (one, other, others) if one.kind else (other, one, ones)
    assert plain.rows is None or plain.kind
    if plain.rows is None or plain.what.removesuffix(f" {plain.kind}") != mixed.what:
        return None
    for at in range(plain.rows.count):
        leaf = inside.get(f"{mixed.path}[{at}]")
        if leaf is not None and (leaf.what, leaf.digest) == (plain.kind, plain.rows.digest(at)):
            continue
        words = [f"{plain.kind}: {plain.rows.say(at)}", "nothing" if leaf is None else leaf.say()]
        return Found(f"{mixed.path}[{at}]", *(words if one.kind else words[::-1]), row=at)
    return None


def _element(one: Leaf, other: Leaf, row: int) -> tuple[str, str] | None:
    """The first element that differs in a row, where the rows were kept."""
    assert one.rows is not None
    assert other.rows is not None
    a, b = one.rows.words, other.rows.words
    if not isinstance(a, Numbers) or not isinstance(b, Numbers) or a.raw is None or b.raw is None:
        return None
    size = len(a.raw) // one.rows.count
    num_elements = int(np.prod(a.shape[1:], dtype=np.int64))
    width = size // max(1, num_elements)
    for at in range(num_elements):
        start = row * size + at * width
        first, second = a.raw[start : start + width], b.raw[start : start + width]
        if first != second:
            place = [row, *(int(n) for n in np.unravel_index(at, a.shape[1:]))]
            values = [_number(data, a.dtype) for data in (first, second)]
            if values[0] == values[1]:  # two NaN of other bits
                values = [
                    f"{value} (0x{data[::-1].hex()})" for value, data in zip(values, (first, second), strict=True)
                ]
            return f"{values[0]} at {place}", f"{values[1]} at {place}"
    return None


def _number(data: bytes, dtype: str) -> str:
    if dtype == "bfloat16":
        return str(np.frombuffer(b"\0\0" + data, np.float32)[0])
    try:
        return str(np.frombuffer(data, np.dtype(dtype))[0])
    except (TypeError, ValueError):
        return f"0x{data[::-1].hex()}"
