"""Regroup: batches of single samples, some of which are missing, in; full batches of those that are there out.

Guarantees: the samples keep their order, whatever was missing between them; a group depends on the samples alone, so
that a run that goes on from any group's end makes the same groups; nothing changes before a step is taken, which may
be done twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchstage.engine.gather import announce
from torchstage.engine.ticket import NO_CHAIN, Batch, Chain, Wake

Parts = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]  # values that are there; indices and items of all


@dataclass(slots=True)
class Group:
    """Samples of one batch to come. ``places``: of each in the epoch's order. ``bad``: records of what was missing
    before its last sample."""

    values: list[Any] = field(default_factory=list[Any])
    indices: list[Any] = field(default_factory=list[Any])
    items: list[Any] = field(default_factory=list[Any])
    places: list[int] = field(default_factory=list[int])
    bad: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])

    def copy(self) -> "Group":
        return Group(list(self.values), list(self.indices), list(self.items), list(self.places), list(self.bad))


@dataclass(frozen=True, slots=True)
class Step:
    """What comes of one batch, ``raw``: what is to be handed out in its place, and what is left for the next. ``end``:
    the place after all samples that were looked at; ``num_groups``: batches so far."""

    raw: Batch | None = None
    groups: tuple[Batch, ...] = ()
    left: Group = field(default_factory=Group)
    end: int = 0
    num_groups: int = 0


class Regroup:
    """What one run regroups. ``place_of`` tells the place of a batch's first sample, ``parts_of`` what is in it;
    ``chain`` the chain that finishes a group, and ``named`` what its ``finish`` is told of its samples."""

    def __init__(
        self,
        size: int,
        place_of: Callable[[Batch], int],
        parts_of: Callable[[Batch], Parts],
        chain: Callable[[], Chain],
        named: Callable[[Group], Sequence[Any]],
        *,
        drops_last: bool,
    ) -> None:
        self._size = size
        self._place_of = place_of
        self._parts_of = parts_of
        self._chain = chain
        self._named = named
        self._drops_last = drops_last
        self._at = Step()

    def take(self, step: Step) -> None:
        """Go on from there. What it was made of is let go of."""
        self._at = replace(step, raw=None, groups=())

    def step(self, raw: Batch, wake: Wake) -> Step:
        """What comes of this batch, which is done: batches of which all samples are there; or itself, if it failed."""
        if raw.failure is not None:
            return self._of_failed(raw, wake)
        values, indices, items = self._parts_of(raw)
        slots = range(len(indices)) if raw.slots is None else raw.slots
        if self._is_full(raw, values):
            return self._as_it_is(raw, values, indices, items, wake)
        begin, bad, made = self._place_of(raw), list(raw.bad), list[Batch]()
        left, num_groups = self._at.left.copy(), self._at.num_groups
        for value, slot in zip(values, slots, strict=True):
            while bad and bad[0][0] <= slot:  # this one itself: something else came in its place
                left.bad.append(bad.pop(0))
            left.values.append(value)
            left.indices.append(indices[slot])
            left.items.append(items[slot])
            left.places.append(begin + slot)
            if len(left.values) == self._size:
                made.append(self._made(left, num_groups, left.places[-1] + 1, left.indices[-1], wake))
                left, num_groups = Group(), num_groups + 1
        left.bad.extend(bad)
        return Step(raw, tuple(made), left, begin + len(indices), num_groups)

    def _is_full(self, raw: Batch, values: Sequence[Any]) -> bool:
        """Whether it is just what is to be handed out next: the usual case, which is to cost little."""
        left = self._at.left
        return raw.slots is None and len(values) == self._size and not (raw.bad or left.values or left.bad)

    def _as_it_is(
        self, raw: Batch, values: Sequence[Any], indices: Sequence[Any], items: Sequence[Any], wake: Wake
    ) -> Step:
        begin, num_groups = self._place_of(raw), self._at.num_groups
        end = begin + len(indices)
        group = Group(list(values), list(indices), list(items), list(range(begin, end)))
        batch = self._made(group, num_groups, end, indices[-1], wake)
        return Step(raw, (batch,), Group(), end, num_groups + 1)

    def _of_failed(self, raw: Batch, wake: Wake) -> Step:
        """It is handed out, with a number among the others. Samples before it that wait for more come after it."""
        at = self._at
        batch = Batch(at.num_groups, raw.indices, raw.chain, wake, raw.items)
        batch.bad, left, end = raw.bad, at.left, at.end
        if raw.chain is not NO_CHAIN:
            _, indices, _ = self._parts_of(raw)
            end = self._place_of(raw) + len(indices)
            if not left.values:  # else a run that goes on from here has to make these once more
                batch.bad, left = (*left.bad, *raw.bad), Group()
                batch.end = end, indices[-1]
        announce(batch, raw.failure, raw.done_at)
        return Step(raw, (batch,), left, end, at.num_groups + 1)

    def rest(self, wake: Wake) -> Step | None:
        """What is left when there are no more samples. None: nothing."""
        at = self._at
        if self._drops_last or not at.left.values:
            return None
        return Step(None, (self._made(at.left, at.num_groups, at.end, None, wake),), Group(), at.end, at.num_groups + 1)

    @property
    def num_groups(self) -> int:
        """Batches so far."""
        return self._at.num_groups

    @property
    def num_left(self) -> int:
        """Samples that did not make a batch."""
        return len(self._at.left.values)

    def take_bad(self) -> tuple[tuple[int, Any], ...]:
        """Records of what was missing after the last group, once."""
        left = self._at.left
        bad, left.bad = tuple(left.bad), []
        return bad

    def _made(self, group: Group, number: int, end: int, last: Any, wake: Wake) -> Batch:
        batch = Batch(number, self._named(group), self._chain(), wake)
        batch.todo.clear()
        batch.settled.update(enumerate(group.values))
        batch.bad = tuple(group.bad)
        batch.end = end, last
        return batch
