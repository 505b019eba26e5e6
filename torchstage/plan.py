"""Plan: a loader's dataset and functions in, what the engine does with each index of its sampler out.

Guarantees: for every kind of dataset the same calls as torch's fetcher makes; a list, array or tensor that the sampler
yields is copied, so that the sampler may go on changing it.
"""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from torchstage.engine.regroup import Group, Parts
from torchstage.engine.ticket import Batch, Chain, Leg, Place, Segment
from torchstage.executors.failures import ProcessDied
from torchstage.first import FirstSamples
from torchstage.limits import Limits
from torchstage.line import Line
from torchstage.order import Numbered, Placed, Places
from torchstage.seeds import Seeds
from torchstage.sites import Sites
from torchstage.tolerance import Tolerance

Function = Callable[..., Any]

SAMPLES_AHEAD_PER_THREAD = 16  # a window of 16 samples a thread keeps a heavy tail (sigma 1) at 0.98 of the ideal
RECEIVE = "receive"  # a stage: a batch that was made in a process comes
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
    tolerance: Tolerance | None = None  # of samples that fail
    home: Pool | None = None  # whose threads begin and finish batches; None: everything in the caller's thread
    limits: Limits | None = None  # how it is looked at what is in a stage for too long; None: it is not

    @property
    def roots(self) -> dict[str, Any]:
        """What threads share, by the names that messages call it."""
        return {**self.line.roots, "collate_fn": self.collate_fn}


@dataclass(frozen=True, slots=True)
class Whole:
    """A batch that is made in one place from its indices to ``collate``: the indices, the items that stand for them (as
    Admission has them), whether the dataset takes them all at once, what seeds its draws, and whether it is collated
    there: not so where what is left of it is filled up with samples of others."""

    indices: Sequence[Any]
    items: Sequence[Any] | None
    takes_whole: bool
    seeds: Seeds | None
    is_collated: bool = True


class Plan:
    """How batches are made, until another plan takes over at a batch border. ``wrap`` goes around user functions;
    ``looks``: a thread that has a copy of its own of the dataset and of the functions uses that; ``first`` watches the
    first samples. ``sites``: where stages run; None: all in the thread that begins a sample, one after another.
    ``made_in``: where batches are made as ``Whole`` says; then what they are made with does not matter here."""

    def __init__(
        self,
        recipe: Recipe,
        wrap: Wrap,
        *,
        looks: bool = False,
        first: FirstSamples | None = None,
        sites: Sites | None = None,
        made_in: Place | None = None,
    ) -> None:
        line = recipe.line
        self.made_with = (recipe, wrap, looks, first, sites, made_in)
        self._seeds = recipe.seeds
        self._made_whole = None if made_in is None else _made_in(made_in, recipe)
        self._is_batched = recipe.is_batched
        is_collated = line.is_collated and recipe.is_batched and recipe.collate_fn is _default_collate
        self._takes_batches = recipe.is_batched and (is_collated or line.spreads)
        home = recipe.home
        assembly = Assembly(
            *(line, recipe.seeds, recipe.private, wrap, looks, first, sites, recipe.run_coroutine, home is None),
            limits=recipe.limits,
        )
        self._tolerance = tolerance = None if is_collated else _tolerance_of(recipe, wrap, looks)
        assembly = replace(assembly, tolerance=tolerance)
        collate = explained(recipe.collate_fn, recipe.ring, line.dataset)
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
        self.group_chain = Chain(by_sample, finish, recipe.enter, home=home)
        if self.regroups:
            finish = ()
        self._by_sample = Chain(by_sample, finish, recipe.enter, home=home, tolerance=tolerance)
        self._as_whole = Chain(whole, finish_whole, recipe.enter, takes_whole=True, home=home, tolerance=tolerance)

    @property
    def regroups(self) -> bool:
        """Whether its batches are not collated: what is left of them is filled up with samples of others."""
        return self._tolerance is not None and self._tolerance.regroups

    def with_seeds(self, seeds: Seeds) -> "Plan":
        """The same plan, for samples that are seeded so."""
        recipe, wrap, looks, first, sites, made_in = self.made_with
        recipe = replace(recipe, seeds=seeds)
        return Plan(recipe, wrap, looks=looks, first=first, sites=sites, made_in=made_in)

    @property
    def seeds(self) -> Seeds | None:
        """Of the samples' own random generators."""
        return self._seeds

    @property
    def is_on_trial(self) -> bool:
        """Whether the first samples are still looked at."""
        return self.made_with[3] is not None

    @property
    def is_elsewhere(self) -> bool:
        """Whether batches are made by processes, of what these were sent."""
        return self._made_whole is not None

    @property
    def roots(self) -> dict[str, Any]:
        """What samples are made with, by the names that messages call it."""
        return self.made_with[0].roots

    @property
    def chains(self) -> tuple[Chain, Chain]:
        """Of a batch sample by sample, and of one that is one ticket."""
        return self._by_sample, self._as_whole

    def pack(self, admission: Admission) -> Admission:
        """The same batch, as one ticket where it is made in one place."""
        if self._made_whole is None:
            return admission
        indices, chain, items = admission
        given = indices[0] if chain.takes_whole else indices
        return (given,), self._made_whole, (Whole(indices, items, chain.takes_whole, self._seeds, not self.regroups),)

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


def _tolerance_of(recipe: Recipe, wrap: Wrap, looks: bool) -> Tolerance | None:
    """The recipe's, which can make other samples in the calling thread if it has to."""
    tolerance = recipe.tolerance
    if tolerance is None or tolerance.on_error != "replace":
        return tolerance
    line = recipe.line
    if line.spreads:  # processes know how to give a batch's samples at once, and not how to give one
        line = Line(line.dataset, line.stages)
    segments = Assembly(
        line, recipe.seeds, recipe.private, wrap, looks, None, None, recipe.run_coroutine, recipe.home is None
    ).of_samples()
    return replace(tolerance, remake=partial(_remade, segments, recipe.seeds is not None))


def _remade(segments: Sequence[Segment], has_seeds: bool, item: Placed) -> Any:
    """The sample of this item, through all stages in the calling thread."""
    value: Any = item if has_seeds else item.index
    for segment in segments:
        for leg in segment.legs:
            if leg.begin is not None:
                leg.begin(item)
            for _, step in leg.steps:
                value = step(value)
    return value


def _as_it_is(batch: Any, indices: Any) -> Any:
    """The dataset collated it."""
    return batch


def _made_in(place: Place, recipe: Recipe) -> Chain:
    names = recipe.line.names(is_batched=recipe.is_batched)
    leg = Leg(((names[0], _as_asked),), None, names)
    finish = finish_of(_received, recipe)
    if recipe.tolerance is not None and recipe.tolerance.regroups:
        finish = ((RECEIVE, _received),)
    finish = ((RECEIVE, finish[0][1]), *finish[1:])
    lost = None if recipe.tolerance is None else partial(_lost, recipe.tolerance)
    segments = (Segment((leg,), place),)
    return Chain(segments, finish, recipe.enter, takes_whole=True, home=recipe.home, is_counted=True, lost=lost)


def _lost(tolerance: Tolerance, error: BaseException) -> int | None:
    """The place in its batch of a sample that ended the processes which were to make it, if the others go on without
    it. One that died somewhere else than the one before it may have died of anything."""
    if not isinstance(error, ProcessDied) or not error.was_twice_there or not tolerance.takes(error):
        return None
    return error.at


def parts_of(batch: Batch) -> Parts:
    """What is in a batch that is not collated: the samples that are left; the indices and items of all."""
    values: Sequence[Any] = () if batch.is_left_out else batch.value
    if batch.chain.is_counted:  # it was made in a process
        whole: Whole = batch.items[0]
        return values, whole.indices, whole.items or whole.indices
    return values, batch.indices, batch.items


def named(group: Group) -> Sequence[Any]:
    """The indices of samples that are regrouped, as a batch's."""
    if not any(type(item) is Placed for item in group.items):
        return group.indices
    numbered = Numbered(group.indices)
    numbered.salt = group.places[0] + 1
    return numbered


def _as_asked(whole: Any) -> Any:
    raise AssertionError("a batch is made where its place says so")


def _received(batches: list[Any], indices: Any) -> Any:
    """The one batch that came."""
    return batches[0]


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
        return self.plan.pack((indices, chain, items))
