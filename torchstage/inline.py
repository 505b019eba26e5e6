"""Inline: a loader with ``num_workers=0`` in, its batches out, made in the caller's thread.

Guarantees: nothing starts before the first ``__next__``; no thread is made; an error is raised in its place in the
order and does not end the epoch.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchstage import rng
from torchstage.assembly import plain
from torchstage.copies import Private
from torchstage.engine.executors import stage_of
from torchstage.engine.ticket import Batch, Chain, Nobody
from torchstage.errors import place, placed
from torchstage.isolation import Guard, has_serialised
from torchstage.iterators import CLOSED, LoaderIterator, recipe_of, seeds_of_epoch
from torchstage.line import Line
from torchstage.plan import Plan
from torchstage.seeds import Seeds
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
        self._recipe = recipe_of(self, Line(self._dataset, loader.stages), loader.run_here, route=loader.route())
        self._source = self._source_of(Plan(self._recipe, plain), None)
        self._scope: rng.Scope | None = None
        self._seeds_of = seeds_of_epoch(self, loader, 0) if loader.seed is not None else None
        self._num_batches = 0

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
        try:
            indices, chain, items = next(self._source)
        except StopIteration:
            self._is_exhausted = epoch.is_over = True
            raise
        try:
            with nullcontext() if self._scope is None else rng.drawing_from(self._scope):
                batch = self._made(indices, chain, items)
        except Exception:  # it comes in the place of the batch; Ctrl-C does not
            self._handed_out(epoch.position.latest)
            raise
        self._handed_out(epoch.position.latest)
        return batch

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

    def _made(self, indices: Sequence[Any], chain: Chain, items: Sequence[Any] | None) -> Any:
        batch = Batch(self._num_batches, indices, chain, Nobody(), items)
        self._num_batches += 1
        stage: str = ""
        slot: int | None = 0
        try:
            values: list[Any] = list(batch.items)
            for segment in chain.segments:
                for slot in range(batch.size):
                    for leg in segment.legs:
                        if leg.begin is not None:
                            leg.begin(batch.items[slot])
                        for stage, step in leg.steps:  # noqa: B007  # named after an error
                            values[slot] = step(values[slot])
                if segment.spread is not None:
                    values = batch.spread(values[0], segment.spread)
            slot, value = None, cast(Any, values)
            for stage, step in chain.finish:  # noqa: B007  # named after an error
                value = step(value, batch.indices)
        except StopIteration as error:
            raise placed(error, place(batch, stage_of(error, stage), slot, self._dataset)) from error
        except Exception as error:
            placed(error, place(batch, stage_of(error, stage), slot, self._dataset))
            raise
        return value
