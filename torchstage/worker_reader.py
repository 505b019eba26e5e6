"""Worker reader: an iterable dataset in, its batches out, made by worker processes that can be resumed.

A dataset with a state is read by torchdata's stateful workers, any other one by torch's own, which read it once more
from the beginning. torchdata's tell their state with each batch, and wait for all workers to start; so they are not
taken for a dataset that has nothing to tell.

Guarantees: whatever reads it is the library's own iterator, given the loader's arguments.
"""

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import torch.utils.data.dataloader as torch_dataloader
from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage.engine.outcome import SkipSample
from torchstage.errors import add_note
from torchstage.inline_epoch import InlineEpoch
from torchstage.lane_epoch import LaneEpoch
from torchstage.marks import keeper_of
from torchstage.reader_state import INLINE, LANES, kind_of
from torchstage.replay import fewer_than
from torchstage.tolerance import OnError
from torchstage.worker_epoch import WorkerEpoch

if TYPE_CHECKING:
    from torchstage.loader import StageLoader

NO_SKIP = (
    "torchstage: worker processes of an iterable dataset cannot leave a sample out. Read it in lanes, which are "
    "threads (worker_method='thread'), or with num_workers=0."
)
_Processes: Any = vars(torch_dataloader)["_MultiProcessingDataLoaderIter"]  # torch's own, which it leaves untyped


def worker_iterator(loader: "StageLoader[Any]", home: "StageLoader[Any]") -> Any:
    """``loader``: what the iterator is made of. ``home``: whose iterator it is."""
    if keeper_of(home.dataset) is not None:
        with suppress(ImportError):  # then its state cannot be told, and all else is as ever
            return StatefulWorkers(loader, home)
    loader.check_worker_number_rationality()
    return Workers(loader, home)


def refuse_to_tolerate(
    on_error: OnError, why: str = "they are torch's own, and tell nobody what they left out"
) -> None:
    """Worker processes that are torch's own tell nobody what they left out."""
    if on_error != "raise":
        told = repr(on_error) if isinstance(on_error, str) else "a function"
        raise ValueError(
            f"StageLoader: on_error is {told}, which worker processes of an iterable dataset cannot do: {why}. Read it "
            "in lanes, which are threads (worker_method='thread'), or with num_workers=0."
        )


def state_of_readers(loader: "StageLoader[Any]", epoch: Any) -> dict[str, Any]:
    """Where the latest epoch of an iterable dataset is; between two epochs, where the next one begins."""
    if epoch is None:
        kind = kind_of(loader)
        if kind == LANES:
            epoch = LaneEpoch(loader, None)
        else:
            epoch = InlineEpoch(loader, None, None) if kind == INLINE else WorkerEpoch(loader, None)
        epoch.is_finished = True
    return epoch.state(loader)


def _new_epoch(home: "StageLoader[Any]") -> WorkerEpoch:
    return home.new_reader_epoch(lambda resume, latest: WorkerEpoch(home, resume))


class _Seeded(_BaseDataLoaderIter):
    """Comes right before torch's base class, so that the seeds are those of the epoch before a worker starts."""

    _epoch: WorkerEpoch
    _base_seed: Any

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)  # pyright: ignore[reportUnknownMemberType]  # torch leaves it untyped
        self._base_seed, self._shared_seed = self._epoch.seeds(self._base_seed, self._shared_seed)


class Workers(_Processes, _Seeded):
    """torch's own worker processes."""

    _rcvd_idx: int

    def __init__(self, loader: "StageLoader[Any]", home: "StageLoader[Any]") -> None:
        epoch = self._epoch = _new_epoch(home)
        with epoch.drawing_base_seed(cast(Any, home).generator):
            _Processes.__init__(self, loader)
        self._num_yielded = epoch.num_batches

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            self._epoch = _new_epoch(loader)
        _Processes._reset(self, loader, first_iter)
        self._epoch.seeds(self._base_seed, self._shared_seed)

    def _next_data(self) -> Any:
        self._epoch.begin()
        replay = self._epoch.replay
        while replay.num_left():
            num_received = self._num_received()
            try:
                _Processes._next_data(self)
            except StopIteration:
                raise replay.too_few("the worker processes together") from None
            except Exception:
                if self._num_received() == num_received:  # nothing came: a worker died, or is late
                    raise
            replay.made()
            replay.attend()
        return _handed_out(self._epoch, partial(_Processes._next_data, self), self._num_received)

    def _num_received(self) -> int:
        return self._rcvd_idx


class StatefulWorkers:
    """torchdata's stateful worker processes.

    A worker that had ended when the state was saved is started again there, and told the state of its end. Where a
    dataset takes that for the beginning of the next epoch, its batches would come twice: they are left out.
    """

    def __init__(self, loader: "StageLoader[Any]", home: "StageLoader[Any]") -> None:
        self._loader = _stateful_loader(loader)
        epoch = self._epoch = _new_epoch(home)
        own: dict[str, Any] | None = None if epoch.resume is None else epoch.resume.own
        if own is not None:
            self._loader.load_state_dict(copy.deepcopy(own["torchdata"]))
        with epoch.drawing_base_seed(cast(Any, home).generator):
            self._iterator = self._started(own)
        self._follow(set() if own is None else set(own["ended"]))

    def _started(self, own: dict[str, Any] | None) -> Any:
        """torchdata's iterator, which reads what was handed out since its workers told their states once more."""
        try:
            return iter(self._loader)
        except StopIteration:
            num_again = 0 if own is None else own["torchdata"]["_steps_since_snapshot"]
            words = "the worker processes together"
        raise fewer_than(words, num_again)

    def _follow(self, ended: set[int]) -> None:
        epoch = self._epoch
        self._ended = ended
        epoch.seeds(self._iterator._base_seed, self._iterator._shared_seed)
        epoch.has_own, epoch.own = True, self._own()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._epoch = _new_epoch(loader)
        self._iterator = iter(self._loader)
        self._follow(set())

    def __iter__(self) -> "StatefulWorkers":
        return self

    def __next__(self) -> Any:
        return self._next_data()

    def _next_data(self) -> Any:
        try:
            return _handed_out(self._epoch, self._next_of_those_left, lambda: self._iterator._rcvd_idx)
        finally:
            self._epoch.own = self._own()

    def _next_of_those_left(self) -> Any:
        while True:
            batch = next(self._iterator)
            if self._iterator._last_yielded_worker_id not in self._ended:
                return batch

    def _own(self) -> dict[str, Any]:
        """A few items, which torchdata does not change afterwards."""
        iterator = self._iterator
        state = iterator.state_dict()
        if iterator._finished:
            return {"torchdata": state, "ended": []}
        waiting = {task[0] for task in iterator._task_info.values()}
        over = {number for number, is_alive in enumerate(iterator._workers_status) if not is_alive} - waiting
        return {"torchdata": state, "ended": sorted(over | _ended_inside(state) | self._ended)}

    def __len__(self) -> int:
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        if name in ("_ended", "_iterator", "_epoch", "_loader"):  # it failed before it had one
            raise AttributeError(name)
        return getattr(self._iterator, name)


def _ended_inside(state: Any) -> set[int]:
    """Workers whose dataset ended inside their last batch."""
    workers: dict[str, Any] = state["_snapshot"]["_worker_snapshots"]
    fetchers: list[dict[str, Any] | None] = [worker["fetcher_state"] for worker in workers.values()]
    return {number for number, fetcher in enumerate(fetchers) if fetcher is not None and fetcher["fetcher_ended"]}


def _handed_out(epoch: WorkerEpoch, next_data: Callable[[], Any], num_received: Callable[[], int]) -> Any:
    epoch.begin()
    num_before = num_received()
    try:
        batch = next_data()
    except StopIteration:
        epoch.is_finished = True
        raise
    except Exception as error:
        if isinstance(error, SkipSample):
            add_note(error, NO_SKIP)
        if num_received() > num_before:  # it comes in the place of the batch; else a worker died, or is late
            epoch.hand_out()
        raise
    epoch.hand_out()
    return batch


def _stateful_loader(loader: Any) -> Any:
    """torchdata's, with the same arguments."""
    stateful: Any = import_module("torchdata.stateful_dataloader")  # it has no types
    options: dict[str, Any] = {} if loader.in_order else {"in_order": False}
    return stateful.StatefulDataLoader(
        getattr(loader.dataset, "_datapipe", None) or loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        snapshot_every_n_steps=loader.snapshot_every_n_steps,
        **options,
    )
