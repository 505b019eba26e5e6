"""Early: what is foreseen of the next epoch in, its first batches out, begun while the epoch before is handed out.

Guarantees: a batch is given only in the place of one that is admitted just as it was; else all that was begun early is
dropped; nothing is made for a batch that is dropped but the samples that threads are on; ``drop`` takes no lock and
waits for nothing, so a finalizer may call it.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from torchstage.engine.ticket import Batch, Chain

# Indices, chain, and the items where they are not the indices.
Admission = tuple[Sequence[Any], Chain, Sequence[Any] | None]


class Foreseen(Protocol):
    """What is expected of one epoch."""

    def admission(self) -> Admission | None:
        """The next of its batches; None: there is none, or it is not certain."""
        ...

    def is_as(self, early: Admission, admitted: Admission) -> bool:
        """Whether what was made early for the one is what would be made now for the other. Asked for one batch after
        another, until it says no."""
        ...

    def came(self) -> None:
        """All that was begun of it was given."""
        ...

    def put(self, item: None, /) -> None:
        """One of its batches was finished while nobody waits for it. Called in any thread."""
        ...


class Early:
    """The batches of the next epoch that are there before it begins. Used by the consumer's thread alone."""

    def __init__(self) -> None:
        self._batches: deque[tuple[Batch, Admission]] = deque()
        self._foreseen: Foreseen | None = None  # whose batches these are
        self._foresee: Callable[[], Foreseen | None] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return (batch for batch, _ in self._batches)

    def listed(self) -> list[Batch]:
        """They, as they are now, for whoever looks on from another thread."""
        while True:
            try:
                return [batch for batch, _ in self._batches]
            except RuntimeError:  # it changed meanwhile
                continue

    @property
    def newest(self) -> Batch | None:
        """The one that was admitted last."""
        return self._batches[-1][0] if self._batches else None

    def follow(self, foresee: Callable[[], Foreseen | None]) -> None:
        """An epoch begins. ``foresee`` is asked once, when its own order has come to its end, what comes after it."""
        self._foresee = foresee

    def admit(self) -> Batch | None:
        """One more batch, numbered as it will be in its epoch. Nobody was called to it yet. None: there is none."""
        if self._foresee is not None:
            foresee, self._foresee = self._foresee, None
            self.drop()  # what was foreseen of this epoch, and did not come
            self._foreseen = foresee()
        admission = None if self._foreseen is None else self._foreseen.admission()
        if self._foreseen is None or admission is None:
            return None
        indices, chain, items = admission
        number = self._batches[-1][0].number + 1 if self._batches else 0
        batch = Batch(number, indices, chain, self._foreseen, items)
        self._batches.append((batch, admission))
        return batch

    def take(self, number: int, admission: Admission) -> Batch | None:
        """The batch that was begun early for this one, in whatever state it is; None: there is none, and never will be
        in this epoch."""
        if not self._batches or self._foreseen is None:
            return None
        batch, early = self._batches.popleft()
        if batch.number == number and self._foreseen.is_as(early, admission):
            if not self._batches:
                self._foreseen.came()
                self._foreseen = None  # it leads to the user's objects
            return batch
        batch.drop()
        self.drop()
        return None

    def drop(self) -> None:
        """Leave all of them undone."""
        self._foreseen = None
        while self._batches:
            batch, _ = self._batches.pop()
            batch.drop()

    def __del__(self) -> None:
        self.drop()
