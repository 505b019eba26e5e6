"""Iterators: a loader in, its batches out, one epoch at a time, made by threads.

They are torch's ``_BaseDataLoaderIter``, which makes the sampler's iterator and draws the base seed.

Guarantees: nothing starts before the first ``__next__``; dropping the iterator ends its threads, and no thread refers
to it; an error is raised in its place in the order and does not end the epoch.
"""

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torchstage import rng, threads
from torchstage.ahead import Ahead
from torchstage.assembly import plain
from torchstage.budget import Budget
from torchstage.buffers import Ring
from torchstage.copies import Private
from torchstage.crew import Crew
from torchstage.engine.deadlines import Deadlines, StageTimeout
from torchstage.engine.early import Early
from torchstage.engine.executors import InExecutor, stage_of
from torchstage.engine.pipeline import Admission, Closed, Exhausted, Pool, Run, TimedOut
from torchstage.engine.segment import Worker
from torchstage.engine.stuck import Running
from torchstage.engine.ticket import Batch
from torchstage.errors import place, placed, stack_of
from torchstage.isolation import Guard
from torchstage.line import InProcesses, Line, Where
from torchstage.lineup import Lined, finish_names, lineup_of
from torchstage.loader_iterator import CLOSED, LoaderIterator, recipe_of, seeds_of_epoch
from torchstage.modes import Modes
from torchstage.placement.choice import Choice
from torchstage.placement.parts import Asked
from torchstage.placement.placement import placement_of
from torchstage.plan import Plan, window
from torchstage.processes import HAS_PROCESSES, Hired
from torchstage.programs import Surroundings
from torchstage.sites import Sites, key_of
from torchstage.switching import Switch
from torchstage.timeouts import Timeouts
from torchstage.transfer import explain_fork
from torchstage.upcoming import Upcoming
from torchstage.worker_info import install_answers

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

BRIEF_SECONDS = 0.2  # for processes that are up: longer than a small dataset takes to send; else threads begin
CLOSE_WAIT_SECONDS = 1.5  # for user code at close(): a caller is told within two seconds what is stuck


class ThreadedIterator(LoaderIterator):
    """Batches made by ``num_workers`` threads that share each batch sample by sample."""

    _pool: Pool
    _runs: list[Run]  # the run of this epoch, once it has started
    _hired: Hired  # processes
    _persistent_workers: bool
    _trial_since: float | None = None  # when the first samples, which this thread waits for, were begun
    _deadlines: Deadlines | None = None  # of what is in the making, if any of it has one

    def __init__(self, loader: "StageLoader[Any]", guard: Guard) -> None:
        super().__init__(loader)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0")
        install_answers()
        if loader.sample_rng:
            rng.install()  # here, not in the first thread that needs it
        self._guard = guard
        self._in_order = self._keeps_order = loader.in_order
        self._set_up = partial(
            _set_up, self._num_workers, self._base_seed, self._dataset, loader.worker_init_fn, loader.sample_rng
        )
        self._set_up_elsewhere = partial(_set_up_elsewhere, self._base_seed, self._dataset, loader.sample_rng)
        self._num_resets = -1
        self._init_fn = loader.worker_init_fn
        self._has_scopes = loader.sample_rng
        self._ring = Ring()
        self._running = Running()
        self._budget = None if loader.prefetch_bytes is None else Budget(loader.prefetch_bytes)
        self._upcoming = Upcoming.of(loader)
        self._early = None if self._upcoming is None else Early()
        self._begin(loader)

    def _begin(self, loader: "StageLoader[Any]") -> None:
        """Get ready for an epoch, in the consumer's thread, without starting anything."""
        self._placement = placement_of(loader.ledger)
        self._asked = Asked.of(loader)
        self._ledger = loader.ledger
        if not hasattr(self, "_hired") or self._hired.is_over:
            self._hire(loader)
        line = self._line(loader)
        if hasattr(self, "_pool") and self._key != key_of(line):
            self.close()
            self._hire(loader)
            line = self._line(loader)
        self._key, whole = key_of(line), line.whole_where
        if not hasattr(self, "_pool") or self._pool.is_closed:  # closed: a start failed, or this is a forked child
            self._pool = self._new_pool(loader) if whole is None else loader.new_pool("torchstage-receive", 1)
            self._sites = Sites(self._pool, self._key if whole is None else ())
            self._pool.annexes.append(self._hired)
            self._runs = []
            self._finalizer = weakref.finalize(self, self._pool.abandon)  # holds nothing of the user's
            self._finalizer.atexit = False  # the engine ends every thread at exit
            self._crew = Crew(
                self._pool,
                self._guard,
                self._set_up,
                loader.worker_init_fn,
                self._sites,
                self._set_up_elsewhere,
                self._placement,
                self._hired.is_up,
            )
        self._whole = None if whole is None else self._made_in(whole)
        self._modes = Modes.of_this_thread()
        route = loader.route()
        run_coroutine: Callable[[Any], Any] = loader.run_here
        self._recipe = recipe_of(
            self,
            line,
            run_coroutine,
            ring=self._ring,
            budget=self._budget,
            home=self._pool,
            route=route,
            tolerance=self._tolerance(line),
        )
        self._timeouts = Timeouts.of(
            line, self._running, is_batched=self._auto_collation, covers_all=self._gives_up_late(loader)
        )
        self._recipe = replace(self._recipe, limits=self._timeouts.limits)
        self._deadlines = self._crew.deadlines = self._timeouts.deadlines(
            *(self._sites, self._hired, self._dataset, self._guard.stuck, self._crew.replace),
            self._crew.why_not_replace,
        )
        if self._sites.loop is not None:
            waiting = partial(self._sites.loop.wait_for, enter=self._recipe.enter)
            self._recipe = replace(self._recipe, run_coroutine=waiting)
        self._window = partial(
            window,
            cast(int, loader.prefetch_factor),
            self._num_workers,
            0 if whole is not None else self._sites.num_samples,
            self._auto_collation,
            self._budget,
        )
        self._ahead = None if route is None else Ahead(route, self._in_order, loader.ledger.probes)
        self._finish = finish_names(pins=self._recipe.pin is not None, moves=route is not None)
        loader.ledger.lineup = self._lineup(line, self._finish)
        self._is_exhausted = False
        self._num_resets += 1
        if (resume := self._epoch.resume) is not None:
            self._num_resets = resume.repeat
        self._seeds_of = seeds_of_epoch(self, loader, self._num_resets) if loader.sample_rng else None

    @property
    def _surroundings(self) -> Surroundings:
        """What processes are to what they run in this epoch."""
        return Surroundings(self._base_seed, self._has_scopes, self._modes)

    def _hire(self, loader: "StageLoader[Any]") -> None:
        self._hired = loader.hire()
        self._switch: Switch | None = None  # to some of these; it may take longer than the epoch that it was begun in

    def _lineup(self, line: Line, finish: Sequence[str]) -> tuple[Lined, ...]:
        is_batched: bool = self._auto_collation
        whole = None if self._whole is None else self._whole.site
        return lineup_of(line, self._sites, self._pool.site, is_batched=is_batched, finish=finish, whole=whole)

    def _made_in(self, where: Where) -> InExecutor:
        """The place where processes make whole batches."""
        return self._sites.whole(where, partial(self._hired.of(None, None).submit_batch, self._ledger.probes))

    def _line(self, loader: "StageLoader[Any]") -> Line:
        self._stages = loader.stages
        if loader.is_in_processes:
            return Line(
                self._dataset, self._stages, InProcesses(self._hired.of, True, frozenset(range(len(self._stages))))
            )
        return Line(self._dataset, self._placement.arranged(self._stages), InProcesses(self._hired.of))

    def _moved_by(self, choice: Choice) -> InProcesses:
        numbers = {unit.number for unit in choice.units if unit.method == "process"}
        return InProcesses(self._hired.of, None in numbers, frozenset(n for n in numbers if n is not None))

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
        run = self._runs[0] if self._runs else self._start_timed()
        while (batch := self._next_batch(run)).is_left_out and batch.failure is None:
            self._count_out(batch)
        self._count_out(batch)
        if self._steps is not None:
            self._steps.number = batch.number
        failure, batch.failure = batch.failure, None  # its traceback may lead back to the batch
        if failure is None:
            # A thread that was called to the batch may not have looked at it yet: it must not keep what the user gets.
            value, batch.value = batch.value, None
            self._epoch.bad.num_good += batch.num_made
            if self._steps is not None:
                self._steps.num_samples += batch.num_made
            return value
        try:
            stage = stage_of(failure.error, failure.stage)
            explain_fork(failure.error, self._dataset)
            raise placed(failure.error, place(batch, stage, failure.slot, self._dataset, failure.sample))
        finally:
            del failure, batch  # its traceback refers to this frame: let nothing here refer back to it

    def _next_batch(self, run: Run) -> Batch:
        """The batch whose turn it is, where it is to be, with what is to be said of it."""
        batch: Batch | None = None
        with suppress(Exhausted):
            batch = self._next_in_time(run)
        if batch is None:
            if self._regroup is not None:
                self._end_groups(self._regroup)
            self._end()
            raise StopIteration
        if self._ahead is not None:
            try:
                self._ahead.hand_out(batch, run.in_flight)
            except BaseException:  # Ctrl-C: the batch is not lost
                run.put_back(batch)
                raise
        if batch.bad:
            self._note_bad_of(batch)
        return batch

    def _next_in_time(self, run: Run) -> Batch:
        while True:
            try:
                return run.next(self._timeout or None, self._attend)
            except Closed:
                raise RuntimeError("StageLoader: this iterator was closed while it waited for a batch.") from None
            except TimedOut:
                if self._on_error == "raise" or not self.give_up_late(run):
                    raise RuntimeError(self._timed_out(run)) from None

    def _count_out(self, batch: Batch) -> None:
        """The caller gets it, or it is left out."""
        if self._regroup is None:
            self._handed_out(batch.number)
        else:
            self._group_handed_out(batch)
        if self._placement.is_pending:
            self._placement.handed_out(batch.num_made, self._num_left(batch))
            self._begin_switch()

    def _start_timed(self) -> Run:
        begin = time.perf_counter()
        run = self._start()
        self._trial_since = begin if run.is_on_trial else None
        if self._steps is not None and not run.is_on_trial:
            self._steps.setup_seconds += time.perf_counter() - begin
        return run

    def _start(self) -> Run:
        """Start the threads and admit the window, inside the first ``__next__``: Lightning calls iter() too early."""
        try:
            self._epoch.is_started = True
            self._epoch.begin()
            if self._seeds_of is not None:
                seeds = self._seeds_of(self._epoch.number)
                self._epoch.repeat = seeds.repeat
                self._recipe = replace(self._recipe, seeds=seeds)
            self._hired.send(self._recipe, self._surroundings, self._init_fn, keeps=self._persistent_workers)
            places = self.places() if self._seeds_of is not None else None
            source = self._source_of(Plan(self._recipe, plain, made_in=self._whole), places)
            position = self._epoch.position
            self._regroup = self._regrouping(
                lambda batch: position.begin_of(batch.number), lambda: source.plan.group_chain
            )
            if self._upcoming is not None and self._early is not None:
                self._upcoming.follow(self._epoch, source, self._base_seed, self._num_resets, self._early)
            run = self._new_run(source)
            self._runs.append(run)
            self._source = source
            if self._whole is None:
                self._crew.start(run, self._recipe, source.follow, self._asked, self._go_on_in_processes)
                self._begin_switch()
            else:
                self._pool.start(1, partial(self._set_up_elsewhere, num_threads=1, own=None))
                run.fill()
        except BaseException:
            self._close(0.0)
            raise
        return run

    def _new_run(self, source: Iterator[Admission | None]) -> Run:
        steps = self._steps
        if steps is not None:
            steps.look = _looking_at(weakref.ref(self))
            steps.num_bytes = partial(_bytes_of_a_batch, self._budget)
        return Run(
            self._pool,
            source,
            self._window,
            self._in_order,
            steps=steps,
            is_elastic=self._budget is not None,
            after=None if self._ahead is None else self._ahead.begin,
            regroup=self._regroup,
            early=self._early,
        )

    def _begin_switch(self) -> None:
        """If it pays to have processes, have them get ready, or be told what they run in this epoch. Until they are,
        threads go on, and what cannot be sent changes nothing."""
        choice = self._placement.moves
        if choice is None or self._switch is not None or self._recipe.line.has_moved:
            return
        if not HAS_PROCESSES:
            self._placement.refused("this system cannot send memory from one process to another")
            return
        joins = self._crew.draws_as_now()
        if not joins and self._persistent_workers:  # its threads keep the states that they know
            return
        line = Line(self._dataset, self._stages, self._moved_by(choice))
        recipe = replace(self._recipe, line=line)
        self._switch = Switch(
            line,
            self._hired,
            partial(self._hired.send, recipe, self._surroundings, self._init_fn, keeps=True),
            joins=joins,
        )
        self._pool.annexes.append(self._switch)
        self._switch.start()

    def _go_on_in_processes(self) -> None:
        """At the begin of an epoch: processes that an earlier one had are told within a few milliseconds."""
        self._begin_switch()
        switch = self._switch
        if switch is not None and self._hired.were_up():
            switch.wait(BRIEF_SECONDS)
            self._look_at_switch(switch)

    def _look_at_switch(self, switch: Switch) -> None:
        """At a batch border."""
        if (why_not := switch.why_not) is not None:
            self._switch = None
            self._placement.refused(why_not)
            self._placement.limit(self._pool)
        elif switch.is_ready and self._crew.is_settled:
            self._switch = None
            line = switch.line
            self._recipe = replace(self._recipe, line=line)
            if (whole := line.whole_where) is not None:
                self._whole = self._made_in(whole)
                self._source.follow(Plan(self._recipe, plain, made_in=self._whole))
            else:
                self._sites.add(key_of(line))
                self._crew.follow(self._recipe)
            self._pool.parking.allow(self._pool.num_threads)  # what held the GIL is gone from here
            self._ledger.lineup = self._lineup(line, self._finish)

    def _attend(self) -> float:
        # Where no thread is started or called, Ctrl-C leaves nothing half done that the next look would not mend.
        is_harmless = self._crew.is_tried and self._switch is None and self._deadlines is None
        try:
            if self._switch is not None:
                self._look_at_switch(self._switch)
            call_again = self._crew.attend()
            if self._deadlines is not None:
                call_again = min(call_again, self._deadlines.look())
            runs = self._runs  # another thread may close this iterator
            if self._trial_since is not None and runs and not runs[0].is_on_trial:
                since, self._trial_since = self._trial_since, None
                if self._steps is not None:
                    self._steps.setup_seconds += time.perf_counter() - since
            return call_again
        except StageTimeout:  # of one that nobody could take the place of: it may come yet
            raise
        except BaseException as error:  # a thread that it wanted to start did not
            if not (isinstance(error, KeyboardInterrupt) and is_harmless):
                self._close(0.0)
            raise

    def _timed_out(self, run: Run) -> str:
        """torch's words, then what is late and the stack of the thread that is on it."""
        words = f"DataLoader timed out after {self._timeout} seconds"
        late = run.late()
        if late is None:
            return words
        batch, slot, stage, worker = late
        future = None if self._whole is None or slot < 0 else self._whole.future_of(batch, slot)
        pid, sample = (None if future is None else self._hired.place_of(future)) or (None, None)
        words += f": {place(batch, stage, slot if slot >= 0 else None, self._dataset, sample)} is late"
        if pid is not None:
            return words + f", in process {pid}."
        if not self._hired.is_up():
            words += " (processes of the loader are still starting)"
        return words + (f", in thread {worker.thread.name}, which is here:\n{stack_of(worker)}" if worker else ".")

    def _gives_up_late(self, loader: "StageLoader[Any]") -> bool:
        """Whether a sample that does not come in ``timeout`` seconds is a bad one, and no error of the loader."""
        return bool(self._timeout) and getattr(loader, "on_error", "raise") != "raise"

    def give_up_late(self, run: Run) -> bool:
        """The batch whose turn it is did not come in ``timeout`` seconds: fail the lowest of its samples that is
        missing with StageTimeout, and have another thread, or process, in the place of who is stuck in it. False if
        nobody is in it: it waits for a thread, or the batch is being collated. In the consumer's thread."""
        late = run.late()
        if late is None or self._deadlines is None:
            return False
        batch, slot, _, _ = late
        if self._deadlines.give_up(batch, slot, self._timeout):
            return True
        workers = [worker for worker in self._pool.workers if worker.batch is not None]
        if any(worker.batch is batch for worker in workers):
            return False
        # It waits for a thread, and comes before all else: each has been in its sample for as long.
        return any(
            self._deadlines.give_up(worker.batch, worker.slot, self._timeout)
            for worker in workers
            if worker.batch is not None and worker.slot >= 0
        )

    def _num_left(self, batch: Batch) -> int | None:
        """How many samples the epoch has after this batch; None where its sampler has no length."""
        try:
            return max(0, len(self._index_sampler) - batch.number - 1) * max(1, batch.num_made)
        except TypeError:
            return None

    def _leave_run(self) -> None:
        for run in self._runs:
            run.abandon()
        self._runs = []

    def _end(self) -> None:
        """Every batch was handed out. Threads that are not kept for the next epoch end here; none is in user code."""
        self._crew.end_epoch()
        self._leave_run()
        self._is_exhausted = self._epoch.is_over = True
        if not self._persistent_workers:
            self.abandon()
            self._crew.forget()
            self._pool.join_working(time.monotonic() + CLOSE_WAIT_SECONDS)  # who was given up is named by close
        self._report_bad()

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
        if self._early is not None:
            self._early.drop()

    def close(self) -> None:
        """End the threads and wait for them; one that stays in user code for 1.5 s is named in a warning and let go."""
        warn_of(self._close(CLOSE_WAIT_SECONDS))

    _shutdown_workers = close  # the name by which frameworks know it


def _looking_at(iterator: Callable[[], Any]) -> Callable[[], list[Batch]]:
    """Tells what an iterator has in flight, while it is there."""

    def look() -> list[Batch]:
        known = iterator()
        runs: list[Run] = getattr(known, "_runs", [])
        early: Early | None = getattr(known, "_early", None)
        in_flight = [batch for run in runs for batch in run.in_flight.listed()]
        return in_flight if early is None else in_flight + early.listed()

    return look


def _bytes_of_a_batch(budget: Budget | None) -> int | None:
    return None if budget is None else budget.largest_batch


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
