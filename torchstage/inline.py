"""Inline: a loader with ``num_workers=0`` in, its batches out, made in the caller's thread.

Guarantees: nothing starts before the first ``__next__``; no thread is made; an error is raised in its place in the
order and does not end the epoch.
"""

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchstage import rng
from torchstage.assembly import plain
from torchstage.copies import Private
from torchstage.engine.gather import finish
from torchstage.engine.ledger import Site
from torchstage.engine.outcome import Failure
from torchstage.engine.regroup import Regroup, Step
from torchstage.engine.ticket import Batch, Nobody
from torchstage.errors import place, placed
from torchstage.isolation import Guard, has_serialised
from torchstage.line import Line
from torchstage.lineup import finish_names, lineup_of
from torchstage.loader_iterator import CLOSED, LoaderIterator, recipe_of, seeds_of_epoch
from torchstage.making import made_here
from torchstage.plan import Plan
from torchstage.seeds import Seeds
from torchstage.timeouts import INLINE, warn_unlooked
from torchstage.worker_info import install_answers

if TYPE_CHECKING:
    from torchstage.loader import StageLoader


class InlineIterator(LoaderIterator):
    """``num_workers=0``: every stage in the caller's thread, one after another, so that a debugger works.

    Also a loader that a serialised dataset uses inside itself: its threads would wait for the thread that asks.
    """

    def __init__(self, loader: "StageLoader[Any]", guard: Guard) -> None:
        super().__init__(loader)
        if self._timeout != 0 and self._num_workers == 0:
            raise AssertionError(f"StageLoader: timeout={self._timeout} needs num_workers > 0, got num_workers=0")
        self._guard = guard
        self._is_guarded = False
        self._is_closed = self._is_exhausted = False
        line, route = Line(self._dataset, loader.stages), loader.route()
        self._recipe = recipe_of(self, line, loader.run_here, route=route, tolerance=self._tolerance(line))
        site = Site("inline", 1, "inline")
        warn_unlooked(guard, [*line.by_sample, *line.after_many], INLINE)
        names = finish_names(pins=self._recipe.pin is not None, moves=route is not None)
        is_batched: bool = self._auto_collation
        loader.ledger.lineup = lineup_of(line, None, site, is_batched=is_batched, finish=names)
        self._tally = loader.ledger.tally(site.label)
        weakref.finalize(self, setattr, self._tally, "is_over", True).atexit = False
        self._source = self._source_of(Plan(self._recipe, plain), None)
        self._scope: rng.Scope | None = None
        self._seeds_of = seeds_of_epoch(self, loader, 0) if loader.seed is not None else None
        self._groups: deque[Batch] = deque()  # that are to be handed out
        position = self._epoch.position
        self._regroup = self._regrouping(
            lambda _: position.begin_of(position.latest), lambda: self._source.plan.group_chain
        )

    def abandon(self) -> None:
        """The loader was closed."""
        self._is_closed = True

    def _next_data(self) -> Any:
        if self._is_closed and not self._is_exhausted:
            raise RuntimeError(CLOSED)
        epoch = self._epoch
        if not epoch.is_started:
            epoch.is_started = True
            epoch.begin()
        if self._seeds_of is not None:
            seeds_of, self._seeds_of = self._seeds_of, None
            self._begin_scope(seeds_of)
        if not self._is_guarded and has_serialised():  # a thread of another loader may use the same handle
            self._is_guarded = True
            if self._guard.must_serialise(self._recipe.roots):
                self._source.follow(Plan(self._recipe, self._guard.serialised, looks=self._scope is not None))
        while True:
            batch = self._next_batch()
            if batch.bad:
                self._note_bad_of(batch)
            if batch.failure is not None:
                failure, batch.failure = batch.failure, None
                try:
                    raise failure.error
                finally:
                    del failure, batch  # its traceback refers to this frame
            if not batch.is_left_out and not batch.is_raw:
                break
        epoch.bad.num_good += batch.num_made
        if self._steps is not None:
            self._steps.num_samples += batch.num_made
        return batch.value

    def _next_batch(self) -> Batch:
        """The next one; or one whose samples become parts of others."""
        epoch, regroup = self._epoch, self._regroup
        if self._groups:
            return self._finished()
        try:
            indices, chain, items = next(self._source)
        except StopIteration:
            if regroup is not None and (rest := regroup.rest(Nobody())) is not None:
                self._take(regroup, rest)
                return self._finished()
            if not self._is_exhausted:
                self._end()
            raise
        number = epoch.position.latest
        batch = Batch(number if regroup is None else regroup.num_groups, indices, chain, Nobody(), items)
        try:
            with nullcontext() if self._scope is None else rng.drawing_from(self._scope):
                self._make(batch)
        except Exception as error:  # it comes in the place of the batch; Ctrl-C does not
            if regroup is None:
                self._handed_out(number)
                raise
            batch.failure = Failure(error, "")
        if regroup is None:
            self._handed_out(number)
        else:
            self._take(regroup, regroup.step(batch, Nobody()))
            batch.is_raw, batch.bad, batch.failure = True, (), None  # the groups have these
        return batch

    def _end(self) -> None:
        """There is no batch left: what is to be said of them all is said once."""
        self._is_exhausted = self._epoch.is_over = True
        if self._regroup is not None:
            self._end_groups(self._regroup)
        self._report_bad()

    def _take(self, regroup: Regroup, step: Step) -> None:
        self._groups.extend(step.groups)
        regroup.take(step)

    def _finished(self) -> Batch:
        """The next batch that is made of samples of others, collated; or one that failed."""
        group = self._groups[0]
        if not group.done:
            self._collate(group)
        self._groups.popleft()
        self._group_handed_out(group)
        if self._steps is not None:
            self._steps.number = group.number
        return group

    def _collate(self, group: Batch) -> None:
        """After Ctrl-C in here its samples are there still."""
        samples = dict(group.settled)
        with nullcontext() if self._scope is None else rng.drawing_from(self._scope):
            finish(group, self._tally)
        failure = group.failure
        if failure is None:
            return
        if not isinstance(failure.error, Exception):
            self._groups[0] = again = Batch(group.number, group.indices, group.chain, group.wake)
            again.settled, again.bad, again.end = samples, group.bad, group.end
            group.failure = None
            try:
                raise failure.error
            finally:
                del failure  # its traceback refers to this frame
        error = placed(failure.error, place(group, failure.stage, failure.slot, self._dataset))
        group.failure = replace(failure, error=error)

    def _begin_scope(self, seeds_of: Callable[[int | None], Seeds]) -> None:
        """With a seed, the samples draw from generators of their own here too; those that the dataset keeps are copied
        for it, as they are for a thread."""
        install_answers()
        self._scope = rng.Scope()
        own = self._guard.privates(1, self._recipe.roots, is_guarded=False)
        private: Callable[[], Private | None] = (lambda: own[0]) if own else (lambda: None)
        seeds = seeds_of(self._epoch.number)
        self._epoch.repeat = seeds.repeat
        self._recipe = replace(self._recipe, seeds=seeds, private=private)
        self._source = self._source_of(Plan(self._recipe, plain, looks=True), self.places())

    def _make(self, batch: Batch) -> None:
        if self._steps is not None:
            self._steps.number = batch.number
        try:
            batch.value = made_here(batch, self._tally)
        except Exception as error:
            stage, slot = cast(Failure, batch.failure).stage, cast(Failure, batch.failure).slot
            batch.failure = None  # its traceback leads back to this frame
            where = place(batch, stage, slot, self._dataset)
            if isinstance(error, StopIteration):
                raise placed(error, where) from error
            placed(error, where)
            raise
        finally:
            batch.let_go()  # else it would keep what it is made into until garbage is collected
