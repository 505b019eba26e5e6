"""Progress: a trainer in, how far its training epoch is, out; and the epoch's count put right where ranks have changed.

All that is read of Lightning's loops is read here.

Guarantees: counts are Lightning's own; nothing is changed but the count of the epoch that a state goes on in, and only
when it was counted in other batches.
"""

import weakref
from typing import Any, cast

from lightning.pytorch import Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader


class Progress:
    """How far a trainer is. Without one nothing is ahead, and no epoch is over."""

    def __init__(self, trainer: Trainer | None) -> None:
        self._trainer = None if trainer is None else weakref.ref(trainer)
        self._num_ahead_at_end = 0
        self.epoch: int | None = None  # that the latest batches were asked for in
        self._epoch_before: int | None = None  # likewise, those before
        self._num_at_begin = 0  # how many batches were trained with by then

    @property
    def trainer(self) -> Trainer | None:
        return None if self._trainer is None else self._trainer()

    @property
    def _fit_loop(self) -> Any:
        return getattr(self.trainer, "fit_loop", None)

    @property
    def combined(self) -> CombinedLoader | None:
        """The loaders that it trains with, as Lightning uses them."""
        return getattr(self._fit_loop, "_combined_loader", None)

    @property
    def mode(self) -> str | None:
        """How the loaders are combined."""
        return None if self.combined is None else cast(Any, self.combined)._mode

    @property
    def loaders(self) -> list[Any]:
        return [] if self.combined is None else list(self.combined.flattened)

    @property
    def reads_ahead(self) -> bool:
        """Whether Lightning asks for a batch before it hands out the one before: it does where no length is known."""
        fetcher = getattr(self._fit_loop, "_data_fetcher", None)
        return fetcher is not None and fetcher.length is None and hasattr(fetcher, "batches")

    @property
    def num_ahead(self) -> int:
        """How many batches were asked for and not trained with."""
        fetcher = getattr(self._fit_loop, "_data_fetcher", None)
        return self._num_ahead_at_end if fetcher is None else len(getattr(fetcher, "batches", ()))

    def end(self) -> None:
        """Training has ended: Lightning is about to forget what it has read ahead."""
        self._num_ahead_at_end = self.num_ahead

    @property
    def num_batches(self) -> int:
        """Batches of this rank trained with in the epoch, those before a resume too."""
        return 0 if self._fit_loop is None else self._fit_loop.epoch_loop.batch_progress.current.ready

    @property
    def num_trained(self) -> int:
        """Batches of this rank trained with in all epochs."""
        return 0 if self._fit_loop is None else self._fit_loop.epoch_loop.batch_progress.total.ready

    @property
    def is_epoch_over(self) -> bool:
        """Whether Lightning has had the last batch of its epoch, which ``limit_train_batches`` may make shorter."""
        fit_loop = self._fit_loop
        if fit_loop is None or not self.num_batches:
            return False
        return bool(fit_loop.epoch_loop.batch_progress.is_last_batch) or self.num_batches >= fit_loop.max_batches

    @property
    def is_resumed_inside(self) -> bool:
        """Whether training starts inside an epoch, of which a checkpoint has told."""
        return self._fit_loop.epoch_loop.restarting and self.num_batches > 0 and not self.is_epoch_over

    @property
    def num_dropped(self) -> int:
        """Of how many loaders Lightning has found states in a checkpoint, and gives them to nobody any more."""
        return len(getattr(self._fit_loop, "_combined_loader_states_to_load", ()))

    def take_dropped_states(self) -> list[dict[str, Any]]:
        """These states."""
        states: list[dict[str, Any]] = list(self._fit_loop._combined_loader_states_to_load)
        self._fit_loop._combined_loader_states_to_load = []
        return states

    @property
    def current_epoch(self) -> int | None:
        return None if self._fit_loop is None else self._fit_loop.epoch_progress.current.processed

    def begin_epoch(self) -> None:
        """The first batch of an epoch, or of its rest, is asked for."""
        if self._num_at_begin != self.num_trained:
            self._epoch_before = self.epoch
        self.epoch = self.current_epoch
        self._num_at_begin = self.num_trained

    @property
    def epoch_trained(self) -> int | None:
        """The epoch of the latest batches that were trained with. Where Lightning has made loaders for the next one, it
        has read ahead there, and still has the counts of the one before."""
        is_ahead = self.is_epoch_over and self._num_at_begin == self.num_trained
        return self._epoch_before if is_ahead and self._epoch_before is not None else self.epoch

    def tell_epoch(self, loader: Any) -> None:
        """Tell a loader's samplers the epoch, as Lightning did before."""
        epoch = self.current_epoch
        samplers: tuple[Any, ...] = (loader.sampler, getattr(loader.batch_sampler, "sampler", None))
        for sampler in samplers:
            if epoch is not None and callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(epoch)

    def reopen_epoch(self) -> None:
        """Lightning counts an epoch that ``max_steps`` or ``should_stop`` has cut as done, and would give its rest to
        the next one. From here on it is in the midst of it, as after a checkpoint that was saved there."""
        fit_loop = self._fit_loop
        for counts in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
            counts.processed -= 1
            counts.completed = counts.processed
        # It has noted that the loaders were made in the epoch that it took for the current one.
        fit_loop._last_train_dl_reload_epoch = min(fit_loop._last_train_dl_reload_epoch, self.current_epoch)
        fit_loop.restarting = True
        fit_loop.update_restart_stage()

    def begin_next_epoch(self) -> None:
        """Lightning would go on in an epoch that was over, find nothing left, and skip the next one. Where a checkpoint
        was saved before Lightning had counted the last batch, it knows better."""
        fit_loop = self._fit_loop
        epoch_loop = fit_loop.epoch_loop
        if epoch_loop.restarting and not epoch_loop.restarted_on_train_batch_end:
            epoch_loop.restarting = False
        # With max_steps it would end the epoch again. After its last batch it takes the next epoch for begun, which
        # then is counted too few times: what that run saves in it would look as if the epoch was over.
        if fit_loop.restarted_on_epoch_end or fit_loop.restarted_mid_epoch:
            for counts in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
                counts.completed = counts.processed
            fit_loop.reset_restart_stage()

    @property
    def has_failed_in_a_batch(self) -> bool:
        """Whether a checkpoint was saved after an exception in the midst of a batch."""
        current = self._fit_loop.epoch_loop.batch_progress.current
        return current.processed < current.ready

    def count_epoch(self) -> None:
        """After an exception in the last batch of an epoch, Lightning expects that batch once more. It was handed out,
        so the epoch is over: counted as after a checkpoint that was saved when that batch had ended."""
        fit_loop = self._fit_loop
        for counts in (fit_loop.epoch_progress.total, fit_loop.epoch_progress.current):
            counts.processed = counts.completed = counts.ready
        fit_loop.reset_restart_stage()

    def count_what_was_handed_out(self) -> None:
        """After an exception in its midst, Lightning expects the same batch once more. It was handed out: the
        loaders go on behind it."""
        current = self._fit_loop.epoch_loop.batch_progress.current
        if current.processed < current.ready:
            current.started = current.processed = current.completed = current.ready

    @property
    def made_in_epoch(self) -> int | None:
        """The epoch that the loaders were made in, which ``reload_dataloaders_every_n_epochs`` counts from."""
        latest = getattr(self._fit_loop, "_last_train_dl_reload_epoch", None)
        return latest if isinstance(latest, int) else None

    @made_in_epoch.setter
    def made_in_epoch(self, epoch: int | None) -> None:
        every = getattr(self.trainer, "reload_dataloaders_every_n_epochs", 0)
        is_due = (
            every and epoch is not None and (self.current_epoch or 0) - epoch >= every
        )  # those of now are new enough
        if epoch is not None and not is_due:
            self._fit_loop._last_train_dl_reload_epoch = epoch

    @property
    def reloads_next(self) -> bool:
        """Whether Lightning makes the loaders anew for the epoch after this one."""
        fit_loop, trainer = self._fit_loop, self.trainer
        every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
        return bool(every) and (self.epoch or 0) + 1 - fit_loop._last_train_dl_reload_epoch >= every

    def recount(self, num_passed: int | None) -> None:
        """The epoch is gone on with after so many batches of this rank; None: it is over."""
        fit_loop = self._fit_loop
        most = fit_loop.max_batches
        passed = most if num_passed is None else min(num_passed, most - 1)
        current = fit_loop.epoch_loop.batch_progress.current
        more = int(passed) - current.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(current, name, getattr(current, name) + more)
