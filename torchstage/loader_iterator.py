"""Loader iterator: a loader in, torch's iterator of it out, with an epoch that is counted. Subclasses say how
batches are made.

Guarantees: what was handed out is known at every moment; only the consumer's thread writes here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import threads
from torchstage.ahead import moved_at_once
from torchstage.bad import TooManyBadSamples
from torchstage.budget import Budget
from torchstage.buffers import Ring
from torchstage.engine.ledger import Steps
from torchstage.engine.outcome import Failure
from torchstage.engine.pipeline import Pool
from torchstage.engine.regroup import Regroup
from torchstage.engine.ticket import Batch, Chain
from torchstage.epoch import Epoch
from torchstage.errors import warn_user
from torchstage.line import Line
from torchstage.modes import Modes
from torchstage.order import Places, can_repeat, samplers_of, seeds_of
from torchstage.plan import Plan, Recipe, Source, named, parts_of
from torchstage.resumed import Resumed
from torchstage.seeds import Seeds
from torchstage.tolerance import BadSample, OnError, Tolerance
from torchstage.transfer import Route, pinned

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

CLOSED = (
    "StageLoader: this iterator is closed, or belongs to the process that this one was forked from. "
    "Call iter(loader) for a new one."
)


def recipe_of(
    iterator: Any,
    line: Line,
    run_coroutine: Callable[[Any], Any],
    *,
    ring: Ring | None = None,
    budget: Budget | None = None,
    home: Pool | None = None,
    route: Route | None = None,
    tolerance: Tolerance | None = None,
) -> Recipe:
    pin = pinned(iterator._pin_memory_device) if iterator._pin_memory else None
    return Recipe(
        line=line,
        collate_fn=iterator._collate_fn,
        is_batched=iterator._auto_collation,
        pin=pin if route is None else route.pin,
        move=None if route is None or home is not None else moved_at_once(route),
        enter=Modes.of_this_thread().enter,
        private=threads.private,
        run_coroutine=run_coroutine,
        ring=ring,
        budget=budget,
        tolerance=tolerance,
        home=home,
    )


NOTHING_LEFT = (
    "StageLoader: no sample of a batch is left, and other ranks wait for this one in each step. Use "
    "on_error='replace' (of an iterable dataset a function), or mend these samples: "
)
_is_profiled: Callable[[], bool] = vars(torch.autograd)["_profiler_enabled"]  # torch leaves it untyped


def num_ranks(of_sampler: int | None) -> int:
    """How many processes train together, as far as is known."""
    torch_distributed: Any = torch.distributed
    if of_sampler in (None, 1) and torch_distributed.is_available() and torch_distributed.is_initialized():
        return torch_distributed.get_world_size()
    return of_sampler or 1


class LoaderIterator(_BaseDataLoaderIter):
    """What both have in common. The annotations are of torch's own attributes, which it leaves untyped."""

    _dataset: Any
    _collate_fn: Any
    _sampler_iter: Any
    _base_seed: Any
    _index_sampler: Any
    _samplers: tuple[Any, ...]  # ours
    _epoch: Epoch
    counts_itself = True
    _on_error: OnError = "raise"
    _keeps_order = True  # whether batches are handed out in the order of the sampler
    _keeps_steps = False  # whether every rank must have a batch where others have one
    _max_bad: int | float | None = None
    _regroup: Regroup | None = None
    _steps: Steps | None = None  # what its consumer meets; the loader gives it one

    def __init__(self, loader: "StageLoader[Any]") -> None:
        self._on_error, self._max_bad = loader.on_error, loader.max_bad_samples
        self._open(loader)

    def _open(self, loader: "StageLoader[Any]") -> None:
        self._resumed = Resumed(loader)
        with self._resumed.first():
            super().__init__(self._resumed.twin_of(loader))  # pyright: ignore[reportUnknownMemberType]  # as torch has it
        self._follow()

    def _follow(self) -> None:
        """Take the epoch that begins or goes on."""
        epoch = self._epoch = self._resumed.epoch
        if epoch.base_seed is not None:
            self._base_seed = epoch.base_seed
        epoch.base_seed = self._base_seed

    def _handed_out(self, number: int) -> None:
        """The caller gets the batch of this number, or the error in its place."""
        self._epoch.position.hand_out(number)

    def _note_bad(self, told: Sequence[tuple[int, BadSample]], num_coming: int = 0) -> None:
        """Count samples that a batch is without. ``num_coming``: those that it has. Raises TooManyBadSamples."""
        bad = [one for _, one in told]
        self._epoch.bad.count(bad, self._steps, self._max_bad, self._num_in_epoch(), num_coming)

    def _group_handed_out(self, batch: Batch) -> None:
        """The caller gets a batch that is made of samples of others, or the error in its place."""
        if batch.end is not None:
            place, index = batch.end
            self._epoch.position.hand_out_to(place, self._epoch.sampling.name_of(index), batch.num_made)

    def _end_groups(self, regroup: Regroup) -> None:
        """There is no batch left. Raises TooManyBadSamples."""
        self._note_bad(regroup.take_bad())
        self._epoch.position.hand_out_to(self._epoch.position.end, None, 0, num_batches=0)

    def _note_bad_of(self, batch: Batch) -> None:
        """Likewise, of this batch. Too many of them: that error comes in its place."""
        try:
            self._note_bad(batch.bad, batch.num_made)
            if batch.is_left_out and self._keeps_steps:
                words = self._epoch.bad.in_words() or "SkipSample left them out"
                raise TooManyBadSamples(NOTHING_LEFT + words, tuple(self._epoch.bad.named))
        except TooManyBadSamples as error:
            if batch.failure is None:
                batch.failure = Failure(error.with_traceback(None), batch.chain.segments[0].stage)

    def _tolerance(self, line: Line) -> Tolerance | None:
        """What is done with samples that fail, in this epoch."""
        sampling, is_batched = self._epoch.sampling, bool(self._auto_collation)
        self._keeps_steps = num_ranks(sampling.num_replicas) > 1
        fills_up = (
            (self._on_error == "skip" or callable(self._on_error))
            and is_batched
            and sampling.batch_size is not None
            and self._keeps_order
            and not self._keeps_steps
            and not line.takes_batches
            and not self._epoch.position.above
        )
        self._fills_up = fills_up
        if fills_up:
            self._epoch.drops_rest |= sampling.drop_last
            self._epoch.sampling = replace(sampling, drop_last=False)
        return Tolerance(self._on_error, self._dataset, is_batched, regroups=fills_up)

    def _regrouping(self, place_of: Callable[[Batch], int], chain: Callable[[], Chain]) -> Regroup | None:
        """What fills batches up, if they are."""
        if not self._fills_up:
            return None
        size = self._epoch.sampling.batch_size or 1
        return Regroup(size, place_of, parts_of, chain, named, drops_last=self._epoch.drops_rest)

    def _num_in_epoch(self) -> int | None:
        """Samples of the epoch; None where the sampler has no length."""
        sampling = self._epoch.sampling
        return None if sampling.has_own_batches else sampling.length

    def _report_bad(self) -> None:
        """At the end of an epoch."""
        known = self._epoch.bad
        if self._regroup is None or not self._regroup.num_left:
            known.check_end()
        if (report := known.report()) is not None:
            warn_user(report)

    def _source_of(self, plan: Plan, places: Places | None) -> Source:
        if places is not None:
            self._sampler_iter.on_skipped = partial(Source.skip, plan, places)
        return Source(self._sampler_iter, plan, places)

    def __next__(self) -> Any:
        return self._next() if self._steps is None else self._steps.count(self._next)

    def _next(self) -> Any:
        if _is_profiled():  # torch's own marks the batch for the profiler: 20 us that nobody sees otherwise
            return super().__next__()
        data = self._next_data()
        self._num_yielded += 1
        return data

    def places(self) -> Places | None:
        """What counts how often an index comes, if any can come twice."""
        return Places(self._dataset) if can_repeat(self._samplers, self._dataset) else None


def seeds_of_epoch(iterator: Any, loader: "StageLoader[Any]", num_resets: int) -> Callable[[int | None], Seeds]:
    """Tells the seeds of an epoch when its number is known: Lightning sets it after ``iter()``."""
    iterator._samplers = samplers_of(loader)
    return partial(seeds_of, loader.seed, iterator._samplers, iterator._base_seed, num_resets, loader.num_begun)
