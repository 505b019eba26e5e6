"""Order: a sampler in; which epoch it is, and which time an index comes in it, out.

Guarantees: what is told depends on the sampler's indices and on how many epochs were begun before, never on timing; a
sampler that cannot repeat an index costs nothing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from torchstage.samplers import ElasticSampler
from torchstage.seeds import Seeds, is_stable


@dataclass(frozen=True, slots=True)
class Placed:
    """An index and what tells it apart from the same index elsewhere in the epoch."""

    index: Any
    salt: int


def index_and_salt(item: Any) -> tuple[Any, int]:
    """An item's dataset index, and what tells it apart from the same index elsewhere in the epoch."""
    return (item.index, item.salt) if type(item) is Placed else (item, 0)


class Numbered(list[Any]):
    """The indices of a batch, some of which do not say by themselves which sample they mean; and the batch's place."""

    salt: int = 0


class Places:
    """Counts how often each index came in an epoch, and the samples before those that are no plain values."""

    def __init__(self, dataset: Any) -> None:
        try:
            # A byte a sample: a dict takes a hundred. A page of it takes no memory before one of its indices comes.
            self._seen = np.zeros(len(dataset), np.uint8).data
        except Exception:  # it has no length that is of use
            self._seen = memoryview(b"")
        self._more: Counter[Any] = Counter()
        self._num_samples = 0

    def of(self, indices: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any] | None]:
        """The indices, and the items that stand for them; None where these are the indices themselves."""
        begin = self._num_samples
        self._num_samples += len(indices)
        salts = [self._salt(index, begin + at) for at, index in enumerate(indices)]
        if not any(salts):
            return indices, None
        numbered = Numbered(indices)
        numbered.salt = begin + 1
        return numbered, [Placed(index, salt) if salt else index for index, salt in zip(indices, salts, strict=True)]

    def _salt(self, index: Any, position: int) -> int:
        if type(index) is int and 0 <= index < len(self._seen):
            count = self._seen[index]
            if count < 255:
                self._seen[index] = count + 1
                return count
        if isinstance(index, list | tuple) or not is_stable(index):  # a list stands for samples of its own
            return position + 1
        count = self._more[index]
        self._more[index] = count + 1
        return count + (255 if type(index) is int and 0 <= index < len(self._seen) else 0)


def samplers_of(loader: Any) -> tuple[Any, ...]:
    """The loader's samplers, the innermost first."""
    batch_sampler = loader.batch_sampler
    return (getattr(batch_sampler, "sampler", None), loader.sampler, batch_sampler)


def can_repeat(samplers: tuple[Any, ...], dataset: Any) -> bool:
    """Whether an index may come twice in an epoch, or be something other than an integer, as far as is known."""
    inner, sampler, batch_sampler = samplers
    if batch_sampler is not None and type(batch_sampler) is not BatchSampler:
        return True
    sampler = sampler if inner is None else inner
    try:
        if type(sampler) is RandomSampler:
            return sampler.replacement or sampler.num_samples > len(dataset)
        if type(sampler) is DistributedSampler:
            return sampler.num_replicas > len(dataset)
        if isinstance(sampler, ElasticSampler):  # what it pads with is drawn as it was the first time
            return False
    except Exception:  # no length, or one that fails: ask each index
        return True
    return type(sampler) is not SequentialSampler


def seeds_of(
    seed: int | None,
    samplers: tuple[Any, ...],
    base_seed: int,
    num_resets: int,
    begun: Counter[int],
    epoch: int | None = None,
) -> Seeds:
    """The seeds of an epoch that begins now.

    Base: ``seed``, else the sampler's, else torch's base seed, which is drawn anew for each iterator. Epoch: the
    number given, else the sampler's own where it has one (``set_epoch``). Epochs that the loader begins with the same
    number are counted, so that a sampler nobody told the epoch does not repeat the same draws.
    """
    base = seed if seed is not None else _number(samplers, "seed")
    if base is None:
        return Seeds(base_seed, 0, num_resets)
    epoch = (_number(samplers, "epoch") or 0) if epoch is None else epoch
    repeat = begun[epoch]
    begun[epoch] += 1
    return Seeds(base, epoch, repeat)


def _number(samplers: tuple[Any, ...], name: str) -> int | None:
    for sampler in samplers:
        value = getattr(sampler, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
