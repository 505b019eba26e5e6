"""Lanes: an iterable dataset in, the batches of torch's workers out, with a thread in the place of each worker process.

Lane k of N has what worker k of N has: a copy of the dataset, of ``collate_fn`` and of ``worker_init_fn``, worker info,
random generators, and a thread of its own, which reads the copy from front to back.

Guarantees: the batches are DataLoader's, in its order; each lane is ahead of the consumer by ``prefetch_factor``
batches and no more; a lane's dataset is read, and its iterator closed, in its own thread.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch.utils.data.dataloader as torch_dataloader
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng
from torchstage.assembly import plain
from torchstage.copies import Private
from torchstage.cuts import Cut
from torchstage.engine.parking import PERIOD_SECONDS
from torchstage.engine.pipeline import Pool, Run
from torchstage.engine.stats import Key, Tally
from torchstage.engine.ticket import Batch
from torchstage.isolation import Guard
from torchstage.iterators import ThreadedIterator
from torchstage.lane_epoch import LaneEpoch
from torchstage.line import Line
from torchstage.lineup import Lined, lineup_of
from torchstage.loader_iterator import num_ranks
from torchstage.reading import Lane, LaneEnded, Reading, chain_of, open_fetcher, set_up
from torchstage.replicas import replicas
from torchstage.sieve import NothingLeft, leniency_of
from torchstage.stage import named
from torchstage.then import AfterReading, Then
from torchstage.timeouts import after_reading
from torchstage.tolerance import BadSample, Tolerance
from torchstage.turns import Turns

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

# torch's own, which it leaves untyped: what shards a data pipe in a worker.
_shard_pipe: Callable[..., None] = vars(torch_dataloader)["_sharding_worker_init_fn"]


class LaneIterator(ThreadedIterator):
    """The batches of an iterable dataset, made by lanes and taken from them in turn."""

    _IterableDataset_len_called: int | None
    _num_yielded: int
    _shared_seed: int | None
    _world_size: int
    _rank: int
    _readers: LaneEpoch  # the epoch
    _cuts: dict[int, Cut]
    _tally: Tally | None = None  # of samples that failed

    def __init__(self, loader: "StageLoader[Any]", guard: Guard, own: list[Private], epoch: int) -> None:
        self._own = own
        super().__init__(loader, guard)
        if loader.seed is not None:
            self._base_seed = base_seed_of(loader.seed, epoch)
        self._has_scopes = loader.sample_rng
        self._first_shared_seed: int | None = self._shared_seed
        known = self._readers
        with known.drawing_base_seed(cast(Any, loader).generator):  # torch's own draws another shared seed here, too
            cast(Any, _BaseDataLoaderIter)._reset(self, loader, first_iter=True)
        self._base_seed, self._first_shared_seed, self._shared_seed = known.seeds(
            self._base_seed, self._first_shared_seed, self._shared_seed
        )
        self._num_yielded = known.num_batches
        others = self._set_up_elsewhere
        self._set_up_elsewhere = partial(others.func, self._base_seed, *others.args[1:])

    def _open(self, loader: "StageLoader[Any]") -> None:
        epoch = self._new_epoch(loader)
        with epoch.drawing_base_seed(cast(Any, loader).generator):
            cast(Any, _BaseDataLoaderIter).__init__(self, loader)
        self._follow()

    def _new_epoch(self, loader: "StageLoader[Any]") -> LaneEpoch:
        previous: LaneEpoch | None = vars(self).get("_readers")
        epoch: LaneEpoch = loader.new_reader_epoch(lambda resume, latest: LaneEpoch(loader, resume, previous))
        self._readers, self._epoch = epoch, cast(Any, epoch)
        return epoch

    def _follow(self) -> None:
        pass

    def _tolerance(self, line: Line) -> Tolerance | None:
        return None  # each lane knows by itself what to do about samples that fail

    def _num_in_epoch(self) -> int | None:
        return None

    def _reset(self, loader: "StageLoader[Any]", first_iter: bool = False) -> None:
        epoch = self._new_epoch(loader)
        super()._reset(loader, first_iter)
        self._base_seed, _, self._shared_seed = epoch.seeds(self._base_seed, None, self._shared_seed)
        self._num_yielded = epoch.num_batches

    def _next_batch(self, run: Run) -> Batch:
        batch = super()._next_batch(run)
        cut, failure = self._cuts[batch.number], batch.failure
        error = None if failure is None else failure.error
        batch.is_left_out = cut.is_left_out = isinstance(error, NothingLeft)
        if isinstance(error, NothingLeft | LaneEnded):  # what there is to say of bad samples goes before it
            batch.failure = None
        self._epoch.bad.is_cut_off |= cut.is_cut_off
        if cut.bad:
            self._count_by_stage(cut.bad, batch.chain.segments[0].key)
            batch.bad = tuple(enumerate(cut.bad))
            self._note_bad_of(batch)
        if isinstance(error, LaneEnded):
            batch.failure = batch.failure or failure
        return batch

    def _count_by_stage(self, bad: Sequence[BadSample], key: Key) -> None:
        """Where samples failed. Lanes do not count them, as a batch may not be handed out."""
        tally = self._tally
        if tally is None:
            tally = self._tally = self._ledger.tally(self._pool.site.label)
            weakref.finalize(self, setattr, tally, "is_over", True).atexit = False
        tally.work_at(key).num_samples += len(bad)
        for one in bad:
            tally.fail(key, one.stage, 1, is_error=not one.is_filtered)

    def _handed_out(self, number: int) -> None:
        self._readers.hand_out(self._cuts.pop(number))

    def _report_bad(self) -> None:
        self._readers.finish()  # before it is said that every sample failed
        super()._report_bad()

    def _lineup(self, line: Line, finish: Sequence[str]) -> tuple[Lined, ...]:
        names = (finish[0], "state_dict", *finish[1:])
        return lineup_of(line, None, self._pool.site, is_batched=False, finish=names)

    def _line(self, loader: "StageLoader[Any]") -> Line:
        return Line((), loader.stages)  # the lanes read the dataset; where stages would run says nothing there

    def _new_pool(self, loader: "StageLoader[Any]") -> Pool:
        own, self._own = self._own or own_copies(loader), []
        self._num_workers = len(own)
        self._lanes = [Lane(number, one) for number, one in enumerate(own)]
        self._is_set_up = False
        return loader.new_pool("torchstage-lane", len(own), has_lanes=True)

    def _begin(self, loader: "StageLoader[Any]") -> None:
        super()._begin(loader)
        self._num_ahead: int = cast(int, loader.prefetch_factor)
        num_in_flight = self._num_ahead * len(self._lanes)
        budget = self._budget
        self._window: Callable[[Batch], int] = lambda batch: (
            num_in_flight if budget is None else min(num_in_flight, budget.num_batches)
        )

    def _start(self) -> Run:
        """Start the lanes and admit the window, inside the first ``__next__``."""
        self._readers.begin(is_live_of(self))
        turns = self._turns()
        self._cuts = turns.cuts
        try:
            self._sites.start_loop(self._set_up_elsewhere)
            self._pool.start(len(self._lanes), self._set_up_of_lanes())
            self._is_set_up = True
            run = self._new_run(turns)
            turns.in_flight = run.in_flight
            self._runs.append(run)
            pool = self._pool
            self._deadlines = self._timeouts.deadlines_of_lanes(run, lambda: pool.workers)
            run.fill()
        except BaseException:
            self._close(0.0)
            raise
        return run

    def _set_up_of_lanes(self) -> Callable[[int], Callable[[], None]]:
        if isinstance(self._dataset, IterDataPipe):
            for lane in self._lanes:
                lane.init_fn = partial(_shard_pipe, lane.init_fn, self._world_size, self._rank)
        return partial(set_up, self._lanes, cast(int, self._base_seed), self._first_shared_seed, self._has_scopes)

    def _turns(self) -> Turns:
        self._keeps_steps = num_ranks(None) > 1
        leniency = replace(leniency_of(self._on_error, keeps_steps=self._keeps_steps), is_wanted=self._readers.is_live)
        thens = [self._after_reading(lane) for lane in self._lanes]
        openers = [
            partial(
                open_fetcher,
                self._dataset_kind,
                self._auto_collation,
                self._drop_last,
                replace(leniency, lane=lane.number),
                then,
            )
            for lane, then in zip(self._lanes, thens, strict=True)
        ]
        again = self._shared_seed if self._is_set_up else None
        epoch = self._readers
        is_kept = bool(cast(Any, self)._persistent_workers)
        readings = [
            Reading(
                lane, opener, again, opening, start, num_steps=epoch.num_steps, replay=epoch.replay, is_kept=is_kept
            )
            for lane, opener, opening, start in zip(self._lanes, openers, epoch.openings, epoch.starts(), strict=True)
        ]
        wrap = self._guard.serialised if self._guard.isolation == "serial" else plain
        names = named(self._recipe.line.stages)
        chains = [chain_of(reading, self._recipe, wrap, names) for reading in readings]
        return Turns(self._sampler_iter, readings, chains, self._num_ahead, epoch.next_lane)

    def _after_reading(self, lane: Lane) -> AfterReading | None:
        """What the stages do with a sample, in the lane's thread."""
        stages = after_reading(self._recipe.limits, self._recipe.line.of(lane.own).stages, self._recipe.run_coroutine)
        return AfterReading(Then(stages, self._recipe.run_coroutine)) if stages else None

    def _next(self) -> Any:
        length = self._IterableDataset_len_called
        if length is None or self._num_yielded < length:
            return super()._next()
        return _BaseDataLoaderIter.__next__(self)  # it warns of batches beyond the length that was told

    def _attend(self) -> float:
        self._readers.replay.attend()
        return PERIOD_SECONDS if self._deadlines is None else min(PERIOD_SECONDS, self._deadlines.look())

    def _next_data(self) -> Any:
        while True:
            try:
                return super()._next_data()
            except LaneEnded:  # the lane after it has the next batch
                continue

    def _leave_run(self) -> None:
        """Lanes that are kept finish what they were asked for, as torch's workers do: so their random generators are
        where those would be."""
        if self._pool.is_closed:
            super()._leave_run()
        self._runs = []


def is_live_of(iterator: LaneIterator) -> Callable[[], bool]:
    """Tells whether the threads of an iterator may still begin what they were asked for. Does not keep it."""
    reference = weakref.ref(iterator)

    def is_live() -> bool:
        known = reference()
        return known is not None and not cast(Any, known)._pool.is_closed

    return is_live


def own_copies(loader: "StageLoader[Any]") -> list[Private]:
    """For each lane what is its own, as the dataset and the functions are now. Raises CannotCopy."""
    num_lanes = loader.lanes or loader.num_workers
    names = ("dataset", "collate_fn", "worker_init_fn")
    roots = {name: getattr(loader, name) for name in names}
    roots = {**Line((), loader.stages).roots, **roots}
    wrapper, is_pipe = roots["dataset"], isinstance(roots["dataset"], IterDataPipe)
    if is_pipe:  # DataLoader's wrapper around a pipe would pickle it
        roots["dataset"] = wrapper._datapipe
    elif loader.isolation == "shared":
        return [Private(dict(roots)) for _ in range(num_lanes)]
    copies = replicas(num_lanes, **roots)
    if is_pipe:
        for own in copies:
            own.roots["dataset"] = type(wrapper)(own.roots["dataset"])
    return copies


def base_seed_of(seed: int, epoch: int) -> int:
    """What the seeds of an epoch's lanes count up from, in the range that torch draws it from."""
    return int.from_bytes(rng.Seeds(seed, epoch).digest("lanes", 0)[:8], "little") >> 1
