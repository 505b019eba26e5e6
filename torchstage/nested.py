"""Nested: a batch and a function of what lies in it in, the batch with what the function gave in its places out.

Reached are the elements of mappings, of tuples, lists and other sequences, and the fields of dataclasses, however they
are nested. Whatever else comes is left as it is.

Guarantees: the containers that come out have the types, the attributes and the order of those that went in, which are
not changed themselves; a container whose elements all stay is not made anew; what occurs twice is asked for once, and
is the same object twice again.
"""

import array
import copy
import dataclasses
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast


class _Descend:
    """The function has nothing to give for this object: look at what it contains."""


DESCEND: Final = _Descend()

LEFT_ALONE = (int, float, complex, str, bytes, bytearray, memoryview, range, array.array, type)  # they hold no tensors
OWN_STORE = (dict, UserDict, list, UserList, deque)  # a shallow copy of one has its own elements


def replaced(batch: Any, give: Callable[[Any], Any], *, must: bool = True) -> Any:
    """The batch with ``give(object)`` in the place of each object in it, where that is not DESCEND.

    ``must``: raise TypeError for a container that cannot be made with other elements; else it stays as it was.
    """
    return _Replacing(give, must).of(batch)


class _Replacing:
    def __init__(self, give: Callable[[Any], Any], must: bool) -> None:
        self._give = give
        self._must = must
        self._known: dict[int, tuple[Any, Any]] = {}  # by id: what it was (kept alive, so that ids are not used again)

    def of(self, value: Any) -> Any:
        if value is None or isinstance(value, LEFT_ALONE):
            return cast(Any, value)
        known = self._known.get(id(value))
        if known is None:
            new = self._give(value)
            if new is DESCEND:
                new = self._rebuilt(value)
            self._known[id(value)] = known = (value, new)
        return known[1]

    def _rebuilt(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            mapping = cast("Mapping[Any, Any]", value)
            pairs = list(mapping.items())
            return self._first_right(mapping, [old for _, old in pairs], [key for key, _ in pairs])
        if isinstance(value, Sequence):
            return self._first_right(value, list(cast("Sequence[Any]", value)), None)
        return self._dataclass(value) if dataclasses.is_dataclass(value) else value

    def _first_right(self, value: Any, old: list[Any], keys: list[Any] | None) -> Any:
        """The container with other elements, made in the first way that keeps its type and really shows them."""
        new = [self.of(element) for element in old]
        if all(map(_is_same, old, new)):
            return value
        for way in self._ways(value, old, new, keys):
            with suppress(Exception):  # its class forbids it: the next way may do
                made = way()
                if type(made) is type(value) and _shows(made, new, keys):
                    self._follow(made)
                    return made
        if not self._must:
            return value
        kind = cast(Any, type(value))
        raise TypeError(
            f"a {kind.__module__}.{kind.__qualname__} cannot be made again with its tensors on another device. Give "
            "the class a method to(device, non_blocking=False), or let collate_fn return a dict, list or dataclass."
        )

    def _ways(self, value: Any, old: list[Any], new: list[Any], keys: list[Any] | None) -> Iterator[Callable[[], Any]]:
        """The ways to make a container like that one with other elements, the most faithful first."""
        kind = cast(Any, type(value))
        elements: Any = new if keys is None else dict(zip(keys, new, strict=True))
        if kind in (dict, list, tuple):
            yield partial(kind, elements)
        elif isinstance(value, OWN_STORE):
            yield lambda: _copy_with(value, old, new, keys)
            if isinstance(value, dict | list):
                yield lambda: _filled(kind, value, elements)
        elif isinstance(value, tuple):
            yield lambda: _with_attributes_of(value, cast(Any, tuple).__new__(kind, elements))
        elif kind is not MappingProxyType:
            yield lambda: self._attributes(value)
        yield partial(kind, elements)

    def _attributes(self, value: Any) -> Any:
        """A container of the user's own: its elements lie somewhere in its attributes."""
        made = copy.copy(value)
        for name, attribute in _attributes_of(value):
            object.__setattr__(made, name, self.of(attribute))
        return made

    def _follow(self, made: Any) -> None:
        """An attribute that is one of the elements is the new one too."""
        for name, attribute in list(_attributes_of(made)):
            known = self._known.get(id(attribute))
            if known is not None and known[0] is attribute and known[1] is not attribute:
                object.__setattr__(made, name, known[1])

    def _dataclass(self, value: Any) -> Any:
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        changed = {name: new for name in names if (new := self.of(old := getattr(value, name))) is not old}
        if not changed:
            return value
        made = copy.copy(value)
        for name, new in changed.items():
            object.__setattr__(made, name, new)  # also where it is frozen
        return made


def _is_same(one: Any, other: Any) -> bool:
    return one is other


def _copy_with(value: Any, old: list[Any], new: list[Any], keys: list[Any] | None) -> Any:
    """A shallow copy, in which the class itself puts the elements that are others: it may keep account of them."""
    made: Any = copy.copy(value)
    for key, before, after in zip(range(len(new)) if keys is None else keys, old, new, strict=True):
        if after is not before:
            made[key] = after
    return made


def _filled(kind: Any, value: Any, elements: Any) -> Any:
    """An empty one, filled past the class's own methods, which forbid it or change what is put in."""
    made: Any = kind.__new__(kind)
    fill: Any = cast(Any, dict).update if isinstance(value, dict) else cast(Any, list).extend
    fill(made, elements)
    return _with_attributes_of(value, made)


def _with_attributes_of(value: Any, made: Any) -> Any:
    for name, attribute in _attributes_of(value):
        object.__setattr__(made, name, attribute)
    return made


def _attributes_of(value: Any) -> Iterable[tuple[str, Any]]:
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    return attributes.items()


def _shows(made: Any, new: list[Any], keys: list[Any] | None) -> bool:
    """Whether these are its elements, in this order."""
    if keys is None:
        shown = list(made)
    else:
        if list(made) != keys:
            return False
        shown = list(made.values())
    return len(shown) == len(new) and all(map(_is_same, shown, new))
