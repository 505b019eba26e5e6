"""Share: how long the order is, where it begins and who shares it in; which places of it are one rank's out.

Place s of the part that is left belongs to rank s modulo the number of ranks: so whatever their number, the batches
that all ranks have at the same step are together the next samples of the order.

Guarantees: with the tail "exact" the ranks' places are those from ``start`` to the end of the order, each once; with
"pad" and "drop" all ranks have as many.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from torchstage.samplers.permutation import Permutation, Words

BLOCK = 4096  # indices computed at a time: the cost of a call of numpy is spread over them, and they take 160 KB
Tail = Literal["exact", "pad", "drop"]
TAILS = ("exact", "pad", "drop")


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of the order of ``length`` samples from ``start`` on. 0 <= start <= length, 0 <= rank < ranks."""

    length: int
    start: int
    num_replicas: int
    rank: int
    tail: Tail

    @property
    def num_total(self) -> int:
        """Where the order ends for all ranks: more than ``length`` if padded, less if a tail is dropped."""
        left = self.length - self.start
        if self.tail == "exact":
            return self.length
        if self.tail == "drop":
            return self.start + left // self.num_replicas * self.num_replicas
        return self.start + -(-left // self.num_replicas) * self.num_replicas

    @property
    def num_samples(self) -> int:
        """How many places this rank has."""
        return len(range(self.start + self.rank, self.num_total, self.num_replicas))

    def places(self, first: int, count: int) -> Words:
        """This rank's places from its ``first`` on; those behind the end are the first of the order again."""
        begin = self.start + self.rank + first * self.num_replicas
        places = np.arange(count, dtype=np.uint64)
        places *= np.uint64(self.num_replicas)
        places += np.uint64(begin)
        if begin + count * self.num_replicas > self.length:
            places %= np.uint64(self.length)
        return places


class Pass:
    """One pass over a rank's share: blocks of indices out, and how far it has come."""

    def __init__(self, share: Share, epoch: int) -> None:
        self.share = share
        self.epoch = epoch
        self._num_made = 0
        self._block: Iterator[int] = iter(())
        self._is_over = False

    def blocks(self, seed: int | None) -> Iterator[Iterator[int]]:
        """The share's indices, some thousand at a time; a seed shuffles them."""
        share, num_samples = self.share, self.share.num_samples
        order = None if seed is None or not num_samples else Permutation(share.length, seed, self.epoch)
        while self._num_made < num_samples:
            count = min(BLOCK, num_samples - self._num_made)
            places: Words = share.places(self._num_made, count)
            self._num_made += count
            self._block = iter((places if order is None else order.at(places)).tolist())
            yield self._block
        self._is_over = True

    @property
    def position(self) -> int:
        """How many samples of the global order were drawn, if all ranks have drawn as many as this one."""
        num_drawn = self._num_made - operator.length_hint(self._block)
        return self.share.start + num_drawn * self.share.num_replicas

    @property
    def has_ended(self) -> bool:
        """Whether this rank has drawn its last index, and, where others have one more, knows that it was."""
        return self._is_over or self.position >= self.share.num_total
