"""Iterators: a loader in, its batches out, one epoch at a time, made by threads.

They are torch's ``_BaseDataLoaderIter``, which makes the sampler's iterator and draws the base seed.

Guarantees: nothing starts before the first ``__next__``; dropping the iterator ends its threads, and no thread refers
to it; an error is raised in its place in the order and does not end the epoch.
"""

import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng, threads
from torchstage.ahead import Ahead, moved_at_once
from torchstage.assembly import plain
from torchstage.budget import Budget
from torchstage.buffers import Ring
from torchstage.copies import Private
from torchstage.crew import Crew
from torchstage.engine.executors import stage_of
from torchstage.engine.pipeline import Admission, Closed, Exhausted, Pool, Run, TimedOut
from torchstage.engine.segment import Worker
from torchstage.epoch import Epoch
from torchstage.errors import place, placed, stack_of
from torchstage.isolation import Guard
from torchstage.line import Line
from torchstage.modes import Modes
from torchstage.order import Places, can_repeat, samplers_of, seeds_of
from torchstage.plan import Plan, Recipe, Source, window
from torchstage.resumed import Resumed
from torchstage.seeds import Seeds
from torchstage.sites import Sites, key_of
from torchstage.transfer import Route, pinned
from torchstage.worker_info import install_answers

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

CLOSED = (
    "StageLoader: this iterator is closed, or belongs to the process that this one was forked from. "
    "Call iter(loader) for a new one."
)
CLOSE_WAIT_SECONDS = 1.5  # for user code at close(): a caller is told within two seconds what is stuck


def recipe_of(
    iterator: Any,
    line: Line,
    run_coroutine: Callable[[Any], Any],
    *,
    ring: Ring | None = None,
    budget: Budget | None = None,
    home: Pool | None = None,
    route: Route | None = None,
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
        home=home,
    )


_is_profiled: Callable[[], bool] = vars(torch.autograd)["_profiler_enabled"]  # torch leaves it untyped


class LoaderIterator(_BaseDataLoaderIter):
    """What both have in common. The annotations are of torch's own attributes, which it leaves untyped."""

    _dataset: Any
    _collate_fn: Any
    _sampler_iter: Any
    _base_seed: Any
    _samplers: tuple[Any, ...]  # ours
    _epoch: Epoch

    def __init__(self, loader: "StageLoader[Any]") -> None:
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

    def _source_of(self, plan: Plan, places: Places | None) -> Source:
        if places is not None:
            self._sampler_iter.on_skipped = partial(Source.skip, plan, places)
        return Source(self._sampler_iter, plan, places)

    def __next__(self) -> Any:
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


class ThreadedIterator(LoaderIterator):
    """Batches made by ``num_workers`` threads that share each batch sample by sample."""

    _pool: Pool
    _runs: list[Run]  # the run of this epoch, once it has started

    def __init__(self, loader: "StageLoader[Any]", guard: Guard) -> None:
        super().__init__(loader)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0")
        install_answers()
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
        route = loader.route()
        run_coroutine: Callable[[Any], Any] = loader.run_here
        self._recipe = recipe_of(
            self, line, run_coroutine, ring=self._ring, budget=self._budget, home=self._pool, route=route
        )
        if self._sites.loop is not None:
            waiting = partial(self._sites.loop.wait_for, enter=self._recipe.enter)
            self._recipe = replace(self._recipe, run_coroutine=waiting)
        self._window = partial(
            window,
            cast(int, loader.prefetch_factor),
            self._num_workers,
            self._sites.num_samples,
            self._auto_collation,
            self._budget,
        )
        self._ahead = None if route is None else Ahead(route, self._in_order)
        self._is_exhausted = False
        self._num_resets += 1
        if (resume := self._epoch.resume) is not None:
            self._num_resets = resume.repeat
        self._seeds_of = seeds_of_epoch(self, loader, self._num_resets) if loader.sample_rng else None

    def _line(self, loader: "StageLoader[Any]") -> Line:
        return Line(self._dataset, loader.stages)

    def _new_pool(self, loader: "StageLoader[Any]") -> Pool:
        return loader.new_pool("torchstage-fetch")

    def _reset(self, loader: "StageLoader[Any]", first_iter: bool = False) -> None:
        """Begin the next epoch with the same threads: torch calls this for ``persistent_workers=True``."""
        self._leave_run()
        super()._reset(loader, first_iter)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        self._follow()
        self._begin(loader)

    @property
    def next_base_seed(self) -> tuple[int, int]:
        """The base seed of the next epoch of these threads, and which of their epochs that is."""
        return self._base_seed, self._num_resets + 1

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
        if self._ahead is not None:
            try:
                self._ahead.hand_out(batch, run.in_flight)
            except BaseException:  # Ctrl-C: the batch is not lost
                run.put_back(batch)
                raise
        self._handed_out(batch.number)
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
            self._epoch.is_started = True
            self._epoch.begin()
            if self._seeds_of is not None:
                seeds = self._seeds_of(self._epoch.number)
                self._epoch.repeat = seeds.repeat
                self._recipe = replace(self._recipe, seeds=seeds)
            places = self.places() if self._seeds_of is not None else None
            source = self._source_of(Plan(self._recipe, plain), places)
            run = self._new_run(source)
            self._runs.append(run)
            self._crew.start(run, self._recipe, source.follow)
        except BaseException:
            self._close(0.0)
            raise
        return run

    def _new_run(self, source: Iterator[Admission | None]) -> Run:
        return Run(
            self._pool,
            source,
            self._window,
            self._in_order,
            is_elastic=self._budget is not None,
            after=None if self._ahead is None else self._ahead.begin,
        )

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
        batch, slot, stage, worker = late
        words += f": {place(batch, stage, slot if slot >= 0 else None, self._dataset)} is late"
        return words + (f", in thread {worker.thread.name}, which is here:\n{stack_of(worker)}" if worker else ".")

    def _leave_run(self) -> None:
        for run in self._runs:
            run.abandon()
        self._runs = []

    def _end(self) -> None:
        """Every batch was handed out. Threads that are not kept for the next epoch end here; none is in user code."""
        self._leave_run()
        self._is_exhausted = self._epoch.is_over = True
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
