"""Indices: a loader and an epoch of it in, the dataset indices of each batch out, or why they are not known.

The sampler's class is given an ``__iter__`` that notes what one certain sampler yields, for as long as the epoch lasts.
The sampler itself, its type and its order stay as they are, so the loader takes the same way as without it.

Guarantees: nothing is guessed: where batches may not be the sampler's, in its order, there are no indices.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from torchstage.comparison.fingerprint import Fingerprint
from torchstage.comparison.record import Record, rows_of

STATIC = (list, tuple, range)  # what cannot change between two looks, and has no class to be changed
TRUSTED = ("torch.", "torchdata.", "torchstage.")  # whose iterators give the sampler's batches in its order


class Noted:
    """What a sampler yielded: a list for each time it was asked for an iterator."""

    def __init__(self) -> None:
        self.streams: list[list[Any]] = []

    def only(self) -> list[Any] | None:
        """What it yielded, if it was used once. torch asks for an iterator that it never uses, too."""
        used = [stream for stream in self.streams if stream]
        return used[0] if len(used) == 1 else None


def _plain(item: Any) -> Any:
    """A copy of a batch of indices; an index as it is."""
    return list(cast("list[Any]", item)) if isinstance(item, list | tuple | range) else item


class _Noting:
    """The sampler's iterator, and what it yields is noted."""

    def __init__(self, iterator: Iterator[Any], stream: list[Any]) -> None:
        self._iterator, self._stream = iterator, stream

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        item = next(self._iterator)
        self._stream.append(_plain(item))
        return item

    def __getattr__(self, name: str) -> Any:  # its state, where it has one
        if name in ("_iterator", "_stream"):
            raise AttributeError(name)
        return getattr(self._iterator, name)


class _NotingWithState(_Noting):
    """Of an iterator that has a state: some look for these on the class."""

    def state_dict(self) -> Any:
        return self.__getattr__("state_dict")()

    def load_state_dict(self, state: Any) -> Any:
        return self.__getattr__("load_state_dict")(state)


class Indices:
    """Asks one loader's sampler along."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._of_batches, self._of_samples = Noted(), Noted()
        self.why_not = _why_not(loader)

    @contextmanager
    def noted(self) -> Generator[None]:
        """While an epoch is read."""
        self._of_batches, self._of_samples = Noted(), Noted()
        with ExitStack() as stack:
            if not self.why_not:
                batch_sampler = self._loader.batch_sampler
                if batch_sampler is None:
                    stack.enter_context(_noting(self._loader.sampler, self._of_samples))
                else:
                    stack.enter_context(_noting(batch_sampler, self._of_batches))
                    if type(batch_sampler) is BatchSampler:
                        stack.enter_context(_noting(batch_sampler.sampler, self._of_samples))
            yield

    def put_into(self, record: Record) -> None:
        """What was noted, if it fits what came."""
        found = None if self.why_not else self._batches()
        record.why_no_indices = self.why_not or "the sampler was asked more than once, or not at all"
        if found is None:
            return
        is_right = len(found) == len(record.events) or (record.is_cut and len(found) > len(record.events))
        if not is_right or not _fits(found, record):
            record.why_no_indices = "the batches are not those of the sampler"
            return
        record.indices, record.why_no_indices = found[: len(record.events)], ""
        if self._loader.batch_sampler is None and any(isinstance(one, list) for [one] in found):
            record.layout = None  # a sampler of whole batches
            record.indices = [one if isinstance(one, list) else [one] for [one] in record.indices]

    def _batches(self) -> list[list[Any]] | None:
        batch_sampler = self._loader.batch_sampler
        if batch_sampler is None:
            found = _items(self._loader.sampler, self._of_samples)
            return None if found is None else [[index] for index in found]
        found = _items(batch_sampler, self._of_batches)
        if found is not None:
            return found if all(isinstance(batch, list) for batch in found) else None
        if type(batch_sampler) is not BatchSampler:
            return None
        samples, size = _items(batch_sampler.sampler, self._of_samples), batch_sampler.batch_size
        if samples is None:
            return None
        batches = [samples[at : at + size] for at in range(0, len(samples), size)]
        return batches[:-1] if batch_sampler.drop_last and batches and len(batches[-1]) < size else batches


def _items(sampler: Any, noted: Noted) -> list[Any] | None:
    if type(sampler) in STATIC:
        return [_plain(item) for item in sampler]
    return noted.only()


def _fits(found: list[list[Any]], record: Record) -> bool:
    """Whether no batch has another number of samples than it has indices, as far as its rows tell."""
    if record.layout != "rows":
        return True
    pairs = zip(found, record.events, strict=False)
    return all(rows_of(event) in (None, len(batch)) for batch, event in pairs if isinstance(event, Fingerprint))


def _why_not(loader: Any) -> str:
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__} has no sampler that is known here"
    known = cast(Any, loader)
    if isinstance(known.dataset, IterableDataset):
        return "an iterable dataset has no indices"
    own = ("__iter__", "_get_iterator")
    if any(name in vars(kind) and not _is_trusted(kind) for kind in type(known).__mro__ for name in own):
        return f"a {type(known).__name__} has an order of its own"
    if not getattr(known, "in_order", True):
        return "batches come in the order in which they are ready"
    if getattr(known, "on_error", "raise") != "raise":
        return "samples that fail are left out or replaced"
    return ""


def _is_trusted(kind: type) -> bool:
    return kind.__module__.startswith(TRUSTED) or kind.__module__ in ("typing", "builtins")


@contextmanager
def _noting(sampler: Any, noted: Noted) -> Generator[None]:
    kind = cast(Any, type(sampler))
    own = cast("dict[str, Any]", vars(kind)).get("__iter__")
    usual: Any = getattr(kind, "__iter__", None)
    if usual is None or kind in STATIC:
        yield
        return

    def __iter__(asked: Any) -> Any:  # noqa: N807  # it stands for the class's own
        iterator = usual(asked)
        if asked is not sampler:
            return iterator
        noted.streams.append([])
        return (_NotingWithState if hasattr(iterator, "state_dict") else _Noting)(iterator, noted.streams[-1])

    try:
        kind.__iter__ = __iter__
    except TypeError:  # a class that is not made in Python
        yield
        return
    try:
        yield
    finally:
        if own is None:
            del kind.__iter__
        else:
            kind.__iter__ = own
