"""Resumed: torch's own iterators of a map-style dataset in, the same that know where they are and begin anywhere, out.

Guarantees: torch's iterator is given a sampler of ours, and what it hands out is counted; all else in it is as it was.
"""

import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from torchstage.epoch import peeking
from torchstage.indices import Indices
from torchstage.transfer import explain_fork

if TYPE_CHECKING:
    from torchstage.loader import StageLoader


class Resumed:
    """Stands for the loader's sampler (or batch sampler): each ``iter`` is the loader's next epoch."""

    def __init__(self, loader: "StageLoader[Any]") -> None:
        self._loader = weakref.ref(loader)
        self._index_sampler: Any = cast(Any, loader)._index_sampler
        self._generator: torch.Generator | None = cast(Any, loader).generator
        self.epoch = loader.new_epoch()
        self._is_first = True
        self._base_seed: int | None = None

    def twin_of(self, loader: "StageLoader[Any]") -> Any:
        """The loader, but for its sampler, which is this."""
        return loader.like_this(**{"sampler" if cast(Any, loader).batch_sampler is None else "batch_sampler": self})

    def __len__(self) -> int:
        return len(self._index_sampler)

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        if not self._is_first:
            if loader is None:  # it is gone, and nobody can ask it where its iterator is
                return iter(self._index_sampler)
            self.epoch = loader.new_epoch()
        indices = Indices(self.epoch)
        self.epoch.peek = peeking(indices)
        if not self._is_first and self.epoch.base_seed is None:
            self._draw_base_seed()
        return indices

    def _draw_base_seed(self) -> None:
        """Workers and threads that are kept draw no other; but a state may say that the epoch begins with such a draw,
        where the order is drawn from the same generator."""
        epoch = self.epoch
        epoch.base_seed = self._base_seed
        if epoch.resume is not None and epoch.resume.is_boundary:
            with epoch.stream.drawing():
                epoch.base_seed = int(torch.empty((), dtype=torch.int64).random_(generator=self._generator))

    @contextmanager
    def first(self) -> Generator[None]:
        """Around the making of torch's iterator, which may ask for its first indices more than once."""
        with self.epoch.drawing_base_seed(self._generator):
            yield
        self._is_first = False

    def count(self, iterator: Any) -> None:
        """Count what the iterator hands out."""
        self._base_seed = self.epoch.base_seed = iterator._base_seed
        iterator._resumed = self
        self._is_ordered = getattr(iterator, "_in_order", True)
        known = weakref.ref(iterator)
        iterator._next_data = partial(self._counted, next_data_of(iterator), iterator._dataset, known)

    def _counted(self, next_data: Callable[[], Any], dataset: Any, iterator: Callable[[], Any]) -> Any:
        epoch = self.epoch
        epoch.is_started = True
        epoch.is_ordered = self._is_ordered
        number = _number_of(iterator())
        try:
            batch = next_data()
        except StopIteration:
            epoch.is_over = True
            raise
        except Exception as error:  # it comes in the place of the batch
            explain_fork(error, dataset)
            if number is None or _number_of(iterator()) != number:  # not a time-out, nor a worker that died
                epoch.position.hand_out_next()
            raise
        epoch.position.hand_out_next()
        return batch


def _number_of(iterator: Any) -> int | None:
    """Which batch torch's worker processes are asked for next; None where there are none."""
    return getattr(iterator, "_rcvd_idx", None)


def next_data_of(iterator: Any) -> Callable[[], Any]:
    """What hands out the iterator's batches, which may have been replaced; it does not keep the iterator."""
    replaced: Any = iterator.__dict__.get("_next_data")
    return replaced or partial(_next_data, type(iterator), weakref.ref(iterator))


def _next_data(kind: Any, iterator: Callable[[], Any]) -> Any:
    return kind._next_data(iterator())
