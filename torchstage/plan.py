"""Plan: a loader's dataset and functions in, what the engine does with each index of its sampler out.

Guarantees: for every kind of dataset the same calls as torch's fetcher makes; a list, array or tensor that the sampler
yields is copied, so that the sampler may go on changing it.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data as torch_data

from torchstage import rng
from torchstage.assembly import Assembly, Wrap
from torchstage.budget import Budget, size_of
from torchstage.buffers import Ring
from torchstage.collate import explained
from torchstage.copies import Private
from torchstage.engine.pipeline import Admission, Pool
from torchstage.engine.ticket import Batch, Chain
from torchstage.first import FirstSamples
from torchstage.line import Line
from torchstage.order import Places
from torchstage.seeds import Seeds
from torchstage.sites import Sites

Function = Callable[..., Any]

SAMPLES_AHEAD_PER_THREAD = 16  # a window of 16 samples a thread keeps a heavy tail (sigma 1) at 0.98 of the ideal
_default_collate: Any = vars(torch_data)["default_collate"]  # torch leaves it untyped


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a batch is made with: everything that stays the same from epoch to epoch."""

    line: Line
    collate_fn: Function
    is_batched: bool  # whether the sampler yields batches of indices, or one index at a time
    pin: Function | None  # copies a batch into pinned memory; given the batch and its indices
    move: Function | None  # puts it on the device, where nothing runs ahead; likewise
    enter: Callable[[], None]  # prepares a thread
    private: Callable[[], Private | None]  # what the calling thread has for its own
    run_coroutine: Callable[[Any], Any]  # waits for one in the calling thread, where stages run together
    seeds: Seeds | None = None  # of the samples' own random generators
    ring: Ring | None = None  # memory for large batches
    budget: Budget | None = None  # of the bytes in flight
    home: Pool | None = None  # whose threads begin and finish batches; None: everything in the caller's thread

    @property
    def roots(self) -> dict[str, Any]:
        """What threads share, by the names that messages call it."""
        return {**self.line.roots, "collate_fn": self.collate_fn}


class Plan:
    """How batches are made, until another plan takes over at a batch border. ``wrap`` goes around user functions;
    ``looks``: a thread that has a copy of its own of the dataset and of the functions uses that; ``first`` watches the
    first samples. ``sites``: where stages run; None: all in the thread that begins a sample, one after another."""

    def __init__(
        self,
        recipe: Recipe,
        wrap: Wrap,
        *,
        looks: bool = False,
        first: FirstSamples | None = None,
        sites: Sites | None = None,
    ) -> None:
        line = recipe.line
        self._is_batched = recipe.is_batched
        is_collated = line.is_collated and recipe.is_batched and recipe.collate_fn is _default_collate
        self._takes_batches = recipe.is_batched and (is_collated or line.spreads)
        home = recipe.home
        assembly = Assembly(
            line, recipe.seeds, recipe.private, wrap, looks, first, sites, recipe.run_coroutine, home is None
        )
        collate = explained(recipe.collate_fn, recipe.ring)
        if looks or recipe.seeds is not None:
            collate = _collated(collate, recipe)
        collate = _as_it_is if is_collated else wrap(collate)
        finish, finish_whole = finish_of(collate, recipe), finish_of(partial(_collate_whole, collate), recipe)
        by_sample = assembly.of_samples()
        if not recipe.is_batched:
            whole = by_sample
        elif self._takes_batches:
            whole = assembly.of_batches()
            finish_whole = finish if len(whole) > 1 else finish_whole
        else:
            whole = assembly.of_nothing()
        self._by_sample = Chain(by_sample, finish, recipe.enter, home=home)
        self._as_whole = Chain(whole, finish_whole, recipe.enter, takes_whole=True, home=home)

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


def _own(index: Any) -> Any:
    """A copy of what the sampler may go on changing: by the time a thread looks at it, it would be another batch's."""
    if isinstance(index, torch.Tensor):
        return index.clone()
    return copy.copy(cast(Any, index)) if isinstance(index, list | dict | np.ndarray) else index


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


def _as_it_is(batch: Any, indices: Any) -> Any:
    """The dataset collated it."""
    return batch


def finish_of(collate: Function, recipe: Recipe) -> tuple[tuple[str, Function], ...]:
    """What is done with the samples of a batch once all are there."""
    steps = [("collate", collate if recipe.budget is None else partial(_measured, recipe.budget, collate))]
    if recipe.pin is not None:
        steps.append(("pin_memory", recipe.pin))
    if recipe.move is not None:
        steps.append(("transfer", recipe.move))
    return tuple(steps)


def _measured(budget: Budget, collate: Function, samples: Any, indices: Any) -> Any:
    """``collate``, after which both what it was given and what it made are there, for a while."""
    num_bytes = size_of(samples)
    batch = collate(samples, indices)
    budget.measure(num_bytes + size_of(batch))
    return batch


def window(
    prefetch_factor: int, num_threads: int, num_elsewhere: int, is_batched: bool, budget: Budget | None, batch: Batch
) -> int:
    """How many batches may be in flight: ``prefetch_factor``, or more where threads would run out of samples or of
    batches to collate, and the one that is handed out. Where a ticket is a whole batch, torch's own count:
    ``prefetch_factor`` for each thread. In any case no more than the budget of bytes allows.

    ``num_elsewhere``: samples that wait or are made at once elsewhere than in the loader's own threads."""
    if batch.chain.takes_whole:
        wanted = prefetch_factor * num_threads + 1 + (0 if is_batched else num_elsewhere)
    else:
        num_samples = SAMPLES_AHEAD_PER_THREAD * num_threads + num_elsewhere
        wanted = max(prefetch_factor, num_threads, math.ceil(num_samples / batch.size)) + 1
    return wanted if budget is None else min(wanted, budget.num_batches)


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

    @staticmethod
    def skip(plan: Plan, places: Places, item: Any) -> None:
        """What the sampler yielded was handed out before the epoch was resumed: it is counted, no more."""
        places.of(plan.take(item)[0])

    def __next__(self) -> Admission:
        indices, chain, items = self.plan.take(next(self._sampler_iter))
        if self._places is not None:
            indices, items = self._places.of(indices)
        return indices, chain, items
