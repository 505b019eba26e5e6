"""Watched: a loader, or several by name, in; each by its name, and what it did since it was asked last, out.

Guarantees: a loader is not kept; a framework's copy of one has the same counters, see ``docs/statistics.md``.
"""

import weakref
from collections.abc import Mapping
from typing import Any, Protocol, cast

from torchstage.metrics import unique
from torchstage.stats import LoaderStats


class Watched(Protocol):
    """A StageLoader, or what stands for one."""

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """What it did."""
        ...


Loaders = Watched | Mapping[str, Any]


def named(loaders: Any, who: str) -> dict[str, Watched]:
    """The loaders by name; one that stands alone has the name "".

    Raises TypeError for anything that has no ``stats()``, such as torch's DataLoader.
    """
    if isinstance(loaders, Mapping):
        several = cast(Mapping[Any, Any], loaders)
        names = unique([str(name) for name in several])
        return {name: _checked(one, who, f"{name!r} is") for name, one in zip(names, several.values(), strict=True)}
    return {"": _checked(loaders, who, "got")}


def _checked(loader: Any, who: str, what: str) -> Watched:
    if isinstance(loader, type) or not callable(getattr(loader, "stats", None)):
        kind = f"the class {loader.__name__}" if isinstance(loader, type) else f"a {type(loader).__name__}"
        raise TypeError(f"{who} needs a StageLoader, or a mapping of names to StageLoaders; {what} {kind}.")
    return loader


class Windows:
    """The latest record of each loader, while it is there."""

    def __init__(self) -> None:
        self._latest: weakref.WeakKeyDictionary[Any, LoaderStats] = weakref.WeakKeyDictionary()

    def peek(self, loader: Watched) -> LoaderStats:
        """What it did since ``next_of`` was asked last, or since it was made."""
        return loader.stats(self._latest.get(loader))

    def next_of(self, loader: Watched) -> LoaderStats:
        """The same; the next window begins here."""
        record = self._latest[loader] = self.peek(loader)
        return record

    def __getstate__(self) -> dict[str, Any]:  # loaders stay in their process
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()
