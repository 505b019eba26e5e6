"""Lanes: an iterable dataset in, the batches of torch's workers out, with a thread in the place of each worker process.

Lane k of N has what worker k of N has: a copy of the dataset, of ``collate_fn`` and of ``worker_init_fn``, worker info,
random generators, and a thread of its own, which reads the copy from front to back.

Guarantees: the batches are DataLoader's, in its order; each lane is ahead of the consumer by ``prefetch_factor``
batches and no more; a lane's dataset is read, and its iterator closed, in its own thread.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.utils.data.dataloader as torch_dataloader
import torch.utils.data.graph_settings as torch_graph
from torch.utils.data import IterDataPipe
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage import rng, threads
from torchstage.collate import explained
from torchstage.copies import Private
from torchstage.engine.gather import InFlight
from torchstage.engine.parking import PERIOD_SECONDS
from torchstage.engine.pipeline import Admission, Pool, Run
from torchstage.engine.ticket import Batch, Chain
from torchstage.isolation import Guard
from torchstage.iterators import ThreadedIterator
from torchstage.plan import Recipe, plain
from torchstage.replicas import replicas
from torchstage.transfer import pinned

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

# torch's own, which it leaves untyped: what reads batches from a dataset, and what seeds and shards a data pipe.
_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher
_apply_random_seed: Callable[..., Any] = vars(torch_graph)["apply_random_seed"]
_shard_pipe: Callable[..., None] = vars(torch_dataloader)["_sharding_worker_init_fn"]


class LaneEnded(Exception):  # noqa: N818  # it never leaves the iterator
    """The lane has no batch left."""


class Lane:
    """One reader and what is its own. Used in its thread alone, once that has started."""

    def __init__(self, number: int, own: Private) -> None:
        self.number = number
        self.own = own  # closes what was opened for it when it goes
        self.dataset = own.roots["dataset"]
        self.collate_fn = own.roots["collate_fn"]
        self.init_fn: Callable[[int], Any] | None = own.roots["worker_init_fn"]
        self.error: BaseException | None = None  # of its set-up: it comes in the place of the first batch
        self.reading: Reading | None = None  # the latest

    def close(self) -> None:
        """Let go of the dataset's iterator, so that what it opened is closed in the thread that opened it."""
        if self.reading is not None:
            self.reading.end()
            self.reading = None


class Reading:
    """One epoch of a lane. ``has_ended`` may be read in any thread, all else is the lane's."""

    def __init__(self, lane: Lane, open_fetcher: Callable[[Any], Any], shared_seed: int | None) -> None:
        self.has_ended = False
        self.lane = lane
        self._open_fetcher = open_fetcher
        self._shared_seed = shared_seed  # of a data pipe that is read again; None if its set-up gave it one
        self._fetcher: Any = None
        self._num_samples = 0

    def fetch(self, index: Any) -> Any:
        """The samples of the next batch, not collated. Raises LaneEnded, or what the dataset raises."""
        if self.has_ended:
            raise LaneEnded
        if self._fetcher is None:
            self._fetcher = self._open()
        try:
            return self._fetcher.fetch(index)
        except StopIteration:
            pass
        self.end()
        raise LaneEnded

    def _open(self) -> Any:
        lane = self.lane
        lane.close()
        lane.reading = self
        try:
            if lane.error is not None:
                raise lane.error
            if self._shared_seed is not None:
                _seed_pipe(lane.dataset, self._shared_seed)
            return self._open_fetcher(lane.dataset)
        except BaseException:
            self.has_ended = True
            lane.error = None
            raise

    def end(self) -> None:
        """Nothing more comes. Drops the dataset's iterator, whose clean-up runs here and now."""
        self.has_ended = True
        self._fetcher = None

    def labels(self, samples: Any) -> Iterator["Label"]:
        """What to call the samples of the batch just fetched in a message."""
        begin, lane = self._num_samples, self.lane.number
        self._num_samples += len(samples)
        return (Label(f"{begin + at} of lane {lane}") for at in range(len(samples)))


class Label:
    """Stands where a message names a dataset index: the samples of an iterable dataset have none."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


class Turns:
    """Whose turn it is: the lanes one after another, each with at most ``num_ahead`` batches in flight."""

    in_flight: InFlight  # of the run that this is the source of

    def __init__(self, sampler_iter: Iterator[Any], readings: list[Reading], chains: list[Chain], num_ahead: int):
        self._sampler_iter = sampler_iter
        self._readings = readings
        self._chains = chains
        self._num_ahead = num_ahead
        self._next_lane = 0

    def __iter__(self) -> "Turns":
        return self

    def __next__(self) -> Admission | None:
        """A ticket for the first lane that has room. A lane that has ended gets none, and leaves its room empty: the
        others are not to run ahead for its sake.

        Whether a lane is seen to have ended now or a turn later changes nothing: a ticket too many brings no batch.
        """
        num_lanes = len(self._readings)
        if all(reading.has_ended for reading in self._readings):
            raise StopIteration
        for step in range(num_lanes):
            lane = (self._next_lane + step) % num_lanes
            if not self._readings[lane].has_ended and self.in_flight.num_of(lane) < self._num_ahead:
                index = next(self._sampler_iter)
                self._next_lane = (lane + 1) % num_lanes
                return (index,), self._chains[lane], None
        return None


class LaneIterator(ThreadedIterator):
    """The batches of an iterable dataset, made by lanes and taken from them in turn."""

    _IterableDataset_len_called: int | None
    _num_yielded: int
    _shared_seed: int | None
    _world_size: int
    _rank: int

    def __init__(self, loader: "StageLoader[Any]", guard: Guard, own: list[Private], epoch: int) -> None:
        self._own = own
        super().__init__(loader, guard)
        if loader.seed is not None:
            self._base_seed = _base_seed(loader.seed, epoch)
        self._has_scopes = loader.sample_rng
        self._first_shared_seed = self._shared_seed
        cast(Any, _BaseDataLoaderIter)._reset(self, loader, first_iter=True)  # torch's own draws another one here, too

    def _new_pool(self, loader: "StageLoader[Any]") -> Pool:
        own, self._own = self._own or own_copies(loader), []
        self._num_workers = len(own)
        self._lanes = [Lane(number, one) for number, one in enumerate(own)]
        self._is_set_up = False
        return loader.new_pool("torchstage-lane", num_lanes=len(own))

    def _begin(self, loader: "StageLoader[Any]") -> None:
        super()._begin(loader)
        self._num_ahead: int = cast(int, loader.prefetch_factor)
        num_in_flight = self._num_ahead * len(self._lanes)
        self._window: Callable[[Batch], int] = lambda batch: num_in_flight

    def _start(self) -> Run:
        """Start the lanes and admit the window, inside the first ``__next__``."""
        turns = self._turns()
        try:
            self._pool.start(len(self._lanes), self._set_up_of_lanes())
            self._is_set_up = True
            run = Run(self._pool, turns, self._window, self._in_order)
            turns.in_flight = run.in_flight
            self._runs.append(run)
            run.fill()
        except BaseException:
            self._close(0.0)
            raise
        return run

    def _set_up_of_lanes(self) -> Callable[[int], Callable[[], None]]:
        if isinstance(self._dataset, IterDataPipe):
            for lane in self._lanes:
                lane.init_fn = partial(_shard_pipe, lane.init_fn, self._world_size, self._rank)
        return partial(_set_up, self._lanes, cast(int, self._base_seed), self._first_shared_seed, self._has_scopes)

    def _turns(self) -> Turns:
        open_fetcher = partial(_open_fetcher, self._dataset_kind, self._auto_collation, self._drop_last)
        again = self._shared_seed if self._is_set_up else None
        readings = [Reading(lane, open_fetcher, again) for lane in self._lanes]
        wrap = self._guard.serialised if self._guard.isolation == "serial" else plain
        chains = [_chain(reading, self._recipe, wrap) for reading in readings]
        return Turns(self._sampler_iter, readings, chains, self._num_ahead)

    def __next__(self) -> Any:
        length = self._IterableDataset_len_called
        if length is None or self._num_yielded < length:
            return super().__next__()
        return _BaseDataLoaderIter.__next__(self)  # it warns of batches beyond the length that was told

    def _attend(self) -> float:
        return PERIOD_SECONDS

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


def own_copies(loader: "StageLoader[Any]") -> list[Private]:
    """For each lane what is its own, as the dataset and the functions are now. Raises CannotCopy."""
    num_lanes = loader.lanes or loader.num_workers
    names = ("dataset", "collate_fn", "worker_init_fn")
    roots = {name: getattr(loader, name) for name in names}
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


def _base_seed(seed: int, epoch: int) -> int:
    """What the seeds of an epoch's lanes count up from, in the range that torch draws it from."""
    return int.from_bytes(rng.Seeds(seed, epoch).digest("lanes", 0)[:8], "little") >> 1


def _set_up(
    lanes: list[Lane], base_seed: int, shared_seed: int | None, has_scope: bool, number: int
) -> Callable[[], None]:
    """In a lane's thread: all that torch's worker does before it opens the dataset. An error waits for its batch."""
    lane = lanes[number]
    init_fn, lane.init_fn = lane.init_fn, None
    try:
        if shared_seed is not None:
            _seed_pipe(lane.dataset, shared_seed)
        threads.set_up(number, len(lanes), base_seed, lane.dataset, init_fn, has_scope=has_scope)
    except BaseException as error:
        lane.error = error
    return partial(_tear_down, lane)


def _tear_down(lane: Lane) -> None:
    lane.close()
    rng.leave_thread()


def _seed_pipe(pipe: Any, seed: int) -> None:
    _apply_random_seed(pipe, torch.Generator().manual_seed(seed))


def _open_fetcher(kind: Any, is_batched: bool, drop_last: bool, dataset: Any) -> Any:
    return _create_fetcher(kind, dataset, is_batched, _as_fetched, drop_last)


def _as_fetched(samples: Any) -> Any:
    """Collating is a stage of its own: its errors say so, and a StopIteration there ends nothing."""
    return samples


def _chain(reading: Reading, recipe: Recipe, wrap: Callable[[Any], Any]) -> Chain:
    collate = wrap(explained(reading.lane.collate_fn, recipe.ring))

    def collate_batch(values: list[Any], indices: Sequence[Any]) -> Any:
        return collate(values[0], reading.labels(values[0]) if recipe.is_batched else indices)

    pin = (("pin_memory", pinned(recipe.pin_device)),) if recipe.pin_memory else ()
    finish = (("collate", collate_batch), *pin)
    return Chain(wrap(reading.fetch), finish, recipe.enter, takes_whole=True, lane=reading.lane.number)
