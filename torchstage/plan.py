"""Plan: a loader's dataset and functions in, what the engine does with each index of its sampler out.

Guarantees: for every kind of dataset the same calls as torch's fetcher makes; a list, array or tensor that the sampler
yields is copied, so that the sampler may go on changing it.
"""

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import getitem
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Subset

from torchstage import rng
from torchstage.buffers import Ring
from torchstage.collate import explained
from torchstage.copies import Private
from torchstage.engine.pipeline import Admission
from torchstage.engine.ticket import Batch, Chain
from torchstage.order import Placed, Places
from torchstage.seeds import Seeds
from torchstage.transfer import pinned

Function = Callable[..., Any]

NUM_LOOKED_AT = 2  # samples that are made by one thread alone
MAX_FAILED = 8  # of the first samples: then what the others showed must do
SAMPLES_AHEAD_PER_THREAD = 16  # a window of 16 samples a thread keeps a heavy tail (sigma 1) at 0.98 of the ideal


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a batch is made with: everything that stays the same from epoch to epoch."""

    dataset: Any
    collate_fn: Function
    is_batched: bool  # whether the sampler yields batches of indices, or one index at a time
    pin_memory: bool
    pin_device: str | None
    enter: Callable[[], None]  # prepares a thread
    private: Callable[[], Private | None]  # what the calling thread has for its own
    seeds: Seeds | None = None  # of the samples' own random generators
    ring: Ring | None = None  # memory for large batches


class Plan:
    """How batches are made, until another plan takes over at a batch border. ``wrap`` goes around user functions;
    ``looks``: a thread that has a copy of its own of the dataset and of ``collate_fn`` uses that; ``first`` watches the
    first samples."""

    def __init__(
        self,
        recipe: Recipe,
        wrap: Callable[[Function], Function],
        *,
        looks: bool = False,
        first: "FirstSamples | None" = None,
    ) -> None:
        dataset = recipe.dataset
        self._is_batched = recipe.is_batched
        self._takes_batches = recipe.is_batched and _takes_batches(dataset)
        take: Function = _take_batch if self._takes_batches else (_take_each if recipe.is_batched else getitem)
        one, whole = partial(getitem, dataset), partial(take, dataset)
        collate = explained(recipe.collate_fn, recipe.ring)
        whole_kind = "batch" if recipe.is_batched else "sample"  # a sample's draws are its own, batched or not
        if looks:
            one, whole = _taken(getitem, recipe, "sample"), _taken(take, recipe, whole_kind)
        elif recipe.seeds is not None:
            one, whole = _drawn(one, recipe.seeds, "sample"), _drawn(whole, recipe.seeds, whole_kind)
        if looks or recipe.seeds is not None:
            collate = _collated(collate, recipe)
        if first is not None:
            one, whole = first.watch(one, 1), first.watch(whole, NUM_LOOKED_AT if recipe.is_batched else 1)
        collate = wrap(collate)
        pin = (("pin_memory", pinned(recipe.pin_device)),) if recipe.pin_memory else ()
        self._by_sample = Chain(wrap(one), (("collate", collate), *pin), recipe.enter)
        self._as_whole = Chain(
            wrap(whole), (("collate", partial(_collate_whole, collate)), *pin), recipe.enter, takes_whole=True
        )

    def take(self, index: Any) -> Admission:
        """The tickets of one batch and the chain that makes it.

        A batch is shared out sample by sample, unless the dataset takes it whole (``__getitems__``), batching is off,
        or it is empty: then it is one ticket whose value is all there is.
        """
        index = _own(index)
        if not self._is_batched or self._takes_batches:
            return (index,), self._as_whole, None
        indices = list(index)
        return (indices, self._by_sample, None) if indices else ((indices,), self._as_whole, None)

    def chain_like(self, chain: Chain) -> Chain:
        """This plan's chain for what another plan made with that one."""
        return self._as_whole if chain.takes_whole else self._by_sample


def _takes_batches(dataset: Any) -> bool:
    """Whether ``__getitems__`` takes a whole batch at once. torch's own ``Subset`` has one for the sake of what it is
    a subset of: if that has none, it loops over single samples, and these can as well be shared out."""
    while type(dataset) is Subset:
        dataset = cast(Any, dataset).dataset
    return bool(getattr(dataset, "__getitems__", None))


def _own(index: Any) -> Any:
    """A copy of what the sampler may go on changing: by the time a thread looks at it, it would be another batch's."""
    if isinstance(index, torch.Tensor):
        return index.clone()
    return copy.copy(cast(Any, index)) if isinstance(index, list | dict | np.ndarray) else index


def _take_batch(dataset: Any, indices: Any) -> Any:
    return dataset.__getitems__(indices)


def _take_each(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    return [dataset[index] for index in indices]


def _taken(take: Function, recipe: Recipe, kind: str) -> Function:
    """``take`` from the calling thread's own dataset if it has one, with random generators for this sample alone."""
    dataset, private, seeds, scope = recipe.dataset, recipe.private, recipe.seeds, rng.current

    def taken(item: Any) -> Any:
        own = private()
        index, salt = (item.index, item.salt) if type(item) is Placed else (item, 0)
        if seeds is not None and (here := scope()) is not None:
            here.begin(seeds, kind, index, salt, () if own is None else own.held)
        return take(dataset if own is None else own.roots["dataset"], index)

    return taken


def _drawn(take: Function, seeds: Seeds, kind: str) -> Function:
    """``take`` with random generators for this sample alone, in the shortest way: it is paid for every sample."""
    scope = rng.current

    def drawn(item: Any) -> Any:
        here = scope()
        if type(item) is Placed:
            item, salt = item.index, item.salt
            if here is not None:
                here.begin(seeds, kind, item, salt)
        elif here is not None:
            here.begin(seeds, kind, item)
        return take(item)

    return drawn


def _collated(collate: Function, recipe: Recipe) -> Function:
    """``collate``, or the calling thread's own copy of the user's ``collate_fn`` if it has one; with random generators
    for this batch alone."""
    collate_fn, private, seeds, scope = recipe.collate_fn, recipe.private, recipe.seeds, rng.current

    def collated(samples: Any, indices: Any) -> Any:
        own = private()
        if seeds is not None and (here := scope()) is not None:
            here.begin(seeds, "collate", indices, getattr(indices, "salt", 0), () if own is None else own.held)
        function = collate_fn if own is None else own.roots["collate_fn"]
        return collate(samples, indices) if function is collate_fn else function(samples)

    return collated


def _collate_whole(collate: Function, values: list[Any], indices: Sequence[Any]) -> Any:
    """Collate what one ticket brought: a list of samples, or one sample where batching is off."""
    return collate(values[0], indices[0])


def window(prefetch_factor: int, num_threads: int, batch: Batch) -> int:
    """How many batches may be in flight: ``prefetch_factor``, or more where threads would run out of samples or of
    batches to collate, and the one that is handed out. Where a ticket is a whole batch, torch's own count:
    ``prefetch_factor`` for each thread."""
    if batch.chain.takes_whole:
        return prefetch_factor * num_threads + 1
    return max(prefetch_factor, num_threads, math.ceil(SAMPLES_AHEAD_PER_THREAD * num_threads / batch.size)) + 1


class Source:
    """The sampler's indices, one batch at a time, with the plan of the moment. Advanced in the consumer's thread."""

    def __init__(self, sampler_iter: Iterator[Any], plan: Plan, places: Places | None = None) -> None:
        self._sampler_iter = sampler_iter
        self._places = places  # None: each index says by itself which sample it is
        self.plan = plan

    def follow(self, plan: Plan) -> None:
        """Take the next batches by this plan."""
        self.plan = plan

    def __iter__(self) -> "Source":
        return self

    def __next__(self) -> Admission:
        indices, chain, items = self.plan.take(next(self._sampler_iter))
        if self._places is not None:
            indices, items = self._places.of(indices)
        return indices, chain, items


class FirstSamples:
    """Tells when the first samples were made: two, by one thread, each looked at before the next begins. One shows what
    a sample sets; the second, what it sets again."""

    def __init__(self, announce: Callable[[None], None]) -> None:
        self._announce = announce
        self._thread: int | None = None  # that makes them: others may have been let in
        self._num_made = self._num_failed = 0
        self.is_made = False
        self.is_judged = False
        self._claim = [None]  # whoever pops it: the judge, who then knows that the thread is alone; or who ends that

    def begin(self, look: Callable[[], bool], judge: Callable[[bool], None], seconds: float) -> None:
        """Before they are made: who looks after the first (and tells whether to go on) and judges after the last, and
        for how many seconds the other threads are kept out for each."""
        self._look, self._judge, self._seconds = look, judge, seconds
        self.deadline = time.monotonic() + seconds

    def stop_waiting(self) -> bool:
        """Let others in before they are there. False if they are being judged at this moment."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    def end(self) -> None:
        """There are no more samples to look at."""
        self.is_made = True

    def watch(self, function: Function, num_samples: int) -> Function:
        """``function``, which makes that many samples at a time, watched until there were enough."""

        def watched(*arguments: Any) -> Any:
            if self.is_made or self._thread not in (None, threading.get_ident()):
                return function(*arguments)
            self._thread = threading.get_ident()
            try:
                value = function(*arguments)
            except BaseException:
                self._num_failed += 1
                if self._num_failed >= MAX_FAILED:
                    self._conclude()
                self._announce(None)
                raise
            self._num_made += num_samples
            if self._num_made >= NUM_LOOKED_AT or not self._claim or not self._look():
                self._conclude()
            else:
                self.deadline = time.monotonic() + self._seconds
            return value

        return watched

    def _conclude(self) -> None:
        try:
            self._judge(self.stop_waiting())
            self.is_judged = True
        finally:
            self.is_made = True
            self._announce(None)


def plain(function: Function) -> Function:
    """Nothing goes around it: threads call it as it is."""
    return function
