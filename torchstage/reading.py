"""Reading: what a lane does in its own thread: what torch's worker does in its process, from its seeds to its batches.

Guarantees: a lane's dataset is opened, read and let go in its own thread; an error of its start waits for its first
batch; what it has to say of its end is an exception that the consumer knows.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.utils.data.dataloader as torch_dataloader
import torch.utils.data.graph_settings as torch_graph

from torchstage import rng, threads
from torchstage.collate import explained
from torchstage.copies import Private
from torchstage.cuts import Cut, Opening
from torchstage.engine.outcome import NoError
from torchstage.engine.ticket import Chain, simple_chain
from torchstage.marks import Mark, Reader, Start, draws_into
from torchstage.plan import Recipe, finish_of
from torchstage.replay import Replay
from torchstage.scope_states import Watch
from torchstage.sieve import FETCH, Leniency, Sieve
from torchstage.then import AfterReading

# torch's own, which it leaves untyped: what reads batches from a dataset, and what seeds a data pipe.
_create_fetcher: Callable[..., Any] = vars(torch_dataloader)["_DatasetKind"].create_fetcher
_apply_random_seed: Callable[..., Any] = vars(torch_graph)["apply_random_seed"]


class LaneEnded(NoError):  # noqa: N818  # it never leaves the iterator
    """The lane has no batch left."""


class Lane:
    """One reader and what is its own. Used in its thread alone, once that has started."""

    def __init__(self, number: int, own: Private) -> None:
        self.number = number
        self.own = own  # closes what was opened for it when it goes
        self.dataset = own.roots["dataset"]
        self.reader = Reader(self.dataset)
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

    def __init__(
        self,
        lane: Lane,
        open_fetcher: Callable[[Any], Sieve],
        shared_seed: int | None,
        opening: Opening,
        start: Start | None = None,
        *,
        num_steps: int = 1,
        replay: Replay | None = None,
        is_kept: bool = False,
    ) -> None:
        """``num_steps``: batches between two marks, 0: there are none. ``replay``: of all lanes of the epoch.
        ``is_kept``: the lane may read another epoch."""
        self.has_ended = start is not None and start.has_ended
        self.lane = lane
        self._open_fetcher = partial(open_fetcher, lane.dataset)
        self._shared_seed = shared_seed  # of a data pipe that is read again; None if its set-up gave it one
        self.opening = opening  # told by the lane's thread
        self._start = start
        self._num_steps = num_steps
        self._replay = replay
        self._has_failed = False  # to get to where it was to go on
        self._is_kept = is_kept
        self._where = f"lane {lane.number}"
        self._fetcher: Any = None  # a Sieve, once it is open
        self._may_have_mistaken = False  # the end for the beginning
        self._has_state = False
        self._draws_at_start: Any = None
        self._watch = Watch(None)
        self._cut: Cut | None = None
        self._num_batches = self._num_marked = 0

    def replay(self, again: Callable[[Any], Any], cut: Cut) -> None:
        """Make the batches once more that were handed out since the mark that the lane goes on from. Before the first.

        What they raised was handed out, too.
        """
        replay, number = self._replay, self.lane.number
        if replay is None or self._fetcher is not None or self.has_ended or not replay.num_left(number):
            return
        self._open_for(cut)
        try:
            while replay.num_left(number):
                try:
                    again(Cut(cut.index, number))
                except LaneEnded:
                    raise replay.too_few(self._where, number) from None
                except Exception:  # it was handed out, too
                    pass
                replay.made(number)
        except BaseException:
            self._has_failed = cut.has_failed = True
            self.end()
            raise

    def fetch(self, cut: Cut) -> Any:
        """The samples of the next batch, not collated. Raises LaneEnded, or what the dataset raises."""
        cut.has_ended, cut.has_failed = self.has_ended, self._has_failed
        if self.has_ended:
            raise LaneEnded
        if self._fetcher is None:
            self._open_for(cut)
        self._cut = cut
        cut.has_state = self._has_state
        try:
            samples = self._fetched(cut.index)
        except StopIteration:
            pass
        except BaseException:
            self._num_batches += 1
            raise
        else:
            self._num_batches += 1
            return samples
        finally:
            sieve = cast(Sieve, self._fetcher)  # it was opened
            cut.bad, cut.is_cut_off = sieve.bad, sieve.is_cut_off
        cut.has_ended = True
        if self._is_kept:
            self.lane.reader.is_between = True
            cut.mark = self._mark(None)
        self.end()
        raise LaneEnded

    def _fetched(self, index: Any) -> Any:
        may_have_mistaken, self._may_have_mistaken = self._may_have_mistaken, False
        try:
            return self._fetcher.fetch(index)
        except StopIteration:
            if not may_have_mistaken:
                raise
        self._fetcher = self.lane.reader.open_anew(self._make, self._where)
        return self._fetcher.fetch(index)

    def _mark(self, fetcher: Any) -> Mark:
        return self.lane.reader.mark(
            fetcher, 0 if fetcher is None else self._num_batches, self._watch.now(), self._where
        )

    def mark(self) -> None:
        """The batch is made, collated, too: whatever comes next is the next one's. Tell where that begins, if it is
        time to."""
        cut, self._cut = self._cut, None
        if cut is None or self._fetcher is None:
            return
        if self._fetcher.ended:
            cut.is_last = True
            if self._is_kept:
                cut.mark = self._mark(None)
            return
        is_due = self._num_steps and self._num_batches - self._num_marked >= self._num_steps
        if is_due and self._has_state:
            cut.mark = self._mark(self._fetcher)
            self._num_marked = self._num_batches

    def _open_for(self, cut: Cut) -> None:
        try:
            self._fetcher = self._open()
        except BaseException:
            cut.has_ended = self._start is None  # else it may be begun once more from there
            self._has_failed = cut.has_failed = self._start is not None
            raise

    def _open(self) -> Any:
        lane, start = self.lane, self._start
        error, lane.error = lane.error, None
        lane.close()
        lane.reading = self
        opening: Mark | None = None
        try:
            if error is not None:
                raise error
            if self._shared_seed is not None:
                _seed_pipe(lane.dataset, self._shared_seed)
            scope = rng.current()
            self._watch = Watch(scope)
            if start is not None:
                draws_into(scope, start.draws_at_start, start.base_seed, lane.number)
            opening = lane.reader.opening(self._watch.now(), self._where)
            self._draws_at_start = opening.draws
            begin = None if start is None else start.mark
            fetcher, self._may_have_mistaken = lane.reader.open(self._make, begin, self._where)
            if start is not None and begin is not None and begin.num_batches:
                draws_into(scope, begin.draws, start.base_seed, lane.number)
                self._num_batches = self._num_marked = begin.num_batches
            self._has_state = lane.reader.has_state(fetcher)
            return fetcher
        except BaseException:
            self.has_ended = True
            raise
        finally:
            self.opening.tell(opening)
            del error  # its traceback may lead back to this frame

    def _make(self) -> Any:
        """The dataset's iterator, made with the generators as they were before that; the dataset may have set them
        when it was told its state."""
        if self._draws_at_start is not None:
            draws_into(rng.current(), self._draws_at_start, 0, self.lane.number)
        return self._open_fetcher()

    def end(self) -> None:
        """Nothing more comes. Drops the dataset's iterator, whose clean-up runs here and now."""
        self.has_ended = True
        self._fetcher = None

    def labels(self, samples: Any) -> Iterator["Label"]:
        """What to call the samples of the batch just fetched in a message."""
        numbers = range(len(samples)) if self._fetcher is None else self._fetcher.numbers
        return (Label(f"{number} of lane {self.lane.number}") for number in numbers)


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


def open_fetcher(
    kind: Any, is_batched: bool, drop_last: bool, leniency: Leniency, then: AfterReading | None, dataset: Any
) -> Sieve:
    return Sieve(_create_fetcher(kind, dataset, is_batched, _as_fetched, drop_last), leniency, then)


def _as_fetched(samples: Any) -> Any:
    """Collating is a stage of its own: its errors say so, and a StopIteration there ends nothing."""
    return samples


def chain_of(reading: Reading, recipe: Recipe, wrap: Callable[[Any], Any], names: tuple[str, ...] = ()) -> Chain:
    """``names``: of the stages that samples go through where they are read."""
    collate = wrap(explained(reading.lane.collate_fn, recipe.ring))

    def collate_batch(values: list[Any], indices: Sequence[Any]) -> Any:
        return collate(values[0], reading.labels(values[0]) if recipe.is_batched else indices)

    def again(cut: Cut) -> None:
        collate_batch([reading.fetch(cut)], (cut.index,))

    def fetch_on(cut: Cut) -> Any:
        reading.replay(again, cut)
        return reading.fetch(cut)

    def marked(batch: Any, indices: Any) -> Any:
        reading.mark()
        return batch

    collated, *others = finish_of(collate_batch, recipe)
    finish = (collated, ("state_dict", wrap(marked)), *others)
    lane, names = reading.lane.number, (FETCH, *names)
    return simple_chain(FETCH, wrap(fetch_on), finish, recipe.enter, takes_whole=True, lane=lane, names=names)
