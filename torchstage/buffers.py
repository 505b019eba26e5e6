"""Buffers: sizes in, uninitialised tensors out whose memory is used again once nobody can see it any more.

A fresh block of tens of megabytes costs a page fault for every four kilobytes; and what each thread's heap keeps back
for the next one is memory that nobody uses. So large batches are collated into a few memory maps that go round.

Guarantees: a map is used again only after the storage of its tensor was freed: no tensor, view or array refers to it. A
tensor keeps its map alive by itself, whatever becomes of the loader. Nothing waits for a map: if none is free, one is
made.
"""

import mmap
import weakref
from collections import deque
from math import prod
from typing import Any, cast

import torch

MIN_BYTES = 4 << 20  # smaller blocks come from the heap, which keeps them
MAX_FREE = 2  # of those that went round at most: more would only lie idle


# A shared map, which is the default, would show a forked child what the next batch writes over the one that it holds.
_PRIVATE: dict[str, int] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}


class Ring:
    """The free maps of one loader. ``empty`` may be called from any thread; maps come back from any thread."""

    def __init__(self) -> None:
        self._free: deque[mmap.mmap] = deque()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor of that shape and dtype on the CPU. Its storage cannot be resized."""
        num_bytes = prod(shape) * dtype.itemsize
        block = self._take(num_bytes)
        view = memoryview(block)
        # The storage holds the view and drops it, last of all, when it is freed. The ring is referred to weakly, so
        # that a batch that the user keeps does not keep the loader's other maps.
        weakref.finalize(view, _give_back, weakref.ref(self), block).atexit = False
        frombuffer: Any = cast(Any, torch).frombuffer
        return frombuffer(view, dtype=dtype, count=num_bytes // dtype.itemsize).view(shape)

    def _take(self, num_bytes: int) -> mmap.mmap:
        for _ in range(len(self._free)):
            try:
                block = self._free.popleft()
            except IndexError:  # another thread took the last one
                break
            if num_bytes <= len(block) <= 2 * num_bytes:
                return block
            self._free.append(block)  # of another size: an older epoch's last batch, or another field's
        return mmap.mmap(-1, num_bytes, **_PRIVATE)

    def give_back(self, block: mmap.mmap) -> None:
        """Nobody sees the map any more."""
        self._free.append(block)
        while len(self._free) > MAX_FREE:
            try:
                self._free.popleft()  # its memory goes with it
            except IndexError:
                return


def _give_back(ring: "weakref.ref[Ring]", block: mmap.mmap) -> None:
    alive = ring()
    if alive is not None:
        alive.give_back(block)
