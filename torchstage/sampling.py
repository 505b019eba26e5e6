"""Sampling: a loader's samplers in; what they are to somebody who wants their order again, out.

Guarantees: of torch's own samplers it is known which generators they draw from, and when; of others nothing is assumed.
"""

import inspect
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random, SystemRandom
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchstage.draws import OF_PROCESS, PROCESS, States, restore, text_of
from torchstage.samplers import ElasticSampler
from torchstage.seeds import AnyGenerator

UNSEEDED = (SequentialSampler, DistributedSampler, ElasticSampler)  # they draw from no generator that others see
DRAWN = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)  # from theirs, or from torch's global one
MAX_HELD = 100  # objects that are looked at for generators: more are no sampler's own


@dataclass(frozen=True, slots=True)
class Sampling:
    """What says which samples an epoch has, in which order.

    ``sampler`` yields what places are counted in: samples, or the batches of the caller's own batch sampler.
    ``batch_size`` is that of torch's BatchSampler around it, None: there is none.
    """

    sampler: Any
    batch_size: int | None
    drop_last: bool
    has_own_batches: bool
    generators: Mapping[str, AnyGenerator]  # that belong to the samplers or to the loader, by name
    kinds: tuple[str, ...]  # generators of the process that it may draw from
    with_epochs: tuple[Any, ...]  # the sampler and what it holds, as far as these number their epochs

    @staticmethod
    def of(loader: Any) -> "Sampling":
        batch_sampler = loader.batch_sampler
        batch_size, drop_last = None, False
        if type(batch_sampler) is BatchSampler:
            sampler, batch_size, drop_last = batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last
        else:
            sampler = loader.sampler if batch_sampler is None else batch_sampler
        held = _held("sampler", sampler)
        return Sampling(
            sampler,
            batch_size,
            drop_last,
            batch_sampler is not None and batch_size is None,
            _generators_of({"loader": loader.generator, **held}),
            _kinds(sampler, loader.generator),
            tuple(owner for owner in held.values() if _has_epoch(owner, owner is sampler)),
        )

    @property
    def is_known(self) -> bool:
        return type(self.sampler) in (*UNSEEDED, *DRAWN)

    @property
    def is_elastic(self) -> bool:
        return isinstance(self.sampler, ElasticSampler)

    @property
    def draws_as_it_goes(self) -> bool:
        """Whether it may draw more from generators of its own than at its beginning."""
        return type(self.sampler) is RandomSampler or not self.is_known  # once more at its end

    @property
    def draws_at_its_end(self) -> bool:
        """Whether it is known to draw from a generator of its own once more, after the last index."""
        return type(self.sampler) is RandomSampler and _is_generator(cast(Any, self.sampler).generator)

    @property
    def epoch(self) -> int | None:
        """The number that the sampler has for its epoch, as ``set_epoch`` sets it; None: it has none."""
        return next((int(owner.epoch) for owner in self.with_epochs), None)

    def set_epoch(self, epoch: int) -> bool:
        """Tell the samplers the number of the epoch. Whether they all keep it as it was told."""
        for owner in self.with_epochs:
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)
            if owner.epoch is not epoch and "epoch" in vars(owner):  # it kept the number, but not this object
                owner.epoch = epoch
        return all(owner.epoch is epoch for owner in self.with_epochs)

    def raw_epoch(self) -> Any:
        """The number as the sampler keeps it."""
        return next((owner.epoch for owner in self.with_epochs), None)

    @property
    def length(self) -> int | None:
        """How many samples (or batches of its own) the sampler says that it has, in an epoch that starts at 0."""
        if self.is_elastic:
            return len(self.sampler.dataset)
        try:
            return len(self.sampler)
        except Exception:  # it has none, or cannot tell
            return None

    def number(self, name: str) -> int | None:
        """An attribute of the samplers, the outer one's first, if it is a number; None: neither has it."""
        values = (getattr(owner, name, None) for owner in (self.sampler, getattr(self.sampler, "sampler", None)))
        return next((value for value in values if isinstance(value, int)), None)

    @property
    def num_replicas(self) -> int | None:
        """How many ranks share an epoch, as the samplers say."""
        return self.number("num_replicas")

    @property
    def ranks(self) -> list[int] | None:
        """[this rank, number of ranks], as the samplers say, else torch.distributed; None: there are none."""
        rank, num_replicas = self.number("rank"), self.number("num_replicas")
        if rank is not None and num_replicas is not None:
            return [rank, num_replicas]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return [torch.distributed.get_rank(), torch.distributed.get_world_size()]
        return None

    def name_of(self, place: Any) -> Any:
        """The index in a place as a plain value, the last one of a batch; None if it has none."""
        try:
            return plain(place[-1] if self.has_own_batches else place)
        except (TypeError, IndexError, KeyError):
            return None

    def own_states(self) -> States:
        return {name: text_of(generator) for name, generator in self.generators.items()}

    def restore(self, states: States) -> None:
        for name, generator in self.generators.items():
            if name in states:
                restore(generator, states[name])


def _held(name: str, sampler: Any) -> dict[str, Any]:
    """The sampler, what it holds as attributes, and what these hold, by the names of the attributes: other samplers,
    generators, lists of them. Nothing that looks like a dataset."""
    found: dict[str, Any] = {name: sampler}
    left = [(name, sampler)]
    while left and len(found) < MAX_HELD:
        path, owner = left.pop(0)
        for key, value in _parts(owner):
            if not _is_data(value) and not any(value is known for known in found.values()):
                found[f"{path}.{key}"] = value
                left.append((f"{path}.{key}", value))
    return found


def _parts(owner: Any) -> list[tuple[str, Any]]:
    if isinstance(owner, list | tuple | dict):
        values = cast(Sequence[Any] | dict[Any, Any], owner)
        if len(values) > MAX_HELD:
            return []
        known = values.items() if isinstance(values, dict) else enumerate(values)
        return [(str(key), value) for key, value in known]
    return list(cast(dict[str, Any], getattr(owner, "__dict__", None) or {}).items())


def _is_data(value: Any) -> bool:
    """Whether no sampler's generator is in there."""
    if isinstance(value, list | tuple | dict) or _is_generator(value):
        return False
    kind = cast(type[Any], type(value))
    return (
        not hasattr(value, "__dict__")
        or hasattr(kind, "__getitem__")
        or isinstance(value, type | ModuleType | torch.nn.Module)
        or inspect.isroutine(value)
    )


def _generators_of(owners: Mapping[str, Any]) -> dict[str, AnyGenerator]:
    """The generators among these, each once."""
    found: dict[str, AnyGenerator] = {}
    for name, owner in owners.items():
        if _is_generator(owner) and not any(owner is known for known in found.values()):
            found[name] = owner
    return found


def _has_epoch(owner: Any, is_sampler: bool) -> bool:
    """Whether a sampler numbers its epochs; of what it holds, what looks like one."""
    kind = cast(type[Any], type(owner))
    epoch: Any = getattr(owner, "epoch", None) if is_sampler or hasattr(kind, "__iter__") else None
    return isinstance(epoch, int) and not isinstance(epoch, bool)


def _is_generator(value: Any) -> bool:
    if not isinstance(value, torch.Generator | np.random.Generator | np.random.RandomState | Random):
        return False
    # The system's has no state.
    return not isinstance(value, SystemRandom) and not any(value is generator for generator in OF_PROCESS.values())


def _kinds(sampler: Any, generator: torch.Generator | None) -> tuple[str, ...]:
    if type(sampler) not in (*UNSEEDED, *DRAWN):
        return PROCESS
    is_own = type(sampler) in UNSEEDED or _is_generator(sampler.generator)
    return () if is_own and _is_generator(generator) else ("torch",)


def plain(index: Any) -> Any:
    """An index as a plain value that is the same in every run; None if it has none."""
    if isinstance(index, str):
        return index
    try:
        return operator.index(index)
    except Exception:
        return None
