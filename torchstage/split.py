"""Split: a dataset in, the stages that make one sample of it out; or how it gives a batch's samples all at once.

Guarantees: the stages one after another give what ``dataset[index]`` gives, with the same draws, and raise what it
raises; a dataset whose class, or a class between, has its own ``__getitem__`` is left as it is. What the user changes
on the dataset later (``dataset.transform = ...``) counts from the next sample on.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from operator import getitem
from typing import Any, NamedTuple, cast

from torch.utils.data import ConcatDataset, Subset, TensorDataset

from torchstage.folders import folder_stages
from torchstage.looking import type_of
from torchstage.stage import Stage, is_coroutine_function
from torchstage.tensor_batches import TensorBatches, has_small_samples

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Split:
    """How a dataset makes its samples.

    Args:
        stages: the first takes a dataset index, each next one the result before it; the last result is
            ``dataset[index]``.
        fetch_many: takes a batch's indices and gives as many values in their order, or a coroutine of them; then the
            first of ``stages`` takes each of those values. Without ``stages`` the values are the samples.
        collated: ``fetch_many`` gives what ``default_collate`` makes of the samples. It is asked only where the loader
            collates by default; ``stages`` take a dataset index, for everywhere else.

    Raises:
        TypeError: for stages that are none.
        ValueError: where nothing says how to make a sample.
    """

    stages: tuple[Stage, ...]
    fetch_many: Callable[[Sequence[Any]], Any] | None = None
    collated: bool = False

    def __post_init__(self) -> None:
        stages = cast(Any, self.stages)
        if not isinstance(stages, tuple) or not all(
            isinstance(stage, Stage) for stage in cast("tuple[Any, ...]", stages)
        ):
            raise TypeError(f"Split: stages must be a tuple of Stage, got {stages!r}.")
        if self.fetch_many is None and (self.collated or not stages):
            raise ValueError(
                "Split: without fetch_many there must be at least one stage, and collated must be False. "
                "Split((Stage(dataset.__getitem__, 'fetch'),)) takes any dataset as it is."
            )
        if self.collated and not stages:
            raise ValueError(
                "Split: with collated=True there must be stages too, for loaders that do not collate by default. "
                "Add Stage(dataset.__getitem__, 'fetch')."
            )


@singledispatch
def split(dataset: Any) -> Split:
    """The stages of this dataset. Register your own: ``@split.register`` on a function of your class of datasets.

    Args:
        dataset: a map-style one. torchvision's folders, ``Subset``, ``ConcatDataset`` and ``TensorDataset`` are known;
            any other is one stage, ``dataset[index]``. It is not asked for a sample.
    """
    if _has_own(dataset, "__getitem__", "__getitems__"):
        return as_it_is(dataset)
    stages = () if takes_batches(dataset) else folder_stages(dataset)
    return Split(stages) if stages else as_it_is(dataset)


def as_it_is(dataset: Any) -> Split:
    """One stage, ``dataset[index]``; or ``dataset.__getitems__(indices)``, where torch calls that."""
    if takes_batches(dataset):
        return Split((), dataset.__getitems__)
    return Split((Stage(partial(getitem, dataset), "fetch"),))


def takes_batches(dataset: Any) -> bool:
    """Whether torch would call its ``__getitems__``."""
    return bool(getattr(dataset, "__getitems__", None))


def keeps(dataset: Any, methods: dict[str, Any]) -> bool:
    """Whether these are still its methods: neither a subclass, nor this one object, nor a patch has put in others."""
    kind = type_of(dataset)
    return not _has_own(dataset, *methods) and all(
        getattr(kind, name, None) is method for name, method in methods.items()
    )


def _has_own(dataset: Any, *names: str) -> bool:
    return any(name in getattr(dataset, "__dict__", ()) for name in names)


def _methods_of(kind: Any) -> dict[str, Any]:
    return {name: getattr(kind, name, None) for name in ("__getitem__", "__getitems__")}


SUBSET = _methods_of(Subset)  # as torch made them, to notice what was put in their place
CONCAT = _methods_of(ConcatDataset)
TENSORS = _methods_of(TensorDataset)
PLAIN_FETCH = ("fetch", False, "thread", None)  # of a stage: see _place


@split.register
def _(dataset: TensorDataset) -> Split:
    one_by_one = as_it_is(dataset)
    if not keeps(dataset, TENSORS) or not has_small_samples(dataset):
        return one_by_one
    return Split(one_by_one.stages, TensorBatches(dataset), collated=True)


@split.register(Subset)
def _(dataset: Any) -> Split:
    if not keeps(dataset, SUBSET):
        return as_it_is(dataset)
    inner = split(dataset.dataset)
    stages, fetch_many = inner.stages, inner.fetch_many
    if fetch_many is not None:
        fetch_many = _after(partial(_indices_in, dataset), fetch_many)
    if fetch_many is None or inner.collated:
        first = stages[0]
        fn = _after(partial(_index_in, dataset), first.fn)
        stages = (replace(first, fn=fn, name=first.label), *stages[1:])
    return Split(stages, fetch_many, inner.collated)


def _index_in(subset: Any, index: Any) -> Any:
    return _indices_in(subset, cast("list[Any]", index)) if isinstance(index, list) else subset.indices[index]


def _indices_in(subset: Any, indices: Sequence[Any]) -> list[Any]:
    inner = subset.indices
    return [inner[index] for index in indices]


@split.register(ConcatDataset)
def _(dataset: Any) -> Split:
    if not keeps(dataset, CONCAT):
        return as_it_is(dataset)
    parts = [_sample_by_sample(part) for part in dataset.datasets]
    model = max(parts, key=len)
    rows = [_aligned(part, model) for part in parts]
    if not all(rows) or [_place(stage) for stage in model] == [PLAIN_FETCH]:
        return as_it_is(dataset)
    stages: list[Stage] = []
    for number, stage in enumerate(model):
        functions = [row[number] for row in rows]
        locate = partial(_locate, dataset) if number == 0 else None
        step = (_AsyncStep if stage.is_async else _Step)(functions, locate, is_last=number == len(model) - 1)
        stages.append(replace(stage, fn=step, name=stage.label))
    return Split(tuple(stages))


def _sample_by_sample(dataset: Any) -> tuple[Stage, ...]:
    """Its stages, the first of which takes an index: torch's ConcatDataset asks its parts for single samples."""
    parts = split(dataset)
    if parts.fetch_many is None or parts.collated:
        return parts.stages
    return (Stage(partial(getitem, dataset), "fetch"),)


def _aligned(stages: tuple[Stage, ...], model: tuple[Stage, ...]) -> list[Function | None]:
    """For each stage of the model the function of the stage that does the same here, None where there is none. Empty if
    some stage has no counterpart."""
    left = list(stages)
    functions: list[Function | None] = []
    for stage in model:
        functions.append(left.pop(0).fn if left and _place(left[0]) == _place(stage) else None)
    return [] if left else functions


def _place(stage: Stage) -> tuple[Any, ...]:
    """Stages that have the same may be one."""
    return stage.label, stage.is_async, stage.executor, stage.concurrency


class Located(NamedTuple):
    """A value on its way through the stages of a ConcatDataset, and the number of the part that it comes from."""

    part: int
    value: Any


def _locate(concat: Any, index: Any) -> Located:
    """Which part has this sample, and at which index of its own."""
    start = index
    if index < 0:
        if -index > len(concat):
            getitem(concat, index)  # raises torch's own error
        start = len(concat) + index
    ends = concat.cumulative_sizes
    part = bisect_right(ends, start)
    if part >= len(ends):
        getitem(concat, index)  # likewise
    return Located(part, start if part == 0 else start - ends[part - 1])


class _Step:
    """One stage of a ConcatDataset: an index or what the stage before made in, what the sample's own part makes of it
    out."""

    def __init__(
        self, functions: list[Function | None], locate: Callable[[Any], Located] | None, *, is_last: bool
    ) -> None:
        self._functions = functions
        self._locate = locate
        self._is_last = is_last

    def _begin(self, value: Any) -> tuple[Located, Function | None]:
        here = value if self._locate is None else self._locate(value)
        return here, self._functions[here.part]

    def _end(self, here: Located, value: Any) -> Any:
        return value if self._is_last else Located(here.part, value)

    def __call__(self, value: Any) -> Any:
        here, function = self._begin(value)
        return self._end(here, here.value if function is None else function(here.value))


class _AsyncStep(_Step):
    async def __call__(self, value: Any) -> Any:
        here, function = self._begin(value)
        return self._end(here, here.value if function is None else await function(here.value))


class _After:
    """``function`` of what ``first`` makes of the argument."""

    def __init__(self, first: Function, function: Function) -> None:
        self._first = first
        self._function = function

    def __call__(self, value: Any) -> Any:
        return self._function(self._first(value))


class _AsyncAfter(_After):
    async def __call__(self, value: Any) -> Any:
        return await self._function(self._first(value))


def _after(first: Function, function: Function) -> Function:
    return (_AsyncAfter if is_coroutine_function(function) else _After)(first, function)
