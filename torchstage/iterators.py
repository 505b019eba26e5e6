"""Iterators: a loader in, its batches out, one epoch at a time: from threads, or inline where ``num_workers=0``.

Both are torch's ``_BaseDataLoaderIter``, which makes the sampler's iterator and draws the base seed.

Guarantees: nothing starts before the first ``__next__``; dropping the iterator ends its threads, and no thread refers
to it; an error is raised in its place in the order and does not end the epoch.
"""

import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng, threads
from torchstage.assembly import plain
from torchstage.budget import Budget
from torchstage.buffers import Ring
from torchstage.copies import Private
from torchstage.coroutines import run_here
from torchstage.crew import Crew
from torchstage.engine.executors import stage_of
from torchstage.engine.pipeline import Closed, Exhausted, Pool, Run, TimedOut
from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch, Chain, Nobody
from torchstage.errors import place, placed, stack_of
from torchstage.isolation import Guard, has_serialised
from torchstage.line import Line
from torchstage.order import Places, can_repeat, samplers_of, seeds_of
from torchstage.plan import Plan, Recipe, Source, window
from torchstage.seeds import Seeds
from torchstage.sites import Sites, key_of
from torchstage.transfer import pinned

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

CLOSED = (
    "StageLoader: this iterator is closed, or belongs to the process that this one was forked from. "
    "Call iter(loader) for a new one."
)
CLOSE_WAIT_SECONDS = 1.5  # for user code at close(): a caller is told within two seconds what is stuck


def _recipe(
    iterator: Any,
    line: Line,
    run_coroutine: Callable[[Any], Any],
    *,
    ring: Ring | None = None,
    budget: Budget | None = None,
    home: Pool | None = None,
) -> Recipe:
    return Recipe(
        line=line,
        collate_fn=iterator._collate_fn,
        is_batched=iterator._auto_collation,
        pin=pinned(iterator._pin_memory_device) if iterator._pin_memory else None,
        enter=threads.Modes.of_this_thread().enter,
        private=threads.private,
        run_coroutine=run_coroutine,
        ring=ring,
        budget=budget,
        home=home,
    )


_is_profiled: Callable[[], bool] = vars(torch.autograd)["_profiler_enabled"]  # torch leaves it untyped


class _Iterator(_BaseDataLoaderIter):
    """What both have in common. The annotations are of torch's own attributes, which it leaves untyped."""

    _dataset: Any
    _collate_fn: Any
    _sampler_iter: Any
    _base_seed: Any
    _samplers: tuple[Any, ...]  # ours

    def __next__(self) -> Any:
        if _is_profiled():  # torch's own marks the batch for the profiler: 20 us that nobody sees otherwise
            return super().__next__()
        data = self._next_data()
        self._num_yielded += 1
        return data

    def _places(self) -> Places | None:
        return Places(self._dataset) if can_repeat(self._samplers, self._dataset) else None


def _seeds_of(iterator: Any, loader: "StageLoader[Any]", num_resets: int) -> Callable[[], Seeds]:
    """Tells the seeds of an epoch when it begins: Lightning sets the sampler's epoch after ``iter()``."""
    iterator._samplers = samplers_of(loader)
    return partial(seeds_of, loader.seed, iterator._samplers, iterator._base_seed, num_resets, loader.num_begun)


class InlineIterator(_Iterator):
    """``num_workers=0``: every stage in the caller's thread, one after another, so that a debugger works.

    Also a loader that a serialised dataset uses inside itself: its threads would wait for the thread that asks.
    """

    def __init__(self, loader: "StageLoader[Any]", guard: Guard) -> None:
        super().__init__(cast(Any, loader))  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        if self._timeout != 0 and self._num_workers == 0:
            raise AssertionError(f"StageLoader: timeout={self._timeout} needs num_workers > 0, got num_workers=0")
        self._guard = guard
        self._is_guarded = False
        self._is_closed = self._is_exhausted = False
        self._recipe = _recipe(self, Line(self._dataset, loader.stages), run_here)
        self._source = Source(self._sampler_iter, Plan(self._recipe, plain))
        self._scope: rng.Scope | None = None
        self._seeds_of = _seeds_of(self, loader, 0) if loader.seed is not None else None
        self._num_batches = 0

    def abandon(self) -> None:
        """The loader was closed."""
        self._is_closed = True

    def _next_data(self) -> Any:
        if self._is_closed and not self._is_exhausted:
            raise RuntimeError(CLOSED)
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
            self._is_exhausted = True
            raise
        with nullcontext() if self._scope is None else rng.drawing_from(self._scope):
            return self._made(indices, chain, items)

    def _begin_scope(self, seeds_of: Callable[[], Seeds]) -> None:
        """With a seed, the samples draw from generators of their own here too; those that the dataset keeps are copied
        for it, as they are for a thread."""
        threads.install_answers()
        self._scope = rng.Scope()
        own = self._guard.privates(1, self._recipe.roots, is_guarded=False)
        private: Callable[[], Private | None] = (lambda: own[0]) if own else (lambda: None)
        self._recipe = replace(self._recipe, seeds=seeds_of(), private=private)
        self._source = Source(self._sampler_iter, Plan(self._recipe, plain, looks=True), self._places())

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


class ThreadedIterator(_Iterator):
    """Batches made by ``num_workers`` threads that share each batch sample by sample."""

    _pool: Pool
    _runs: list[Run]  # the run of this epoch, once it has started

    def __init__(self, loader: "StageLoader[Any]", guard: Guard) -> None:
        super().__init__(cast(Any, loader))  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0")
        threads.install_answers()
        if loader.sample_rng:
            rng.install()  # here, not in the first thread that needs it
        self._guard = guard
        self._in_order = loader.in_order
        self._set_up = partial(
            _set_up, self._num_workers, self._base_seed, self._dataset, loader.worker_init_fn, loader.sample_rng
        )
        self._set_up_elsewhere = partial(_set_up_elsewhere, self._base_seed, self._dataset, loader.sample_rng)
        self._num_resets = -1
        self._ring = Ring()
        self._budget = None if loader.prefetch_bytes is None else Budget(loader.prefetch_bytes)
        self._begin(loader)

    def _begin(self, loader: "StageLoader[Any]") -> None:
        """Get ready for an epoch, in the consumer's thread, without starting anything."""
        line = self._line(loader)
        is_other = hasattr(self, "_pool") and self._sites.key != key_of(line)
        if is_other:
            self.close()
        if not hasattr(self, "_pool") or self._pool.is_closed:  # closed: a start failed, or this is a forked child
            self._pool = self._new_pool(loader)
            self._sites = Sites(self._pool, key_of(line))
            self._runs = []
            self._finalizer = weakref.finalize(self, self._pool.abandon)  # holds nothing of the user's
            self._finalizer.atexit = False  # the engine ends every thread at exit
            self._crew = Crew(
                self._pool, self._guard, self._set_up, loader.worker_init_fn, self._sites, self._set_up_elsewhere
            )
        run_coroutine = run_here if self._sites.loop is None else self._sites.loop.wait_for
        self._recipe = _recipe(self, line, run_coroutine, ring=self._ring, budget=self._budget, home=self._pool)
        self._window = partial(
            window,
            cast(int, loader.prefetch_factor),
            self._num_workers,
            self._sites.num_samples,
            self._auto_collation,
            self._budget,
        )
        self._is_exhausted = False
        self._num_resets += 1
        self._seeds_of = _seeds_of(self, loader, self._num_resets) if loader.sample_rng else None

    def _line(self, loader: "StageLoader[Any]") -> Line:
        return Line(self._dataset, loader.stages)

    def _new_pool(self, loader: "StageLoader[Any]") -> Pool:
        return loader.new_pool("torchstage-fetch")

    def _reset(self, loader: "StageLoader[Any]", first_iter: bool = False) -> None:
        """Begin the next epoch with the same threads: torch calls this for ``persistent_workers=True``."""
        self._leave_run()
        super()._reset(loader, first_iter)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        self._begin(loader)

    def _next_data(self) -> Any:
        if self._pool.is_closed and not self._is_exhausted:
            raise RuntimeError(CLOSED)
        if self._is_exhausted:
            raise StopIteration
        run = self._runs[0] if self._runs else self._start()
        try:
            batch = run.next(self._timeout or None, self._attend)
        except Exhausted:
            self._end()
            raise StopIteration from None
        except TimedOut:
            raise RuntimeError(self._timed_out(run)) from None
        except Closed:
            raise RuntimeError("StageLoader: this iterator was closed while it waited for a batch.") from None
        failure, batch.failure = batch.failure, None  # its traceback may lead back to the batch
        if failure is None:
            # A thread that was called to the batch may not have looked at it yet: it must not keep what the user gets.
            value, batch.value = batch.value, None
            return value
        try:
            stage = stage_of(failure.error, failure.stage)
            raise placed(failure.error, place(batch, stage, failure.slot, self._dataset))
        finally:
            del failure, batch  # its traceback refers to this frame: let nothing here refer back to it

    def _start(self) -> Run:
        """Start the threads and admit the window, inside the first ``__next__``: Lightning calls iter() too early."""
        try:
            if self._seeds_of is not None:
                self._recipe = replace(self._recipe, seeds=self._seeds_of())
            places = self._places() if self._seeds_of is not None else None
            source = Source(self._sampler_iter, Plan(self._recipe, plain), places)
            run = Run(self._pool, source, self._window, self._in_order, is_elastic=self._budget is not None)
            self._runs.append(run)
            self._crew.start(run, self._recipe, source.follow)
        except BaseException:
            self._close(0.0)
            raise
        return run

    def _attend(self) -> float:
        try:
            return self._crew.attend()
        except BaseException:  # a thread that it wanted to start did not
            self._close(0.0)
            raise

    def _timed_out(self, run: Run) -> str:
        """torch's words, then what is late and the stack of the thread that is on it."""
        words = f"DataLoader timed out after {self._timeout} seconds"
        late = run.late()
        if late is None:
            return words
        batch, slot, worker = late
        stage = batch.chain.finish[0][0] if slot < 0 else worker.stage if worker else batch.chain.segments[0].stage
        words += f": {place(batch, stage, slot if slot >= 0 else None, self._dataset)} is late"
        return words + (f", in thread {worker.thread.name}, which is here:\n{stack_of(worker)}" if worker else ".")

    def _leave_run(self) -> None:
        for run in self._runs:
            run.abandon()
        self._runs = []

    def _end(self) -> None:
        """Every batch was handed out. Threads that are not kept for the next epoch end here; none is in user code."""
        self._leave_run()
        self._is_exhausted = True
        if not self._persistent_workers:
            self._close(CLOSE_WAIT_SECONDS)

    def _close(self, wait_seconds: float) -> list[Worker]:
        self.abandon()
        self._crew.forget()
        return self._pool.join(time.monotonic() + wait_seconds)

    @property
    def _workers(self) -> list[threads.Handle]:
        """The threads as frameworks look at torch's worker processes; also before they have started."""
        pool = self._pool
        return [threads.Handle(pool.workers, number, pool.abandon) for number in range(self._num_workers)]

    def abandon(self) -> None:
        """Let the threads end as soon as they are out of user code. Waits for nothing."""
        self._pool.abandon()
        self._leave_run()

    def close(self) -> None:
        """End the threads and wait for them; one that stays in user code for 1.5 s is named in a warning and let go."""
        warn_of(self._close(CLOSE_WAIT_SECONDS))

    _shutdown_workers = close  # the name by which frameworks know it


def _set_up(
    num_workers: int,
    base_seed: int,
    dataset: Any,
    init_fn: Callable[[int], None] | None,
    has_scope: bool,
    number: int,
    privates: dict[int, Private],
) -> None:
    own = privates.pop(number, None)
    if own is not None:
        init_fn = own.roots.get("worker_init_fn", init_fn)  # it may be bound to the dataset: then to this thread's
    threads.set_up(number, num_workers, base_seed, dataset, init_fn, own, has_scope=has_scope)


def _set_up_elsewhere(
    base_seed: int, dataset: Any, has_scope: bool, number: int, num_threads: int, own: Private | None
) -> None:
    """Of threads that run single stages: no worker_init_fn, which is for those that have a dataset."""
    threads.set_up(number, num_threads, base_seed, dataset, None, own, has_scope=has_scope)


def warn_of(stuck: list[Worker]) -> None:
    """Name each thread that is still in user code although its pool was closed."""
    for worker in stuck:
        warnings.warn(
            f"StageLoader: thread {worker.thread.name} is still in {worker.place()}; it ends when that returns.",
            RuntimeWarning,
            stacklevel=4,
        )
