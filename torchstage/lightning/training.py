"""Training: what a DataModule keeps of the training that it feeds: its loaders, and where to go on.

Guarantees: the state is that of the batches that were trained with; it is the same on all ranks, and has all that any
of them needs; one that does not fit is refused before a batch is made.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import torch.distributed
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn

from torchstage.lightning.fed import Fed, Feed
from torchstage.lightning.progress import Progress
from torchstage.lightning.recount import num_passed

VERSION = 1


class Training:
    """The training of one DataModule, from one ``train_dataloader()`` to the next."""

    def __init__(self) -> None:
        self._saved: dict[str, Any] | None = None  # what to go on with, until a batch is asked for
        self._is_of_run = False  # whether a run of the trainer has brought it, and no other run may have it
        self._has_started = False
        self._num_at_start = 0  # batches that were trained with before this run
        self._progress = Progress(None)
        self._feeds: list[Feed] = []
        self._others: list[Feed] = []  # of evaluation, and of training loaders that were made before
        self._loaders: list[Any] = []  # those that training has ended with
        self._keeper: Keeper | None = None

    def begin(self, trainer: Trainer | None) -> Callable[[], Feed]:
        """Loaders are made anew. What is returned gives each of them its feed, in their order."""
        if self._progress.trainer is not trainer:
            self._progress = Progress(trainer)
        self._forget_what_is_used()
        if self._is_of_run and trainer is not None and trainer.ckpt_path is None:
            self._saved = None
        before = [loader.feed.num_epochs_of(loader) for loader in self._fed_loaders()] if self._has_started else []
        self._others = [feed for feed in (*self._others, *self._feeds) if feed.loaders]
        self._feeds = []
        self._loaders = []
        if trainer is not None:
            self._keep(trainer)
        numbers = count()
        return lambda: self._new_feed(next(numbers), before)

    def _new_feed(self, number: int, before: list[tuple[int, int]]) -> Feed:
        feed = Feed(self._progress, self._state_of(number), before[number] if number < len(before) else (0, 0))
        feed.on_begin = self._begun
        self._feeds.append(feed)
        return feed

    def evaluation_feed(self) -> Feed:
        """For loaders that are closed with the others, and have no state."""
        feed = Feed(Progress(None))
        self._others = [feed, *(feed for feed in self._others if feed.loaders)]
        return feed

    def _begun(self) -> None:
        self._progress.begin_epoch()
        if self._has_started:  # else Lightning has read ahead, and may make the loaders once more
            self._saved = None

    def _forget_what_is_used(self) -> None:
        """Where Lightning has read ahead, a state counts until a batch was trained with."""
        if self._has_started and self._progress.num_trained != self._num_at_start:
            self._saved = None

    # State ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        self._forget_what_is_used()
        if self._saved is not None:
            return self._saved
        loaders = self._fed_loaders()
        if not loaders:
            return {}
        states = [loader.state_dict() for loader in loaders]
        has_own = any(_depends_on_rank(loader) for loader in loaders)
        return {
            "version": VERSION,
            "num_ranks": self._num_ranks,
            "epoch": self._progress.epoch_trained,
            "is_epoch_over": self._progress.is_epoch_over,
            "made_in_epoch": self._progress.made_in_epoch,
            "batch_sizes": [loader.batch_size for loader in loaders],
            "ranks": _of_all_ranks(states) if has_own and self._num_ranks > 1 else [states],
        }

    def load_state_dict(self, state: dict[str, Any], trainer: Trainer | None) -> None:
        is_running = trainer is not None and trainer.state.status == TrainerStatus.RUNNING
        if is_running and trainer is not None and trainer.state.fn != TrainerFn.FITTING:
            return  # trainer.test(ckpt_path=...) and the like: there is nothing to go on with
        if state.get("version") != VERSION:
            raise ValueError(
                f"StageDataModule: this state is of version {state.get('version')!r}, and this torchstage knows "
                f"version {VERSION}. Load it with the torchstage that saved it."
            )
        self._saved = state
        self._is_of_run = is_running
        self._has_started = False
        for number, feed in enumerate(self._feeds):
            feed.pending = self._state_of(number)

    def _state_of(self, number: int) -> dict[str, Any] | None:
        if self._saved is None:
            return None
        ranks = self._saved["ranks"]
        trainer = self._progress.trainer
        if len(ranks) > 1 and len(ranks) != self._num_ranks:
            raise ValueError(
                f"StageDataModule: the state was saved by {len(ranks)} ranks, each with a place of its own in its "
                f"iterable dataset, and there are {self._num_ranks} now. Go on with {len(ranks)} ranks, or begin the "
                "epoch without the state. Map-style datasets may go on with any number of ranks."
            )
        states = ranks[0 if len(ranks) == 1 or trainer is None else trainer.global_rank]
        return states[number] if number < len(states) else None

    @property
    def _num_ranks(self) -> int:
        trainer = self._progress.trainer
        return 1 if trainer is None else trainer.world_size

    def _fed_loaders(self) -> list[Any]:
        return [loader for loader in self._progress.loaders or self._loaders if isinstance(loader, Fed)]

    # What the trainer tells -------------------------------------------------------------------------------------

    def _keep(self, trainer: Trainer) -> None:
        if self._keeper is None:
            self._keeper = Keeper(self)
        callbacks = _callbacks_of(trainer)
        if self._keeper not in callbacks:
            callbacks.append(self._keeper)

    def start(self) -> None:
        """Training starts, with loaders that are ready."""
        self._has_started = True
        self._num_at_start = self._progress.num_trained
        for feed in self._feeds:
            feed.start()
        saved = self._saved
        if saved is None:
            self._ask_for_a_place()
            return
        self._check_number(saved)
        progress = self._progress
        if saved["is_epoch_over"] and progress.has_failed_in_a_batch:
            progress.count_epoch()
        if progress.current_epoch == (saved["epoch"] or 0) + 1:
            if saved["is_epoch_over"]:
                progress.begin_next_epoch()
            else:
                progress.reopen_epoch()
        progress.count_what_was_handed_out()
        progress.made_in_epoch = saved.get("made_in_epoch")
        loaders = self._fed_loaders()
        sizes = [loader.batch_size for loader in loaders]
        if saved["num_ranks"] != self._num_ranks or saved["batch_sizes"] != sizes:
            self._recount(saved, loaders)
        if any(feed.pending is None for feed in self._feeds):  # Lightning has read ahead, before it had its counts
            progress.begin_epoch()

    def _ask_for_a_place(self) -> None:
        """A checkpoint from inside an epoch has no state of this DataModule's: then it has Lightning's own copy of the
        loaders', or nothing. Lightning drops its copy where it has made the loaders before it restores anything."""
        progress, feeds = self._progress, self._feeds
        if not feeds or not progress.is_resumed_inside or any(feed.was_given for feed in feeds):
            return
        states = progress.take_dropped_states()
        if not states:
            rank_zero_warn(
                "StageDataModule: the checkpoint was saved inside an epoch, and has no place in its data: neither this "
                "DataModule nor a StageLoader has saved it. The rest of the epoch is given its first samples again.",
                category=PossibleUserWarning,
            )
        elif len(states) == len(feeds) == len(progress.loaders) and not any(feed.has_begun for feed in feeds):
            for feed, state in zip(feeds, states, strict=True):
                feed.pending = state
        else:
            raise RuntimeError(
                f"StageDataModule: the checkpoint has the places of {len(states)} loaders in their data, but not from "
                "a DataModule of this name, and Lightning has not handed them over. Go on with the class that has "
                "saved it, or do not ask for trainer.estimated_stepping_batches."
            )

    def _check_number(self, saved: dict[str, Any]) -> None:
        num_states, num_loaders = len(saved["ranks"][0]), len(self._fed_loaders())
        if num_states != num_loaders:
            raise ValueError(
                f"StageDataModule: the state has {num_states} training loaders, and there are {num_loaders} now. Make "
                "the datasets as they were when it was saved."
            )

    def _recount(self, saved: dict[str, Any], loaders: list[Any]) -> None:
        """The batches of this rank are not those that were counted."""
        if saved["is_epoch_over"]:
            self._progress.recount(None)
            return
        states = [self._state_of(number) or {} for number in range(len(loaders))]
        passed = [num_passed(loader, state) for loader, state in zip(loaders, states, strict=True)]
        if None in passed:  # without a length Lightning does not count
            return
        choose = min if self._progress.mode == "min_size" else max
        lengths = [len(loader) for loader in loaders]
        self._progress.recount(passed[lengths.index(choose(lengths))])

    def end(self) -> None:
        """Training has ended, for whatever reason."""
        self._has_started = False
        self._progress.end()
        self._loaders = self._progress.loaders

    def close(self) -> None:
        """End all threads. The state stays."""
        for feed in (*self._feeds, *self._others):
            feed.close()
        trainer, keeper = self._progress.trainer, self._keeper
        if trainer is not None and keeper is not None and keeper in _callbacks_of(trainer):
            _callbacks_of(trainer).remove(keeper)

    def __getstate__(self) -> dict[str, Any]:
        return {"saved": self._saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()
        self._saved = state["saved"]


class Keeper(Callback):
    """Tells the training what a DataModule is not told."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.start()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._training.end()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._training.end()


def _depends_on_rank(loader: Any) -> bool:
    """Whether one rank's place in the data says nothing of another's."""
    return not loader.in_order or isinstance(loader.dataset, torch.utils.data.IterableDataset)


def _of_all_ranks(states: list[Any]) -> list[Any]:
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, states)
    return gathered


def _callbacks_of(trainer: Trainer) -> list[Callback]:
    return getattr(trainer, "callbacks")  # noqa: B009 - it is set outside of __init__, where type checkers look
