"""Graph: what a search met, and how it hangs together: each object with those that hold it.

Guarantees: changes nothing and calls no user code.
"""

from dataclasses import dataclass, field
from typing import Any

Link = str  # how one object holds another: attribute, class, element, call, cell, default, global, held
COPYABLE_LINKS: frozenset[Link] = frozenset(("attribute", "element", "call", "cell", "default"))  # one holder's own


@dataclass(frozen=True, slots=True)
class Found:
    """A handle or generator: how to reach it (``dataset.reader.file``), its type and itself."""

    path: str
    kind: str
    value: Any


@dataclass(slots=True)
class Node:
    """An object that was looked into. ``holders`` are the ids of those that hold it, each with the kind of the link."""

    path: str
    value: Any
    holders: list[tuple[int, Link]] = field(default_factory=list[tuple[int, Link]])


@dataclass(slots=True)
class Graph:
    """What one search met, nearest first."""

    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    handles: list[Found] = field(default_factory=list[Found])
    generators: list[Found] = field(default_factory=list[Found])

    _others: set[int] | None = None

    def is_own(self, id_: int) -> bool:
        """Whether an object belongs to what was searched alone: not to a class, a module or a cache of functools, nor
        to anything that these hold."""
        if self._others is None:
            self._others = self._held_by_others()
        return id_ not in self._others

    def _held_by_others(self) -> set[int]:
        held: dict[int, list[int]] = {}
        waiting: list[int] = []
        for id_, node in self.nodes.items():
            for holder, link in node.holders:
                held.setdefault(holder, []).append(id_)
                if link not in COPYABLE_LINKS:
                    waiting.append(id_)
        found: set[int] = set()
        while waiting:
            id_ = waiting.pop()
            if id_ not in found:
                found.add(id_)
                waiting.extend(held.get(id_, ()))
        return found
