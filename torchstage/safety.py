"""Safety: a dataset in, whether many threads make of it what one makes out.

Guarantees: the samples are compared one by one; nothing is hidden by a copy, since all threads share the dataset as it
is; the switch interval of the process is what it was before when the check returns or fails.
"""

import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from torchstage.changes import ClassSnapshot, Snapshot
from torchstage.loader import StageLoader
from torchstage.looking import packages
from torchstage.search import Search

SWITCH_SECONDS = 1e-6  # a thousandth of Python's usual interval: what can be interrupted between two steps, will be
NUM_ROUNDS = 3  # passes with many threads: a race does not show every time
MAX_DIFFERENCES = 10
CRASHING = {"av", "decord", "torchcodec", "lmdb", "PIL"}  # packages whose objects were seen to


@dataclass(frozen=True, slots=True)
class Difference:
    """A sample that came out otherwise with many threads."""

    index: Any
    """Its dataset index."""
    expected: Any
    """What came with one thread."""
    got: Any
    """What came with many, or the exception that was raised."""
    where: str
    """What differs in it, as ``[0]['boxes']``; empty if all of it."""

    def __str__(self) -> str:
        if isinstance(self.got, BaseException):
            return f"sample {self.index!r} raised {type(self.got).__name__}: {self.got}"
        values = f"{_short(self.expected)} with one thread, {_short(self.got)} with many"
        return f"sample {self.index!r}{self.where} differs: {values}"


@dataclass(frozen=True, slots=True)
class Report:
    """What ``check_thread_safety`` found. ``print`` shows it. There may be suspects without a difference, and the other
    way round."""

    num_samples: int
    """That were compared."""
    num_threads: int
    """That made them at once."""
    differences: tuple[Difference, ...]
    """In the order of the samples; none if many threads made what one makes."""
    suspects: tuple[str, ...]
    """Attribute paths of what threads had better not share, found by looking: open handles, random generators, and what
    samples change."""
    untried: tuple[str, ...] = ()
    """Objects that can crash the process when threads share them: nothing was tried then."""

    @property
    def is_safe(self) -> bool:
        """Whether every sample was the same with many threads as with one."""
        return not self.differences and not self.untried

    def __str__(self) -> str:
        head = f"{self.num_samples} samples with {self.num_threads} threads and with one: "
        head += "all the same." if self.is_safe else f"{len(self.differences)} or more differ."
        if self.untried:
            head = f"Not tried: threads that share {', '.join(self.untried)} can crash the process."
        lines = [head, *(f"  {difference}" for difference in self.differences[:MAX_DIFFERENCES])]
        if self.suspects:
            lines.append("Threads had better not share: " + ", ".join(self.suspects) + ".")
            lines.append("isolation='auto' gives each thread its own, or lets one thread at a time use it.")
        elif not self.is_safe:
            lines.append("Looking found nothing suspicious; isolation='serial' lets one thread at a time use it.")
        return "\n".join(lines)


def check_thread_safety(
    dataset: Dataset[Any],
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_threads: int = 8,
    num_samples: int = 200,
    indices: Sequence[Any] | None = None,
) -> Report:
    """Make samples with one thread and with many that share the dataset, and compare.

    Every sample draws from its own random generators, so that random transforms are no differences. Samples of the
    ``collate_fn`` are compared if one is given: of batches of one.

    Args:
        dataset: a map-style dataset. It is used as it is, so a handle that it opens for the first sample stays open.
        collate_fn: as the loader's; None: samples are compared as the dataset gives them.
        num_threads: how many threads make samples at once.
        num_samples: how many of the dataset's samples, spread over it; ignored when ``indices`` are given.
        indices: which samples. None: ``num_samples`` of them.

    Returns:
        What differs, and what is suspected. ``report.is_safe`` says whether there is no difference.

    Raises:
        Exception: whatever the dataset raises with one thread; then there is nothing to compare with.
    """
    if indices is None:
        size = len(cast(Any, dataset))
        indices = list(range(0, size, max(1, size // num_samples)))[:num_samples]
    single = _sample_of if collate_fn is None else _Collated(collate_fn)
    before = Search(is_first=True).run(dataset=dataset, collate_fn=collate_fn)
    snapshots = [Snapshot(before), Snapshot(before, is_own=False), ClassSnapshot(before)]
    expected = [sample for _, sample in _samples(dataset, indices, single, 0)]
    after = Search(is_first=True).run(dataset=dataset, collate_fn=collate_fn)
    found = {one.path: one for one in (*before.handles, *before.generators, *after.handles, *after.generators)}
    changed = (path for snapshot in snapshots for path in snapshot.changed_paths())
    suspects = tuple(dict.fromkeys([*found, *changed]))
    untried = tuple(one.path for one in found.values() if not packages(type(one.value)).isdisjoint(CRASHING))
    if untried:
        return Report(len(indices), num_threads, (), suspects, untried)
    differences: dict[int, Difference] = {}
    with _switching_often():
        for _ in range(NUM_ROUNDS):
            for at, got in _samples(dataset, indices, single, num_threads):
                difference = _difference(indices[at], expected[at], got)
                if difference is not None:
                    differences.setdefault(at, difference)
            if differences:
                break
    return Report(len(indices), num_threads, tuple(differences[at] for at in sorted(differences)), suspects)


class _Collated:
    """A batch of one, collated by the user's function."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, sample: Any) -> Any:
        return self._collate_fn([sample])


def _sample_of(sample: Any) -> Any:
    return sample


def _samples(
    dataset: Any, indices: Sequence[Any], single: Callable[[Any], Any], num_threads: int
) -> Iterator[tuple[int, Any]]:
    """Each sample with its place, or what it raised. With no thread but the caller's an error is raised."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")  # more threads than cores: on purpose
        loader: Any = StageLoader(
            dataset,
            None,
            sampler=indices,
            num_workers=num_threads,
            collate_fn=single,
            generator=torch.Generator(),  # the process's is left alone
            worker_method="thread",
            isolation="shared",
            seed=0,
        )
        with loader:
            iterator = iter(loader)
            for at in range(len(indices)):
                try:
                    yield at, next(iterator)
                except Exception as error:
                    if num_threads == 0:
                        raise
                    yield at, error


@contextmanager
def _switching_often() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _difference(index: Any, expected: Any, got: Any) -> Difference | None:
    if isinstance(got, BaseException):
        return Difference(index, expected, got, "")
    where = _unequal(expected, got)
    return None if where is None else Difference(index, expected, got, where)


def _unequal(one: Any, other: Any) -> str | None:
    """Where two samples differ; None if they are equal, as far as can be told."""
    if one is other:
        return None
    if type(one) is not type(other):
        return ""
    if isinstance(one, Mapping):
        first, second = cast(Mapping[Any, Any], one), cast(Mapping[Any, Any], other)
        if first.keys() != second.keys():
            return ""
        return next((f"[{k!r}]{w}" for k in first if (w := _unequal(first[k], second[k])) is not None), None)
    if isinstance(one, tuple | list):
        pair = cast(Sequence[Any], one), cast(Sequence[Any], other)
        if len(pair[0]) != len(pair[1]):
            return ""
        parts = enumerate(zip(*pair, strict=True))
        return next((f"[{at}]{w}" for at, (a, b) in parts if (w := _unequal(a, b)) is not None), None)
    return None if _is_equal(one, other) else ""


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        same: bool = one.dtype == other.dtype and one.shape == other.shape
        return same and bool(((one == other) | _both_nan(one, other)).all())
    if isinstance(one, np.ndarray):
        array: Any = cast(Any, one)
        if array.dtype != other.dtype or array.shape != other.shape:
            return False
        return bool((array == other).all()) if array.dtype == object else array.tobytes() == other.tobytes()
    if hasattr(one, "tobytes"):  # a picture
        return one.tobytes() == other.tobytes()
    if type(one).__eq__ is object.__eq__:  # equal only to itself: compare what it holds, where that can be seen
        return _unequal(getattr(one, "__dict__", None), getattr(other, "__dict__", None)) is None
    return bool(one == other) or (one != one and other != other)


def _both_nan(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one.isnan() & other.isnan() if one.is_floating_point() else torch.zeros_like(one, dtype=torch.bool)


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."
