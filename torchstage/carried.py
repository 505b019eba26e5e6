"""Carried: what a loader's counters are, handed on to the loaders that frameworks make of it.

A framework that rebuilds a loader knows its public attributes, or what it noted while the loader was made in a hook. So
the counters go with an attribute that is an argument, too (``stages``), and with what Lightning notes.

Guarantees: a loader of another dataset never shares counters; neither does a copy.
"""

from collections.abc import Iterable
from typing import Any, cast

from torchstage.engine.ledger import Ledger
from torchstage.stage import Stage

_WATCHED = "__pl_inside_init"  # Lightning sets it on a loader that is made in a hook,
_NOTED = "__pl_attrs_record"  # and calls each function that stands here, with the loader that it makes of that one


class Stages(tuple[Stage, ...]):
    """A loader's stages, which lead to its counters."""

    ledger: Ledger | None
    dataset: Any

    def __new__(cls, stages: Iterable[Stage], ledger: Ledger, dataset: Any) -> "Stages":
        self = super().__new__(cls, stages)
        self.ledger, self.dataset = ledger, dataset
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)


def ledger_of(stages: Any, dataset: Any) -> Ledger:
    """The counters of the loader that these stages come from, if it has this very dataset; else new ones."""
    if isinstance(stages, Stages) and stages.dataset is dataset and stages.ledger is not None:
        return stages.ledger
    return Ledger()


def note(loader: Any) -> None:
    """While Lightning watches how a loader is made: have it hand the counters on."""
    attributes = cast(dict[str, Any], vars(loader))
    if attributes.get(_WATCHED):
        attributes.setdefault(_NOTED, []).append(((loader.ledger,), _share))


def leave_out(state: dict[str, Any], names: Iterable[str]) -> None:
    """Of what Lightning noted, a copy gets nothing that a loader has for itself."""
    if _NOTED in state:
        own = [*names]
        state[_NOTED] = [note for note in state[_NOTED] if not (note[0] and note[0][0] in own)]


def _share(loader: Any, ledger: Ledger) -> None:
    loader.share(ledger)
