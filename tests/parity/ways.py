"""Ways: the loaders that one test body runs on.

DataLoader inline or with processes, StageLoader inline or with threads.

A body gets ``make_loader(dataset, **arguments)``; class and ``num_workers`` are filled in.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from torch.utils.data import DataLoader

from torchstage import StageLoader


@dataclass(frozen=True, slots=True)
class Way:
    """A loader class and a number of workers."""

    loader_class: type[DataLoader]
    num_workers: int

    def __call__(self, dataset: Any, **arguments: Any) -> Any:
        return self.loader_class(dataset, num_workers=self.num_workers, **arguments)

    def __str__(self) -> str:
        return f"{self.loader_class.__name__}-{self.num_workers}"

    @property
    def has_threads(self) -> bool:
        return self.loader_class is StageLoader and self.num_workers > 0


INLINE = Way(DataLoader, 0)  # the reference: torch's own loop, nothing beside it
PROCESSES = Way(DataLoader, 2)  # 0.05 s and more for each iterator: where a test needs them
STAGED_INLINE = Way(StageLoader, 0)
ONE_THREAD, TWO_THREADS, FOUR_THREADS = (Way(StageLoader, number) for number in (1, 2, 4))

STAGED = (STAGED_INLINE, ONE_THREAD, FOUR_THREADS)
THREADED = (ONE_THREAD, FOUR_THREADS)


def on(*ways: Way, broken: Sequence[Way] = (), reason: str = "") -> pytest.MarkDecorator:
    """Run the test body once for each way. ``broken``: those that fail because of a known bug, the ``reason``."""
    bug = pytest.mark.xfail(strict=True, reason=reason)
    return pytest.mark.parametrize(
        "make_loader", [pytest.param(w, marks=[bug] * (w in broken), id=str(w)) for w in ways]
    )


on_both_inline = on(INLINE, STAGED_INLINE)
on_both = on(INLINE, *STAGED)
on_all = on(INLINE, PROCESSES, *STAGED)
on_staged = on(*STAGED)
on_threads = on(*THREADED)
on_workers = on(PROCESSES, TWO_THREADS)

on_both_classes = pytest.mark.parametrize("loader_class", [DataLoader, StageLoader])


def lists(batches: Any) -> list[Any]:
    """Batches that are tensors, as plain lists: what a test writes down."""
    return [batch.tolist() for batch in batches]


def flat(batches: Any) -> list[Any]:
    """The samples of batches that are tensors, one after another."""
    return [sample for batch in batches for sample in batch.tolist()]
