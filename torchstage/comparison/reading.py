"""Reading: a loader, or what makes one, in; records of its epochs, its restart and its cost out.

Guarantees: each epoch begins with the same random generators for both loaders; a loader that is made here is closed
here; no more than one batch is kept.
"""

import gc
import pickle
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from torch.utils import data as torch_data
from torch.utils.data import DataLoader

from torchstage.comparison.arrays import Store
from torchstage.comparison.fingerprint import fingerprint
from torchstage.comparison.indices import Indices
from torchstage.comparison.leaf import kind_of, type_name
from torchstage.comparison.patience import Patience, TimedOut, raised, reseed
from torchstage.comparison.record import Event, GaveUp, Hung, Layout, Raised, Record
from torchstage.comparison.watch import Cost, Watch

MAX_ERRORS_IN_A_ROW = 100  # a loader that raises for ever is left alone
END = object()


@dataclass(frozen=True, slots=True)
class Settings:
    """How loaders are read: as ``compare`` has them. ``store``: a folder, where there is a tolerance."""

    seed: int | None = 0
    set_epoch: bool = False
    max_batches: int | None = None
    timeout: float | None = None
    strides: bool = False
    store: str | None = None


class Side:
    """One of the two. ``is_factory``: ``given`` makes the loader; else it is the loader."""

    def __init__(self, given: Any, settings: Settings, name: str, *, is_factory: bool) -> None:
        self.name, self._given, self._settings, self._is_factory = name, given, settings, is_factory
        self._patience = Patience(settings.timeout)
        self._is_dead = False
        self._loader: Any = None
        self._store = None if settings.store is None else Store.in_folder(settings.store, name)

    @property
    def is_dead(self) -> bool:
        """Whether it hung, and was left alone."""
        return self._is_dead

    def epoch(self, number: int) -> Record:
        """Read an epoch, and keep its fingerprints."""
        if self._store is not None:
            self._store.clear()
        self._begin_epoch(number)
        return self._record(self._loader)

    def hints(self) -> dict[str, Any]:
        """What the loader can do."""
        loader = self._loader
        has_state = all(map(callable, _state_functions(loader)))
        return {
            "has_state": self._is_factory and has_state,
            "needs_function": has_state and not self._is_factory,
            "has_set_epoch": bool(_with_set_epoch(loader)),
        }

    def restart(self, cut: int, number: int, with_before: bool = False) -> Record:
        """Read ``cut`` batches of an epoch, keep the state, make a new loader, and go on there. What fails on the way
        is what came. ``with_before``: what came before it is in the record, too."""
        kept, self._loader = self._loader, None
        record = Record(first=cut)
        try:
            self._begin_epoch(number)
            before, state = self._read_until(cut, keeps=with_before)
            self._drop()
            self._begin_epoch(number)
            self._patience.call(lambda: self._loader.load_state_dict(pickle.loads(state)))
            record = self._record(self._loader, cut)
            if with_before:
                record.events[:0], record.first = before, 0
        except TimedOut as error:
            self._is_dead = True
            record.events.append(error.hung)
        except Exception as error:
            record.events.append(raised(error))
        finally:
            self._drop()
            self._loader = kept
        return record

    def _read_until(self, cut: int, *, keeps: bool) -> tuple[list[Event], bytes]:
        """What came, and the state after it."""
        events: list[Event] = []
        source = self._events(self._loader)
        for event in islice(source, cut):
            if keeps:
                events.append(self._event(event))
        state = self._patience.call(lambda: pickle.dumps(self._loader.state_dict()))
        source.close()
        return events, state

    def timed(self, number: int) -> Cost:
        """Read an epoch, and keep nothing."""
        self._drop()
        gc.collect()
        watch = Watch()
        self._begin_epoch(number)
        count, first = 0, None
        with watch, warnings.catch_warnings():
            # The thread that watches the memory is one that worker processes are forked beside.
            warnings.filterwarnings("ignore", r"This process \(pid=\d+\) is multi-threaded", DeprecationWarning)
            start = time.perf_counter()
            for event in self._events(self._loader):
                if not isinstance(event, Raised | Hung | GaveUp):
                    first = time.perf_counter() - start if first is None else first
                    count += 1
                if count == self._settings.max_batches:
                    break
                del event
            seconds = time.perf_counter() - start
            watch.look()
            self._drop()  # worker processes end, and their CPU seconds are known
        return Cost(
            self.name, 1, seconds, first, watch.cpu_seconds, watch.peak_bytes, watch.added_bytes, watch.is_once, count
        )

    def close(self) -> None:
        self._drop()
        self._patience.close()
        if self._store is not None:
            self._store.file.close()

    def _begin_epoch(self, number: int) -> None:
        seed = self._settings.seed
        if self._loader is None:
            if seed is not None:
                reseed(seed)
            made: Any = self._patience.call(self._given) if self._is_factory else self._given
            is_used_up = self._is_factory and isinstance(made, Iterator)
            self._loader = Once(cast("Iterator[Any]", made), self._given) if is_used_up else made
            check(self._loader, self.name)
        if seed is not None:
            reseed(seed + 1 + number)
        if self._settings.set_epoch:
            for owner in _with_set_epoch(self._loader):
                owner.set_epoch(number)

    def _drop(self) -> None:
        """The loader ends, unless it is the user's."""
        loader, self._loader = self._loader, None
        end: Any = getattr(loader, "close", None)
        if self._is_factory and not self._is_dead and callable(end):
            end()

    def _record(self, loader: Any, first: int = 0) -> Record:
        most = self._settings.max_batches
        record = Record(first=first, length=_length(loader), layout=_layout(loader))
        indices = Indices(loader)
        with indices.noted():
            for event in self._events(loader):
                record.events.append(self._event(event))
                del event
                if most is not None and first + len(record.events) >= most:
                    record.is_cut = True
                    break
        if first:
            record.why_no_indices = "it went on in mid-epoch"
        else:
            indices.put_into(record)
        if self._store is not None:
            self._store.file.flush()
        return record

    def _event(self, event: Any) -> Event:
        if isinstance(event, Raised | Hung | GaveUp):
            return event
        return fingerprint(event, strides=self._settings.strides, store=self._store)

    def _events(self, loader: Any) -> Generator[Any]:
        """Batches as they are, and what came in the place of some."""
        iterator, num_errors = None, 0
        while num_errors < MAX_ERRORS_IN_A_ROW:
            try:
                if iterator is None:
                    iterator = self._patience.call(lambda: iter(loader))
                batch = self._patience.call(_next_of(iterator))
            except TimedOut as error:
                self._is_dead = True
                yield error.hung
                return
            except Exception as error:
                num_errors += 1
                yield raised(error)
                if iterator is None:
                    return
                continue
            if batch is END:
                return
            num_errors = 0
            yield batch
            del batch
        yield GaveUp(MAX_ERRORS_IN_A_ROW)


class Once:
    """Stands for a function that gives an iterator: it is called once for each epoch."""

    def __init__(self, first: Iterator[Any], make: Callable[[], Any]) -> None:
        self._first: Iterator[Any] | None = first
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        iterator, self._first = self._first or self._make(), None
        return iterator


def check(loader: Any, name: str) -> None:
    """Raises TypeError if it cannot be iterated."""
    kind = kind_of(loader)
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise TypeError(
            f"torchstage.compare: the {name} is a {type_name(kind)}, which cannot be iterated. Give a loader, "
            "or a function without arguments that makes one."
        )


def _next_of(iterator: Any) -> Callable[[], Any]:
    return lambda: next(iterator, END)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except Exception:  # it has none
        return None


def _layout(loader: Any) -> Layout | None:
    if not isinstance(loader, DataLoader):
        return None
    known = cast(Any, loader)
    if known.batch_sampler is None:
        return "one"
    return "rows" if known.collate_fn is cast(Any, torch_data).default_collate else None


def _state_functions(loader: Any) -> tuple[Any, Any]:
    return getattr(loader, "state_dict", None), getattr(loader, "load_state_dict", None)


def _with_set_epoch(loader: Any) -> list[Any]:
    """What of it is told the epoch: the loader itself, else its samplers and its dataset."""
    if callable(getattr(loader, "set_epoch", None)):
        return [loader]
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = [getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    owners.append(getattr(loader, "dataset", None))
    found: dict[int, Any] = {id(owner): owner for owner in owners if callable(getattr(owner, "set_epoch", None))}
    return list(found.values())
