"""Crew: a pool, a dataset and a guard in, threads at work out, each with what it must not share.

Guarantees: the first two samples ever are made by thread 0 alone, and are judged before the next begins; the other
threads come in when that says how; a crew that was let in too early has its work done again where it may be wrong.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

from torchstage import rng, threads
from torchstage.assembly import plain
from torchstage.copies import SEEDED, Private
from torchstage.engine.deadlines import Deadlines
from torchstage.engine.parking import PERIOD_SECONDS
from torchstage.engine.pipeline import Pool, Run
from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch
from torchstage.errors import warn_user
from torchstage.first import NUM_LOOKED_AT, FirstSamples
from torchstage.isolation import Guard, Trial, hold_new_generators
from torchstage.looking import is_a
from torchstage.placement.parts import Asked
from torchstage.placement.placement import Placement
from torchstage.plan import Plan, Recipe
from torchstage.search import Search
from torchstage.seeds import digest_of
from torchstage.sites import SetUp, Sites

FIRST_SAMPLE_SECONDS = 2.0  # how long the other threads are kept out for each of the first samples
STUCK_INSIDE = (
    "The dataset is used by one thread at a time (isolation), and that one is stuck in it: no other may take its "
    "place. Ways out: open what it holds inside __getitem__; isolation='shared' if it is safe to share; or "
    "worker_method='multiprocessing', where a process that is stuck is replaced."
)


class Crew:
    """The threads of one iterator, for one epoch after another."""

    def __init__(
        self,
        pool: Pool,
        guard: Guard,
        set_up: Callable[[int, dict[int, Private]], None],
        init_fn: Any,
        sites: Sites,
        set_up_elsewhere: SetUp,
        placement: Placement,
        is_up: Callable[[], bool],
    ) -> None:
        """``is_up``: whether the processes that samples go through have started."""
        self._pool = pool
        self._sites = sites
        self._set_up_elsewhere = set_up_elsewhere
        self._is_up = is_up
        self._of_others: Iterator[Private | None] = repeat(None)
        self._init_fn = init_fn
        self._guard = guard
        self._privates: dict[int, Private] = {}  # of threads that have not started yet
        self._set_up = partial(_set_up, set_up, self._privates)
        self._looks = False  # whether any thread has something of its own
        self._first: FirstSamples | None = None
        self._placement = placement
        self.deadlines: Deadlines | None = None  # of what its threads are in
        self._held: tuple[bytes, ...] | None = None  # the states that the generators of the first copies were in

    def start(
        self,
        run: Run,
        recipe: Recipe,
        admit_by: Callable[[Plan], None],
        asked: Asked,
        before_any: Callable[[], None],
    ) -> None:
        """Have threads for an epoch and batches for them, in the consumer's thread. ``admit_by`` is told the plan for
        the next batches. ``before_any``: called when the threads are there, before the sampler is asked; it may have
        another plan followed."""
        self._run, self._recipe, self._admit_by, self._asked = run, recipe, admit_by, asked
        self._placement.limit(self._pool)
        guard = self._guard
        guard.notice(recipe.line.dataset)
        self._give_own()  # before the sampler is asked: it may change the dataset
        if guard.is_serial and guard.stuck.is_inside:
            raise RuntimeError(STUCK_INSIDE)
        if guard.is_tried or guard.is_serial or self._pool.num_started > 1:  # threads that were kept are not alone
            self._measure()
            self._call_in()
            before_any()
            run.fill()
        else:
            self._begin_trial(run)

    def _begin_trial(self, run: Run) -> None:
        """Have the first samples made. From here until they are judged this thread does nothing but wait: whatever
        changes in the dataset meanwhile, the samples changed."""
        own, recipe = self._privates.get(0), self._recipe
        roots = recipe.roots
        if own is not None:
            roots = {name: own.roots[name] for name in roots}
        self._first = first = FirstSamples(run.wake)
        self._admit_by(Plan(recipe, self._guard.serialised, looks=True, first=first))
        run.is_on_trial = True
        run.fill()
        of_first = Trial(self._guard, roots)
        self._warn_of_draws(of_first)
        first.begin(of_first.look, partial(_judge, self._pool, of_first), of_first.go_on, FIRST_SAMPLE_SECONDS)
        self._sites.start_loop(self._set_up_elsewhere)
        self._pool.start(1, self._set_up)
        run.call_to_first(NUM_LOOKED_AT)

    def _warn_of_draws(self, of_first: Trial) -> None:
        if self._recipe.seeds is not None and (names := of_first.uncontrolled(rng.uncontrolled)):
            warn_user(
                f"StageLoader: {', '.join(names)} draws from the process's random generator in every thread, because "
                "it was imported by name. Such draws depend on timing. Call it through its module, as in "
                "numpy.random.rand(), or draw from torchstage.sample_rng()."
            )

    def attend(self) -> float:
        """What the consumer looks after when it is about to wait; in how many seconds it wants to be called again."""
        first = self._first
        if first is None:
            if self._placement.is_measuring and self._placement.attend(self._run):
                self._run.call_threads()
            return PERIOD_SECONDS
        if first.is_made:
            self._first = None
            self._placement.sizes.update(first.sizes)
            self._conclude(first.is_judged)
            return PERIOD_SECONDS
        if self._run.was_left_on_trial:  # the user had a batch, and may have changed the dataset
            self._run.was_left_on_trial = False
            first.go_on()
        if self._pool.is_idle and not self._run.call_to_first(NUM_LOOKED_AT):  # after a sample that failed, more
            first.end()
        if not self._is_up():  # the first sample may have to wait for that
            first.deadline = max(first.deadline, time.monotonic() + FIRST_SAMPLE_SECONDS)
        patience = first.deadline - time.monotonic()
        if patience > 0:
            return min(patience, PERIOD_SECONDS)
        if self._pool.num_started < self._pool.num_threads and first.stop_waiting():
            self._pool.start(self._pool.num_threads, self._set_up)  # a dataset may wait for its other threads
            self._run.call_threads()
        return PERIOD_SECONDS

    def _measure(self) -> None:
        """Have it measured what the stages are like, unless that is known or of no use."""
        if self._placement.needs_measuring(self._recipe.line, self._asked):
            self._placement.begin(
                self._recipe.line, self._asked, self._pool, self._run, is_serial=self._guard.is_serial
            )

    def end_epoch(self) -> None:
        """Every batch was handed out."""
        if self._placement.is_measuring:
            self._placement.end_epoch(self._run)

    @property
    def is_settled(self) -> bool:
        """Whether the threads have come in, so that the plan may be another one."""
        return self._first is None and not self._placement.is_measuring

    @property
    def is_tried(self) -> bool:
        """Whether the first samples are made and judged."""
        return self._first is None

    def draws_as_now(self) -> bool:
        """Whether copies that are made now draw what those of the threads draw. Not so if the sampler, or the user, has
        drawn since from a generator that the dataset holds."""
        if not self._held or self._recipe.seeds is None:
            return True
        try:
            graph = Search(is_first=True).run(**self._recipe.roots)
            return {*self._held} <= {digest_of(one.value) for one in graph.generators if is_a(one.value, *SEEDED)}
        except Exception:  # the user changes the dataset just now
            return False

    def replace(self, pool: Pool, worker: Worker) -> None:
        """Have another thread in the place of one that is stuck, with copies of its own of what that one had for its
        own, as the user's objects are now; its draws are those of the one before. In the consumer's thread."""
        first, own = self._first, self._own_anew() if self._looks else None
        if pool is self._pool:
            if own is not None:
                self._privates[worker.number] = own
            pool.replace(worker, self._set_up)
        else:
            self._sites.replace(pool, worker, self._set_up_elsewhere, own)
        if first is not None:
            first.give_up(worker.thread.ident)
            self._pool.start(self._pool.num_threads, self._set_up)
        self._run.call_again()

    def _look_at_late(self) -> None:
        """While it is waited for threads that nobody can take the place of."""
        if self.deadlines is not None and self.deadlines.has_late:
            raise RuntimeError(STUCK_INSIDE)

    def _own_anew(self) -> Private | None:
        copies = self._guard.privates(1, self._recipe.roots, self._init_fn)
        if self._guard.is_serial:  # what was found now, nobody may share
            raise RuntimeError(STUCK_INSIDE)
        if not copies:
            return None
        own, held = copies[0], self._held
        if held is not None and len(held) == len(own.held):  # the user, or the sampler, may have drawn from them since
            own.held = [(generator, digest) for (generator, _), digest in zip(own.held, held, strict=True)]
        return own

    def why_not_replace(self, batch: Batch) -> str | None:
        """Why no other thread could take the place of one that is stuck in this batch, in words; None: another one can;
        "": it cannot, which is said when it is the batch's turn."""
        if not self._guard.is_serial:
            return None
        is_its_turn = next(iter(self._run.in_flight), None) is batch
        return f"{STUCK_INSIDE} It is waited for again." if is_its_turn else ""

    def follow(self, recipe: Recipe) -> None:
        """Have the next batches made by this recipe."""
        self._recipe = recipe
        self._call_in()

    def forget(self) -> None:
        """Let go of what was ready for threads that will not come any more."""
        self._placement.leave(self._pool)
        self._privates.clear()

    def _conclude(self, is_judged: bool) -> None:
        """Thread 0 made the first samples: let the other threads in, unless they opened what they must not share."""
        guard, was_alone = self._guard, self._pool.num_started == 1 and not self._pool.given_up
        guard.is_tried = is_judged
        if guard.is_serial and guard.stuck.is_inside:
            raise RuntimeError(STUCK_INSIDE)
        if guard.changing:
            self._looks = True
            self._privates.clear()  # they lack what was found since
        if self._looks or guard.is_serial:  # else the judge has just found that there is nothing to copy
            self._give_own()
        self._measure()
        plan = self._call_in()
        if was_alone or not guard.is_serial:
            if self._sites.has_others and not guard.is_serial:
                self._run.rebind(plan.chain_like)
            self._run.call_threads()
        else:  # it took so long that they are in: what they made meanwhile may be wrong
            self._run.redo(plan.chain_like, self._look_at_late)

    def _give_own(self) -> None:
        """Have copies ready for the threads that have not started yet, if they must not share."""
        guard, recipe = self._guard, self._recipe
        numbers = [n for n in range(self._pool.num_started, self._pool.num_threads) if n not in self._privates]
        num_others = self._sites.num_to_start
        if numbers or num_others:
            copies = guard.privates(len(numbers) + num_others, recipe.roots, self._init_fn)
            if copies and self._held is None:
                self._held = tuple(digest for _, digest in copies[0].held)
            self._privates.update(zip(numbers, copies, strict=False))
            self._of_others = chain(copies[len(numbers) :], repeat(None))
            self._looks = self._looks or bool(copies)
        elif not self._looks:
            guard.must_serialise(recipe.roots)
        guard.warn(is_heard=self._pool.num_threads > 1)

    def _call_in(self) -> Plan:
        """Start the threads that may work, and have the next batches made in the way that was decided."""
        guard = self._guard
        if guard.is_serial:
            plan = Plan(self._recipe, guard.serialised, looks=self._looks)
        else:
            plan = Plan(self._recipe, plain, looks=self._looks, sites=self._sites)
        self._admit_by(plan)
        if guard.is_serial:
            self._sites.start_loop(self._set_up_elsewhere)
        else:
            self._sites.start(self._set_up_elsewhere, self._of_others)
        self._pool.start(1 if guard.is_serial else self._pool.num_threads, self._set_up)
        return plan


def _set_up(set_up: Callable[[int, dict[int, Private]], None], privates: dict[int, Private], number: int) -> None:
    set_up(number, privates)
    own = threads.private()
    if own is not None:
        hold_new_generators(own)  # those that worker_init_fn made


def _judge(pool: Pool, of_first: Trial, is_alone: bool) -> None:
    """In the first samples' thread, right after the last."""
    if not pool.is_closed:  # else whoever waited for them has gone on, and may have changed the dataset
        threads.have(of_first.judge(threads.private(), is_alone=is_alone))
