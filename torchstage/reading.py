"""Reading: what a lane does in its own thread: what torch's worker does in its process, from its seeds to its batches.

Guarantees: a lane's dataset is opened, read and let go in its own thread; an error of its start waits for its first
batch; what it has to say of its end is an exception that the consumer knows.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.utils.data.dataloader as torch_dataloader
import torch.utils.data.graph_settings as torch_graph

from torchstage import rng, threads
from torchstage.collate import explained
from torchstage.copies import Private
from torchstage.engine.ticket import Chain, simple_chain
from torchstage.plan import Recipe, finish_of

# torch's own, which it leaves untyped: what reads batches from a dataset, and what seeds a data pipe.
_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher
_apply_random_seed: Callable[..., Any] = vars(torch_graph)["apply_random_seed"]


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
        self.error = None
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
        error, lane.error = lane.error, None
        lane.close()
        lane.reading = self
        try:
            if error is not None:
                raise error
            if self._shared_seed is not None:
                _seed_pipe(lane.dataset, self._shared_seed)
            return self._open_fetcher(lane.dataset)
        except BaseException:
            self.has_ended = True
            raise
        finally:
            del error  # its traceback may lead back to this frame

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


def set_up(
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


def open_fetcher(kind: Any, is_batched: bool, drop_last: bool, dataset: Any) -> Any:
    return _create_fetcher(kind, dataset, is_batched, _as_fetched, drop_last)


def _as_fetched(samples: Any) -> Any:
    """Collating is a stage of its own: its errors say so, and a StopIteration there ends nothing."""
    return samples


def chain_of(
    reading: Reading, recipe: Recipe, wrap: Callable[[Any], Any], then: Callable[[Any], Any] | None = None
) -> Chain:
    """``then``: what the stages do with each sample that was read."""
    collate = wrap(explained(reading.lane.collate_fn, recipe.ring))

    def collate_batch(values: list[Any], indices: Sequence[Any]) -> Any:
        return collate(values[0], reading.labels(values[0]) if recipe.is_batched else indices)

    def fetch(index: Any) -> Any:
        samples = reading.fetch(index)
        if then is None:
            return samples
        return [then(sample) for sample in samples] if recipe.is_batched else then(samples)

    finish = finish_of(collate_batch, recipe)
    return simple_chain("fetch", wrap(fetch), finish, recipe.enter, takes_whole=True, lane=reading.lane.number)
