"""StagedDataset: a user's methods fetch, decode and transform in, an ordinary map-style Dataset out, and its stages.

Guarantees: ``dataset[index]`` calls the same functions in the same order as a loader that runs them as stages, in any
DataLoader, worker process, debugger or notebook; no attribute is put on the dataset, so it pickles and copies as the
user's own class does.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from torch.utils.data import Dataset

from torchstage import loops
from torchstage.looking import is_a, type_of
from torchstage.split import Split, as_it_is, keeps, split
from torchstage.stage import Stage, is_coroutine_function

Function = Callable[[Any], Any]

AFTER_FETCH = ("decode", "transform")


class StagedDataset(Dataset[Any]):
    """A map-style dataset written as stages. Define as methods, and ``__len__`` with them:

    - ``fetch(index)``: the raw value of one sample, its bytes for example; and/or
      ``fetch_many(indices)``: a list of as many raw values, in the same order, in one go;
    - ``decode(value)`` and ``transform(value)``: what is made of it; each may be left out.

    Each may be ``async def``. One that is set in ``__init__`` (``self.transform = transform``) does as well; None means
    that there is none. With both ways to fetch, ``dataset[index]`` uses ``fetch`` and a batch uses ``fetch_many``.

        class Photos(StagedDataset):
            def __init__(self, urls, transform):
                self.urls, self.transform = urls, transform
            def __len__(self):
                return len(self.urls)
            async def fetch(self, index):
                return await get(self.urls[index])
            def decode(self, data):
                return Image.open(io.BytesIO(data)).convert("RGB")
    """

    def __getitem__(self, index: Any) -> Any:
        fetch = _method(self, "fetch")
        value = _run(self, fetch, index) if fetch is not None else _fetch_many(self, [index])[0]
        return _finished(self, value)

    @property
    def __getitems__(self) -> Callable[[Sequence[Any]], list[Any]]:
        """A batch's samples. Only where there is a ``fetch_many``: torch's DataLoader looks whether it is there."""
        if _method(self, "fetch_many") is None:
            raise AttributeError(f"{type(self).__name__} has no fetch_many, which __getitems__ is made of")
        return partial(_getitems, self)


GETITEM: dict[str, Any] = {name: vars(StagedDataset)[name] for name in ("__getitem__", "__getitems__")}


@split.register
def _(dataset: StagedDataset) -> Split:
    if not keeps(dataset, GETITEM):
        return as_it_is(dataset)
    after = tuple(Stage(_bound(dataset, name), name) for name in AFTER_FETCH if _may_have(dataset, name))
    fetch_many = _method(dataset, "fetch_many")
    if fetch_many is not None:
        way = _fetch_many_async if is_coroutine_function(fetch_many) else _fetch_many
        return Split(after, partial(way, dataset))
    if _method(dataset, "fetch") is None:
        raise _nothing_to_fetch(dataset)
    return Split((Stage(_bound(dataset, "fetch"), "fetch"), *after))


def _getitems(dataset: StagedDataset, indices: Sequence[Any]) -> list[Any]:
    return [_finished(dataset, value) for value in _fetch_many(dataset, indices)]


def _finished(dataset: StagedDataset, value: Any) -> Any:
    """The sample that is made of a fetched value."""
    for name in AFTER_FETCH:
        function = _method(dataset, name)
        if function is not None:
            value = _run(dataset, function, value)
    return value


def _run(dataset: StagedDataset, function: Function, value: Any) -> Any:
    return loops.run(dataset, function(value)) if is_coroutine_function(function) else function(value)


def _fetch_many(dataset: StagedDataset, indices: Sequence[Any]) -> list[Any]:
    fetch_many = _method(dataset, "fetch_many")
    if fetch_many is None:
        raise _nothing_to_fetch(dataset)
    return _checked(dataset, indices, _run(dataset, fetch_many, indices))


async def _fetch_many_async(dataset: StagedDataset, indices: Sequence[Any]) -> list[Any]:
    fetch_many = cast(Any, _method(dataset, "fetch_many"))
    return _checked(dataset, indices, await fetch_many(indices))


def _checked(dataset: StagedDataset, indices: Sequence[Any], values: Any) -> list[Any]:
    """As a list; TypeError or ValueError if it cannot be one value for each index."""
    place = f"{type(dataset).__name__}.fetch_many"
    kind = type_of(values)
    if is_a(values, dict, Mapping, set, frozenset, str, bytes) or not hasattr(kind, "__iter__"):
        raise TypeError(f"{place} must return a list, one value for each index in their order, got {kind.__name__}.")
    values = list(values)
    if len(values) != len(indices):
        raise ValueError(
            f"{place} was given {len(indices)} indices and returned {len(values)} values. Return one value for each "
            "index, in their order."
        )
    return values


def _nothing_to_fetch(dataset: StagedDataset) -> TypeError:
    name = type(dataset).__name__
    return TypeError(f"{name} has neither fetch(self, index) nor fetch_many(self, indices). Define one of them.")


def _may_have(dataset: StagedDataset, name: str) -> bool:
    """Whether the class defines it, or this object has it or None in its place: then it may be set later."""
    return name in vars(dataset) or getattr(type(dataset), name, None) is not None


def _method(dataset: StagedDataset, name: str) -> Function | None:
    """The method or the attribute of this name, None if there is none. A ``__getattr__`` is not asked for it."""
    function = getattr(dataset, name) if _may_have(dataset, name) else None
    if function is not None and not callable(function):
        raise TypeError(f"{type(dataset).__name__}.{name} must be a function of one value, or None, got {function!r}.")
    return function


def _bound(dataset: StagedDataset, name: str) -> Function:
    """The method; what is no method is looked up at each call, since it may be set to another."""
    function = _method(dataset, name)
    if function is not None and (getattr(function, "__self__", None) is dataset or is_coroutine_function(function)):
        return function
    return partial(_call, dataset, name)


def _call(dataset: StagedDataset, name: str, value: Any) -> Any:
    function = _method(dataset, name)
    return value if function is None else function(value)
