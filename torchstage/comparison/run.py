"""Run: two loaders in, one comparison as it goes on: epochs, a restart, then time and memory.

Guarantees: one loader is read at a time; every epoch that was read is compared.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from torch.utils.data import DataLoader

from torchstage.comparison.fingerprint import Fingerprint
from torchstage.comparison.matching import Place, differences_in_order
from torchstage.comparison.nearly import Tolerance
from torchstage.comparison.reading import Side
from torchstage.comparison.record import Hung, Record
from torchstage.comparison.report import Comparison, Difference
from torchstage.comparison.unordered import differences_in_any_order, is_by_sample
from torchstage.comparison.watch import Cost, of_epochs, of_ranks

NAMES = ("reference", "candidate")
Order = Literal["exact", "any"]


class Here:
    """A side in this process, asked as one in another is."""

    def __init__(self, side: Side) -> None:
        self._side, self._asked = side, ("", ())

    def ask(self, name: str, *arguments: Any) -> None:
        self._asked = name, arguments

    def answer(self) -> Any:
        return getattr(self._side, self._asked[0])(*self._asked[1])


def all_of(sides: Sequence[Any], name: str, *arguments: Any) -> list[Any]:
    """The answers of all ranks of one loader, which work at the same time."""
    for side in sides:
        side.ask(name, *arguments)
    return [side.answer() for side in sides]


class Run:
    """One comparison, as it goes."""

    def __init__(
        self,
        reference: Sequence[Any],
        candidate: Sequence[Any],
        order: Order,
        tolerance: Tolerance | None,
        max_differences: int,
        ranks: int | None,
        sets_epoch: bool,
    ) -> None:
        self._sets_epoch = sets_epoch
        self._sides = (reference, candidate)
        self._order, self._tolerance, self._ranks = order, tolerance, ranks
        self._most = max_differences
        self._differences: list[Difference] = []
        self._num_more = 0
        self._notes: list[str] = []
        self._num_batches, self._num_raised, self._num_errors = 0, 0, 0
        self._num_samples: list[int | None] = [0, 0]
        self._num_events = 0
        self._seen: list[list[list[bytes]]] = []  # hashes of all batches of the first epoch
        self.has_hung = False
        self._num_epochs = 0
        self._first: tuple[list[Record], list[Record]] | None = None
        self._hints: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        self._restart_words = ""

    # What is compared ------------------------------------------------------------------------------------------------

    def compare_epoch(self, epoch: int) -> None:
        pair = self._both("epoch", epoch, starts=epoch % 2)
        if epoch == 0:
            self._first = pair
            self._hints = (all_of(self._sides[0], "hints"), all_of(self._sides[1], "hints"))
        for rank, (one, other) in enumerate(zip(*pair, strict=True)):
            self._take(one, other, self._place(epoch, "epoch", rank))
            self._num_batches += one.num_batches + other.num_batches
            self._num_raised += one.num_errors
            self._num_errors += one.num_errors + other.num_errors
            self.has_hung |= any(isinstance(event, Hung) for record in (one, other) for event in record.events)
        self._count(pair, epoch)
        self._num_epochs += 1

    def compare_restart(self, restart: int | str) -> None:
        assert self._first is not None
        can = [all(hint["has_state"] for hint in hints) for hints in self._hints]
        length = min(len(record.events) for records in self._first for record in records)
        cut = length // 2 if restart == "auto" else int(restart)
        if not can[1] or (restart != "auto" and not 0 < cut < length):
            self._no_restart(restart, can[1], cut, length)
            return
        if not 0 < cut < length:
            return
        is_any = self._order == "any"  # what comes after it depends on what came before it
        after = all_of(self._sides[1], "restart", cut, 0, is_any)
        if can[0]:
            expected = all_of(self._sides[0], "restart", cut, 0, is_any)
            self._restart_words = f", and both restarted at batch {cut}"
        else:
            expected = self._first[0] if is_any else [_rest(record, cut) for record in self._first[0]]
            self._restart_words = f", and the candidate restarted at batch {cut}"
        for rank, (one, other) in enumerate(zip(expected, after, strict=True)):
            self._take(one, other, self._place(0, "restart", rank))

    def _no_restart(self, restart: int | str, can: bool, cut: int, length: int) -> None:
        if restart == "auto":
            if any(hint["needs_function"] for hint in self._hints[1]):
                self._notes.append("no restart was tried, which needs functions that make the loaders")
            return
        if not can:
            raise ValueError(
                "torchstage.compare: restart needs a function that makes the candidate, and a candidate with "
                f"state_dict and load_state_dict; got restart={restart!r}. Use restart=None."
            )
        raise ValueError(f"torchstage.compare: restart={cut} is not inside an epoch of {length} batches.")

    def check_that_there_was_something(self) -> None:
        if not self._num_batches and not self._num_errors and not self.has_hung:
            note = "nothing was compared: is the dataset empty, or an iterator used up?"
            self._keep(Difference(0, None, "", None, None, "no batch at all", "no batch at all", note))

    def _both(self, name: str, epoch: int, starts: int) -> tuple[list[Any], list[Any]]:
        found: list[list[Any]] = [[], []]
        for which in (starts, 1 - starts):
            found[which] = all_of(self._sides[which], name, epoch)
        return found[0], found[1]

    def _place(self, epoch: int, part: str, rank: int) -> Place:
        return Place(epoch, part, None if self._ranks is None else rank)

    def _take(self, one: Record, other: Record, place: Place) -> None:
        if self._order == "exact":
            found: Iterator[Difference] = differences_in_order(one, other, place, self._tolerance)
        else:
            found = differences_in_any_order(one, other, place)
            if not (is_by_sample(one) and is_by_sample(other)):
                self._notes.append("whole batches are compared: where their samples are cannot be told")
        self._note_how(one)
        before = len(self._differences) + self._num_more
        for difference in found:
            self._keep(difference)
        is_other = len(self._differences) + self._num_more > before
        if is_other and self._order == "exact" and _has_same_samples(one, other, place):
            self._notes.append(f"{_where(place)} has the same samples on both sides, in another order")
        if one.events and one.indices is None and one.why_no_indices and is_other and place.part == "epoch":
            self._notes.append(f"dataset indices are unknown: {one.why_no_indices}")

    def _note_how(self, record: Record) -> None:
        """What of a batch is not compared by its own bytes."""
        batches = (event for event in record.events if isinstance(event, Fingerprint))
        pickled = {leaf.what: leaf.path for batch in batches for leaf in batch.leaves if leaf.how == "pickle"}
        for what, path in pickled.items():
            self._notes.append(f"{path or 'a batch'}, a {what}, is compared by its pickle")

    def _keep(self, difference: Difference) -> None:
        if len(self._differences) < self._most:
            self._differences.append(difference)
        else:
            self._num_more += 1

    # What is told about it -------------------------------------------------------------------------------------------

    def note_shared(self, reference: Any, candidate: Any) -> None:
        """Loaders that share what one of them changes."""
        if not (isinstance(reference, DataLoader) and isinstance(candidate, DataLoader)):
            return
        one, other = cast(Any, reference), cast(Any, candidate)
        if one.generator is not None and one.generator is other.generator:
            self._notes.append(
                "both loaders draw from one generator object, so that their orders differ; give each its own"
            )

    def _count(self, pair: tuple[list[Record], list[Record]], epoch: int) -> None:
        self._num_events += sum(max(len(a.events), len(b.events)) for a, b in zip(*pair, strict=True))
        if epoch == 0:
            for which, records in enumerate(pair):
                sizes = [record.num_samples for record in records]
                self._num_samples[which] = None if None in sizes else sum(size or 0 for size in sizes)
        hashes = [[_digests(record) for record in records] for records in pair]
        if epoch == 0:
            self._seen = hashes
        elif epoch == 1 and self._tolerance is None and hashes == self._seen and any(map(any, hashes)):
            same = "epoch 1 is the same as epoch 0 on both sides"
            if any(hint["has_set_epoch"] for hints in self._hints for hint in hints) and not self._sets_epoch:
                self._notes.append(f"{same}, and there is a set_epoch that nobody called; pass set_epoch=True")
            else:
                self._notes.append(f"{same}: nothing shuffles")

    def costs(self, epochs: int, timed_epochs: int) -> tuple[Cost, Cost]:
        found: tuple[list[Cost], list[Cost]] = ([], [])
        for number in range(timed_epochs):
            pair = self._both("timed", epochs + number, starts=number % 2)
            for which in (0, 1):
                found[which].append(of_ranks(pair[which]))
        if not timed_epochs:
            return Cost(NAMES[0]), Cost(NAMES[1])
        reference, candidate = (of_epochs(each) for each in found)
        numbers = [None if n is None else n * timed_epochs for n in self._num_samples]
        return replace(reference, num_samples=numbers[0]), replace(candidate, num_samples=numbers[1])

    def comparison(self, costs: tuple[Cost, Cost], max_batches: int | None) -> Comparison:
        if self._num_raised and not self._differences:
            self._notes.append(f"{self._num_raised} errors are the same on both sides")
        words = f"{self._num_events} batches in {self._num_epochs} epoch{'s' if self._num_epochs != 1 else ''}"
        if self._ranks is not None:
            words = f"{words} on {self._ranks} ranks"
        if max_batches is not None:
            words += f", of each no more than the first {max_batches}"
        words += self._restart_words
        words += {"any": ", in any order", "exact": ""}[self._order]
        if self._tolerance is not None:
            words += f", with tolerance {self._tolerance.relative:g} relative, {self._tolerance.absolute:g} absolute"
        notes = tuple(dict.fromkeys(self._notes))
        return Comparison(tuple(self._differences), self._num_more, *costs, words, notes)


def _where(place: Place) -> str:
    return f"epoch {place.epoch}" if place.rank is None else f"rank {place.rank}, epoch {place.epoch}"


def _has_same_samples(one: Record, other: Record, place: Place) -> bool:
    if not (one.num_batches and is_by_sample(one) and is_by_sample(other)):
        return False
    return next(differences_in_any_order(one, other, place), None) is None


def _digests(record: Record) -> list[bytes]:
    return [event.digest for event in record.events if isinstance(event, Fingerprint)]


def _rest(record: Record, cut: int) -> Record:
    indices = None if record.indices is None else record.indices[cut:]
    return replace(record, events=record.events[cut:], first=cut, indices=indices)
