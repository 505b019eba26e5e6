"""Loader: what DataLoader takes in, what DataLoader yields out, made by threads.

Guarantees: for deterministic datasets the same batches, in the same order, of the same types, with the same errors and
the same draws from the random generators as torch's DataLoader, for every number of threads.
"""

import copy
import multiprocessing
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from functools import partial
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, get_args

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, MapDataPipe, Sampler

from torchstage.accounts import stats_of
from torchstage.carried import Stages, leave_out, ledger_of, note
from torchstage.copies import CannotCopy
from torchstage.coroutines import RunHere
from torchstage.counting import counted
from torchstage.draws import Stream
from torchstage.engine.ledger import Ledger
from torchstage.engine.pipeline import Pool
from torchstage.epoch import Epoch
from torchstage.errors import add_note
from torchstage.executors.mains import refuse_while_imported
from torchstage.inline import InlineIterator
from torchstage.inline_lane import InlineLane
from torchstage.inline_reader import InlineReader
from torchstage.isolation import Guard, Isolation, is_inside_serialised
from torchstage.iterators import CLOSE_WAIT_SECONDS, ThreadedIterator, warn_of
from torchstage.lanes import LaneIterator, own_copies
from torchstage.line import Line
from torchstage.order import samplers_of, seeds_of
from torchstage.placement.explain import Explanation, explained
from torchstage.processes import HAS_PROCESSES, Fleet, Hired
from torchstage.reader_state import loaded as readers_loaded
from torchstage.resumed import Resumed, next_data_of
from torchstage.sampling import Sampling
from torchstage.seeds import Seeds
from torchstage.stage import SampleTrace, Stage
from torchstage.state import loaded, refuse_others, state_of
from torchstage.stats import LoaderStats
from torchstage.then import Then, ThenCollate, checked
from torchstage.timeouts import INLINE, TORCHS, warn_unlooked
from torchstage.tolerance import OnError
from torchstage.trace import trace
from torchstage.transfer import Route, Transfer
from torchstage.upcoming import check_prefetch_epochs
from torchstage.worker_reader import refuse_to_tolerate, state_of_readers, worker_iterator

T_co = TypeVar("T_co", covariant=True)
WorkerMethod = Literal["auto", "thread", "multiprocessing"]
WORKER_METHODS = get_args(WorkerMethod)

OWN = (
    "_live",
    "_pools",
    "_run_here",
    "_epoch",
    "_stream",
    "_ledger",
    "_fleet",
)  # attributes that a copy has for itself


class StageLoader(DataLoader[T_co]):
    """A ``torch.utils.data.DataLoader`` whose ``num_workers`` are threads of this process, or processes where threads
    cannot help.

    Takes DataLoader's arguments, in its order and with its meanings, and yields the same batches. What differs:

    - Map-style datasets: ``num_workers=N`` threads share the dataset and each batch, sample by sample. Nothing is
      pickled, and nothing copied but what threads must not share (``isolation``). Threads beyond the number of cores
      work only while the others wait for something.
    - Each sample draws from random generators of its own, so that the number of threads changes nothing
      (``sample_rng``).
    - ``prefetch_factor`` counts batches ahead of the caller for the whole loader, not for each worker. In flight are at
      most ``max(prefetch_factor, num_workers, ceil(16 * num_workers / batch_size)) + 1`` batches; without batching, or
      with ``__getitems__``, or in processes, ``prefetch_factor * num_workers + 1``.
    - Iterable datasets: N threads each read a copy of the dataset (``lanes``), with the batches and the random draws
      of DataLoader's N worker processes. One that cannot be copied is read by torch's own worker processes.
    - Processes (``worker_method``) make whole batches of a map-style dataset straight into memory that both sides see.
      Any free one makes the next batch; they stay from epoch to epoch. Those of an iterable dataset are torch's own.

    Args:
        isolation: who may share a map-style dataset. ``"auto"``: open files, archives, databases, video decoders and
            random generators that the dataset, a transform or ``collate_fn`` holds, and objects that the first sample
            changes, are copied for each thread; what cannot be copied is used by one thread at a time, with one warning
            that names it. ``"shared"``: all threads use it as it is. ``"per_thread"``: each thread has copies of all
            objects with attributes. ``"serial"``: one thread at a time. Lanes always have copies, but for ``"shared"``.
        stages: functions that each sample goes through, one after another, after ``dataset[index]``: of a
            ``torchstage.Stage`` each, which says where it runs.
        worker_method: what ``num_workers`` are. ``"thread"``: threads. ``"multiprocessing"``: processes, started by a
            fork server (``multiprocessing_context``: in another way), that make whole batches, or what of the stages
            can run there; they stay for later epochs, until ``close()``, and are sent the dataset for each epoch, with
            ``persistent_workers`` once. ``"auto"``: threads; of a map-style dataset the first samples are measured, and
            what holds the GIL moves to processes if that pays (``explain()``); with a ``multiprocessing_context``,
            processes.
        device: where batches arrive: copied there ahead of the caller, from pinned memory where that is of use.
        prefetch_bytes: bound on the bytes of the batches in flight, beside the bound on their number. One batch is in
            flight until one was measured; a batch larger than the bound still passes.
        lanes: iterable datasets: how many readers, each with its own copy of the dataset. None: ``num_workers``, as in
            DataLoader. 1: one reader whatever ``num_workers``, so that each sample comes once and only the global tail
            is dropped.
        seed: base seed of the samples' own random generators, 0 <= seed < 2**63. None: the sampler's ``seed`` if it has
            one, else torch's base seed, which is drawn anew each epoch.
        sample_rng: whether random calls in loader threads draw from the sample's own generators. False: from the
            process's generators, which threads then race for.
        prefetch_epochs: whether the first batches of the next epoch are made while the last ones of this one are handed
            out, in the same room: no gap between epochs. For map-style datasets, with ``persistent_workers=True``, and
            where the next order is certain; ``docs/epochs.md`` says where it is, and what must stay as it is.
        snapshot_every_n_steps: iterable datasets with a ``state_dict``: it is called for every n-th batch of each
            reader; a resume reads up to n - 1 batches of each once more. 0 or None: never; a resume reads the epoch
            once more. Of map-style datasets nothing is kept, and this changes nothing.

        on_error: what is done where a sample's dataset or stage raises an Exception. ``"raise"``: it is raised in the
            place of the batch. ``"skip"``: the sample is left out, and batches are filled up with the samples after it.
            ``"replace"``: the next sample of the dataset that can be made comes in its place. A function: it is given
            a ``BadSample``, and what it returns is the sample; it may raise, also SkipSample. A sample is always left
            out where ``SkipSample`` is raised. ``docs/bad-samples.md`` says where batches stay short instead.
        max_bad_samples: how many samples of an epoch may fail, or as a float which share of it, before
            TooManyBadSamples is raised. None: all but one.

    Raises:
        ValueError, TypeError: as DataLoader does; and ValueError for an unknown ``isolation``.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        stages: Sequence[Stage] = (),
        worker_method: WorkerMethod = "auto",
        lanes: int | None = None,
        device: torch.device | str | int | None = None,
        prefetch_bytes: int | None = None,
        isolation: Isolation = "auto",
        seed: int | None = None,
        sample_rng: bool = True,
        prefetch_epochs: bool = False,
        snapshot_every_n_steps: int | None = 1,
        on_error: OnError = "raise",
        max_bad_samples: int | float | None = None,
    ) -> None:
        _check(lanes, seed, prefetch_bytes)
        _check_bad(on_error, max_bad_samples)
        _check_method(worker_method, multiprocessing_context)
        check_prefetch_epochs(prefetch_epochs, persistent_workers)
        if snapshot_every_n_steps is not None and snapshot_every_n_steps < 0:
            raise ValueError(
                "StageLoader: snapshot_every_n_steps must be a positive integer, or 0 or None for no snapshots, got "
                f"{snapshot_every_n_steps!r}."
            )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self.on_error: OnError = on_error
        self.max_bad_samples = max_bad_samples
        self._ledger = ledger_of(stages, dataset)
        if isinstance(stages, Stages) and stages.ledger is self._ledger:  # a framework made this loader of another one
            self.stages: tuple[Stage, ...] = stages
        else:
            self.stages = Stages(checked(stages), self._ledger, dataset)
        self.worker_method: WorkerMethod = worker_method
        self.lanes = lanes
        self.device = device
        self.prefetch_bytes = prefetch_bytes
        self.isolation: Isolation = isolation
        self.seed = seed
        self.sample_rng = sample_rng
        self.prefetch_epochs = prefetch_epochs
        self._guard = Guard(isolation)
        self._num_begun: Counter[int] = Counter()
        self._pools: list[Pool] = []
        self._fleet = self._new_fleet()
        self._live: weakref.WeakSet[Any] = weakref.WeakSet()
        self._num_lane_epochs = 0
        self._run_here = RunHere()
        self._epoch: Any = None  # the latest iterator's; or one that a loaded state asks for
        self._stream = Stream()
        self._transfer = None if device is None else Transfer(device)
        try:
            super().__init__(  # pyright: ignore[reportUnknownMemberType]  # torch leaves its arguments untyped
                dataset,
                batch_size,
                shuffle,
                sampler,
                batch_sampler,
                num_workers,
                collate_fn,
                pin_memory,
                drop_last,
                timeout,
                worker_init_fn,
                multiprocessing_context,
                generator,
                prefetch_factor=prefetch_factor,
                persistent_workers=persistent_workers,
                pin_memory_device=pin_memory_device,
                in_order=in_order,
            )
        except ValueError as error:
            if isinstance(dataset, Sized) and not len(dataset):  # often a wrong path
                add_note(error, f"torchstage: the dataset, a {type(dataset).__name__}, has length 0")
            raise
        if self.is_in_processes and isinstance(dataset, IterableDataset):
            refuse_to_tolerate(on_error)
        note(self)

    def stats(self, since: LoaderStats | None = None) -> LoaderStats:
        """What each stage did and how long the user waited: since the loader was made, or since an earlier record of
        ``stats()``. ``print(loader.stats())`` shows a table with the bottleneck and what to do about it.

        It is always counted; asking takes about a millisecond and disturbs nobody, from any thread. A loader that a
        framework rebuilt from this one has the same counters. ``docs/statistics.md`` says what is measured and how.
        Raises ValueError for a record of another loader.
        """
        return stats_of(self._ledger, since)

    def explain(self) -> Explanation:
        """Where each stage runs, threads or processes, and why: from what was measured while the first samples were
        made. ``print(loader.explain())`` shows a table. Asking measures nothing: before the loader was iterated over,
        or where the user said where things run, there are no numbers."""
        return explained(self)

    @property
    def ledger(self) -> Ledger:
        """What was counted."""
        return self._ledger

    def share(self, ledger: Ledger) -> None:
        """Count there, from now on: it is the counters of the loader that this one was made of."""
        self._ledger = ledger
        self.stages = Stages(self.stages, ledger, self.dataset)

    def __iter__(self) -> Any:
        if self._epoch is not None and self._epoch.is_pending and isinstance(self.dataset, IterableDataset):
            self._iterator = None  # readers that are kept have read on; new ones begin where the state was saved
        begin = time.perf_counter()
        iterator: Any = super().__iter__()
        counted(iterator, self, time.perf_counter() - begin)
        return iterator

    def _get_iterator(self) -> Any:
        iterator = self._new_iterator()
        self._live.add(iterator)
        return iterator

    def _new_iterator(self) -> Any:
        is_iterable = isinstance(self.dataset, IterableDataset)
        is_inline = self.num_workers == 0 or is_inside_serialised()
        if is_iterable and self.num_workers == 0 and self.seed is not None and self.sample_rng:
            return self._moving(InlineLane(self._with_stages(), self, self.seed, self._next_lane_epoch()))
        is_torchs = is_iterable or isinstance(self.dataset, MapDataPipe)
        if (is_inline and is_torchs) or (self.is_in_processes and (is_torchs or not HAS_PROCESSES)):
            return self._torchs_own()
        if self._guard.isolation != self.isolation:
            self._guard = Guard(self.isolation)
        if not is_inline:
            refuse_while_imported()
        if is_iterable:
            return self._lane_iterator()
        if is_inline:
            return InlineIterator(self, self._guard)
        self.check_worker_number_rationality()
        return ThreadedIterator(self, self._guard)

    def _lane_iterator(self) -> Any:
        """Lanes of this process; or, for a dataset that cannot be copied, torch's worker processes, as many."""
        num_workers = self.num_workers
        try:
            own = own_copies(self)
        except CannotCopy as error:
            refuse_to_tolerate(
                self.on_error, f"torch's own read this dataset, as it cannot be copied for lanes ({error})"
            )
            self.num_workers = self.lanes or num_workers
            try:
                return self._torchs_own()
            finally:
                self.num_workers = num_workers
        self.check_worker_number_rationality()
        return LaneIterator(self, self._guard, own, self._next_lane_epoch())

    def _next_lane_epoch(self) -> int:
        """The number of the epoch that readers begin, or go on with."""
        resume: Any = self._epoch.resume if self._epoch is not None and self._epoch.is_pending else None
        if resume is not None:
            self._num_lane_epochs = resume.num_epochs - (resume.base_seed is not None)
        self._num_lane_epochs += 1
        return self._num_lane_epochs - 1

    @property
    def num_lane_epochs(self) -> int:
        """How many epochs of readers were begun."""
        return self._num_lane_epochs

    def _torchs_own(self) -> Any:
        """torch's own iterator, inline or of worker processes."""
        twin = self._with_stages()
        context: Any = cast(Any, self).multiprocessing_context
        if self.is_in_processes and context is None and multiprocessing.get_start_method() == "fork":
            # This process has threads, or may have: it is not forked unless the user says so.
            twin = twin.like_this(_DataLoader__multiprocessing_context=multiprocessing.get_context("forkserver"))
        if isinstance(self.dataset, IterableDataset):
            if not self.num_workers:
                return self._moving(InlineReader(twin, self))
            refuse_to_tolerate(self.on_error)
            return self._moving(worker_iterator(twin, self))
        resumed = Resumed(self)
        with resumed.first():
            iterator: Any = super(StageLoader, cast(StageLoader[Any], resumed.twin_of(twin)))._get_iterator()
        resumed.count(self._moving(iterator))  # one whose copy Ctrl-C cuts short was not handed out
        return iterator

    def _moving(self, iterator: Any) -> Any:
        """The same iterator, of which each batch is put on the device."""
        route = self.route()
        if route is not None:
            iterator._next_data = partial(_moved, route, next_data_of(iterator))
        return iterator

    def route(self) -> Route | None:
        """The way to the device where batches arrive; None if they stay. Asked in the consumer's thread."""
        if self.device is None:
            return None
        if self._transfer is None:  # it was set later
            self._transfer = Transfer(self.device)
        return self._transfer.route()

    def _with_stages(self) -> "StageLoader[Any]":
        """This loader; or, for an iterator that knows no stages, one whose ``collate_fn`` has them before it."""
        if not self.stages:
            return self
        warn_unlooked(self._guard, self.stages, TORCHS if self.num_workers else INLINE)
        known: Any = self
        collate_fn = ThenCollate(Then(self.stages, self._run_here), known.collate_fn, known._auto_collation)
        return self.like_this(collate_fn=collate_fn)

    def like_this(self, **attributes: Any) -> "StageLoader[Any]":
        """A loader that is like this one but for these attributes."""
        twin: Any = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, **attributes)
        return twin

    @property
    def run_here(self) -> RunHere:  # waits for coroutines of stages that run in the caller's thread
        return self._run_here

    @property
    def num_begun(self) -> Counter[int]:
        """How many epochs of each number were begun: counted on by whoever begins one."""
        return self._num_begun

    @property
    def is_in_processes(self) -> bool:
        """Whether the user asked for worker processes."""
        return self.num_workers > 0 and (
            self.worker_method == "multiprocessing" or cast(Any, self).multiprocessing_context is not None
        )

    def hire(self) -> Hired:
        """Processes for one of this loader's iterators; none of them is there yet."""
        return Hired(self._fleet, self.num_workers, cast(Any, self).multiprocessing_context)

    def _new_fleet(self) -> Fleet:
        fleet = Fleet()
        weakref.finalize(self, fleet.leave).atexit = False  # processes end by themselves at exit
        return fleet

    def new_pool(self, name: str, num_threads: int | None = None, *, has_lanes: bool = False) -> Pool:
        """Threads for one of this loader's iterators, not started yet: kept so that ``close`` can wait for them."""
        pool = Pool(num_threads or self.num_workers, name, has_lanes=has_lanes, ledger=self._ledger)
        # In place: what is assigned in a hook, Lightning assigns to the loader that it makes of this one, too.
        self._pools[:] = [*(pool for pool in self._pools if not pool.has_ended), pool]
        return pool

    def sample(self, index: Any) -> SampleTrace:
        """Make one sample of a map-style dataset here and now, stage by stage, and tell the time that each one took and
        what came out of it. ``print(loader.sample(0))`` shows a table; ``.value`` is the sample.

        Draws are those of this sample in the sampler's epoch where there is a ``seed``; the process's random generators
        stay as they are, unless ``sample_rng=False``. Raises what the stage raises, with a note of which it was.
        """
        if isinstance(self.dataset, IterableDataset):
            raise TypeError(
                "StageLoader.sample: an iterable dataset has no sample of an index. Use next(iter(loader))."
            )
        seeds = self._seeds_of_a_sample() if self.sample_rng else None
        return trace(Line(self.dataset, self.stages), index, seeds, self._run_here)

    def _seeds_of_a_sample(self) -> Seeds:
        base_seed, epoch = torch.initial_seed() % 2**63, Sampling.of(self).epoch
        return seeds_of(self.seed, samplers_of(self), base_seed, 0, Counter(), epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest epoch is, counted in samples handed out (batches, with a batch sampler of your own or an
        iterable dataset): plain values, to be given to ``load_state_dict`` of a loader of the same dataset and sampler.
        Between two epochs: where the next one begins.

        While it is not called, only states of random generators are kept for each epoch; a sampler's own ``state_dict``
        is called every 32 batches, an iterable dataset's as ``snapshot_every_n_steps`` says.
        """
        epoch = self._epoch
        if epoch is not None and epoch.is_pending:
            return copy.deepcopy(epoch.resume.raw)
        if isinstance(self.dataset, IterableDataset):
            return state_of_readers(self, epoch)
        return state_of(self, epoch)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next ``iter()`` go on where the state was saved. Call it before that; ``set_epoch`` may come before
        the first batch. Of a map-style dataset nothing that was handed out is asked for again; an iterable one without
        ``state_dict`` is read once more.

        An iterator made before this call goes on as it was. Raises ValueError for a state that does not fit this
        loader.
        """
        refuse_others(state_dict, is_map=not isinstance(self.dataset, IterableDataset))
        if isinstance(self.dataset, IterableDataset):
            self._epoch = readers_loaded(self, state_dict)
        else:
            self._epoch = loaded(self, state_dict)

    def new_epoch(self) -> Epoch:
        """What is kept of the epoch of an iterator that is being made. A loaded state counts until a batch was handed
        out, so that iterators nobody uses, or that fail to start, do not use it up."""
        known = self._epoch
        resume = known.resume if known is not None and known.is_pending else None
        if known is not None and resume is not None:
            known.undo()
        epoch = self._epoch = Epoch(Sampling.of(self), self._stream, self._num_begun, resume)
        epoch.is_own = epoch.is_own or not (self.in_order or self.num_workers == 0)
        return epoch

    def new_reader_epoch(self, make: Callable[[Any, Any], Any]) -> Any:
        """The same for an iterable dataset: made by ``make(resume, latest)``."""
        latest: Any = self._epoch
        resume = latest.resume if latest is not None and latest.is_pending else None
        self._epoch = epoch = make(resume, latest)
        return epoch

    @property
    def stream(self) -> Stream:
        """What the orders of a resumed run are drawn from."""
        return self._stream

    def next_base_seed(self) -> tuple[int | None, int]:
        """The base seed of the next epoch, if threads that are kept know it, and how many epochs they have had."""
        iterator: Any = self._iterator if self.persistent_workers else None
        of_workers = getattr(iterator, "_base_seed", None)  # torch's own workers keep theirs
        return getattr(iterator, "next_base_seed", (of_workers, 0))

    def close(self) -> None:
        """End the threads and processes of every iterator of this loader, and wait for them.

        A thread that stays in user code for 1.5 s is named in a warning and let go; a process is ended then. The loader
        can be iterated again.
        """
        self._iterator = None
        for iterator in list(self._live):
            end: Any = getattr(iterator, "abandon", None) or getattr(iterator, "_shutdown_workers", None)
            if end is not None:
                end()
        self._live.clear()
        deadline = time.monotonic() + CLOSE_WAIT_SECONDS
        for pool in self._pools:  # also of iterators that were dropped: their threads may still be in user code
            pool.abandon()
            warn_of(pool.join(deadline))
        self._pools.clear()
        self._fleet.close()
        self._run_here.close()
        if self._transfer is not None:
            self._transfer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in OWN}
        leave_out(state, OWN)
        epoch: Any = self._epoch
        if epoch is not None and epoch.is_pending:
            state["_loaded"] = epoch.resume.raw
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy goes on where a state says that was loaded and not used yet; else it begins with the next epoch."""
        self.__dict__.update(state, _live=weakref.WeakSet(), _pools=[], _run_here=RunHere())
        self._fleet = self._new_fleet()
        self._epoch, self._stream = None, Stream()
        self._ledger = Ledger()
        self.stages = Stages(self.stages, self._ledger, self.dataset)
        raw = self.__dict__.pop("_loaded", None)
        if raw is not None:
            self.load_state_dict(raw)


def _moved(route: Route, next_data: Callable[[], Any]) -> Any:
    return route.end(route.begin(route.pin(next_data())))


def _check_method(worker_method: Any, context: Any) -> None:
    if worker_method not in WORKER_METHODS:
        raise ValueError(
            f"StageLoader: worker_method must be one of {', '.join(map(repr, WORKER_METHODS))}, got {worker_method!r}. "
            "'auto' measures and chooses."
        )
    if worker_method == "thread" and context is not None:
        raise ValueError(
            f"StageLoader: multiprocessing_context={context!r} is for worker processes, but worker_method='thread' "
            "was asked for. Leave one of them out."
        )


def _check_bad(on_error: Any, most: Any) -> None:
    if on_error not in ("raise", "skip", "replace") and not callable(on_error):
        raise ValueError(
            f"StageLoader: on_error must be 'raise', 'skip', 'replace' or a function of a BadSample, got {on_error!r}."
        )
    is_number = isinstance(most, int | float) and not isinstance(most, bool)
    if most is not None and (not is_number or most < 0 or (isinstance(most, float) and not most <= 1)):
        raise ValueError(
            f"StageLoader: max_bad_samples must be a number of samples (int), a share of the epoch (float, 0 to 1) "
            f"or None, got {most!r}."
        )


def _check(lanes: Any, seed: Any, prefetch_bytes: Any) -> None:
    if prefetch_bytes is not None and (
        not isinstance(prefetch_bytes, int) or isinstance(prefetch_bytes, bool) or prefetch_bytes < 1
    ):
        raise ValueError(
            f"StageLoader: prefetch_bytes must be a positive number of bytes or None, got {prefetch_bytes!r}. None: "
            "the number of batches alone bounds what is in flight."
        )
    if lanes is not None and (not isinstance(lanes, int) or isinstance(lanes, bool) or lanes < 1):
        raise ValueError(f"StageLoader: lanes must be a positive integer or None, got {lanes!r}. None: num_workers.")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63):
        raise ValueError(f"StageLoader: seed must be an integer from 0 to 2**63 - 1, or None, got {seed!r}.")
