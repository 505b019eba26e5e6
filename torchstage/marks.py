"""Marks: an iterable dataset that is being read in, where its reader is out, and back.

A dataset, its iterator, or both may have ``state_dict`` and ``load_state_dict``. What they tell between two batches is
a mark. To go on from it: the dataset is told its state, ``iter`` is called, the iterator is told its state.

Guarantees: a mark is a copy, which neither the reader nor the dataset changes; what a ``state_dict`` raises waits in
the mark until somebody asks for it; a reader without any of these methods costs nothing.
"""

import copy
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from torchstage.draws import States
from torchstage.errors import add_note
from torchstage.scope_states import Drawn, put_into

_MISSING = object()


@dataclass(frozen=True, slots=True, eq=False)
class Mark:
    """Where a reader is between two batches."""

    num_batches: int  # of this epoch that it has made; 0: its iterator is not made yet
    dataset: Any = None  # what the dataset told; None: nothing
    iterator: Any = None
    draws: Drawn | States | None = None  # its random generators; None: as they were seeded
    error: Exception | None = None  # that a state_dict raised
    num_read: int = 0  # samples of this epoch, also those that failed


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """Where a reader goes on."""

    mark: Mark | None  # None: at the beginning of the epoch
    num_since: int = 0  # batches after the mark that were handed out
    has_ended: bool = False
    draws_at_start: Drawn | States | None = None  # before the epoch's iterator was made
    base_seed: int = 0  # what the generators were seeded from
    has_state: bool = False  # whether the dataset could tell where it is


def has_state(value: Any) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def keeper_of(dataset: Any) -> Any:
    """Who knows the dataset's state: DataLoader puts a wrapper around a data pipe. None: nobody."""
    inner: Any = getattr(dataset, "__dict__", {}).get("_datapipe")
    return dataset if has_state(dataset) else inner if has_state(inner) else None


class Reader:
    """One iterable dataset, read epoch after epoch by one thread at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._keeper = keeper_of(dataset)
        self._before: list[Any] = []  # its state before it was told one for the first time
        self._replaced: dict[str, Any] = {}  # its attributes before that, where telling it replaced them
        self._opening: Mark | None = None
        self.is_between = True  # whether it has finished the epoch that it began

    def has_state(self, fetcher: Any) -> bool:
        """Whether there is anything to keep of it."""
        return self._keeper is not None or has_state(fetcher.dataset_iter)

    def mark(self, fetcher: Any, num_batches: int, draws: Drawn | None, where: str) -> Mark:
        """Where it is now. ``fetcher``: what reads the batches of this epoch, None between two epochs."""
        iterator = None if fetcher is None else fetcher.dataset_iter
        try:
            inner = copy.deepcopy(iterator.state_dict()) if iterator is not None and has_state(iterator) else None
            is_its_own = iterator is not None and iterator is self._keeper
            outer = None if self._keeper is None or is_its_own else copy.deepcopy(self._keeper.state_dict())
        except Exception as error:
            return Mark(num_batches, draws=draws, error=_kept(error, f"state_dict of {where}"))
        return Mark(num_batches, outer, inner, draws, num_read=0 if fetcher is None else fetcher.num_read)

    def opening(self, draws: Drawn | None, where: str) -> Mark:
        """Where it is before it begins an epoch. One that was left in the middle begins that epoch again."""
        known = self._opening
        if known is None or self.is_between:
            known = self.mark(None, 0, draws, where)
        self._opening = Mark(0, known.dataset, None, draws, known.error)
        return self._opening

    def open(self, make: Callable[[], Any], start: Mark | None, where: str) -> tuple[Any, bool]:
        """The fetcher of an epoch that begins at a mark, with the generators as they are; None: wherever the dataset
        is. And whether the dataset may have taken its state at the end of the last epoch for a place to begin at."""
        told = None if start is None else start.dataset
        if start is None and self._before and self.is_between and self._keeper is not None:
            # It was told a state before, which some datasets go by in every epoch after that.
            told = copy.deepcopy(self._keeper.state_dict())
        if told is not None:
            self.tell(told, where)
        self.is_between = False
        fetcher = make()
        if start is not None and start.iterator is not None:
            iterator = fetcher.dataset_iter
            if not has_state(iterator):
                raise ValueError(_no_place("the dataset's iterator", iterator))
            _load(iterator, start.iterator, f"the iterator of {where}")
        fetcher.num_read = 0 if start is None else start.num_read
        is_first = start is None or start.num_batches == 0
        return fetcher, told is not None and is_first and fetcher.dataset_iter is not self._keeper

    def tell(self, state: Any, where: str) -> None:
        """Have the dataset go on from that state in its next iteration."""
        if self._keeper is None:
            raise ValueError(_no_place("the dataset", self.dataset))
        if not self._before:
            self._before.append(copy.deepcopy(self._keeper.state_dict()))
        attributes = dict(getattr(self._keeper, "__dict__", {}))
        _load(self._keeper, state, where)
        for name, value in getattr(self._keeper, "__dict__", {}).items():
            if attributes.get(name, _MISSING) is not value:
                self._replaced.setdefault(name, attributes.get(name, _MISSING))

    def open_anew(self, make: Callable[[], Any], where: str) -> Any:
        """It had nothing at all to read after it was told the state of its end: that did not mean the beginning of the
        next epoch. So what it was told is undone."""
        for name, value in self._replaced.items():
            if value is _MISSING:
                delattr(self._keeper, name)
            else:
                setattr(self._keeper, name, value)
        if not self._replaced:
            _load(self._keeper, self._before[0], where)
        return make()


def _load(target: Any, state: Any, where: str) -> None:
    try:
        target.load_state_dict(copy.deepcopy(state))  # it may go on to change it
    except Exception as error:
        add_note(error, f"torchstage: raised in load_state_dict of {where}")
        raise


def _no_place(what: str, value: Any) -> str:
    return (
        f"StageLoader: the loaded state holds a state of {what}, but {type(value).__name__} has no load_state_dict to "
        "take it. Give it state_dict and load_state_dict as when the state was saved."
    )


def _kept(error: Exception, where: str) -> Exception:
    """The same error to be raised later. Its traceback, which would keep the dataset alive, is kept as words."""
    words = "".join(traceback.format_tb(error.__traceback__)[1:])
    add_note(error, f"torchstage: raised in {where}, here:\n{words}")
    return error.with_traceback(None)


def draws_into(scope: Any, draws: Drawn | States | None, base_seed: int, number: int) -> None:
    """Put a reader's generators where they were; without a scope, it draws from the process's, which are left alone."""
    if scope is not None:
        put_into(scope, cast(Any, draws), base_seed, number)
