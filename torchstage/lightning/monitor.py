"""Monitor: a trainer's loaders in; what they have done and what training has waited for, to its loggers, out.

Guarantees: what is written costs nothing in the steps between; only StageLoaders are asked; names of metrics have their
units in them, and hold to the rules of MLflow and TensorBoard.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from torchstage.lightning.progress import Progress
from torchstage.loader import StageLoader
from torchstage.metrics import in_name, metrics_of
from torchstage.observe.watched import Windows
from torchstage.stats import LoaderStats

BAR_SECONDS = 1.0  # the progress bar's number is renewed no more often: Lightning takes a millisecond for it
MIN_BATCHES = 10  # fewer say nothing of how long training waits
MIN_WAIT_SECONDS = 1.0  # in an epoch; less is not worth a warning


class StageStatsMonitor(Callback):
    """Writes the statistics of every StageLoader to the trainer's loggers, as DeviceStatsMonitor does a device's.

    A training loader's are written every ``Trainer(log_every_n_steps=...)`` steps, at the step's number, and are those
    since the time before. Those of validation are written when it ends. ``trainer.validate``, ``test`` and ``predict``
    write as often, at the number of the batch. Names are ``data/train/wait_share``, ``data/val/decode/busy_share``;
    several loaders are ``train_0`` or ``train_<key>``. What is not known is left out; a stage's times without a new
    sample are those of the time before, so that names do not come and go.

    Args:
        progress_bar: show the share of the time that training waits for data, as ``data_wait``.
        summary: say at the end of each epoch what the training loaders have done, with the bottleneck and what to do.
        max_wait_share: warn once in a run if training waits for data for more than this share of an epoch; None: never.
        slowest_rank: at the end of each epoch also write which rank has waited longest, and its numbers. All ranks then
            wait for each other there.
        prefix: what all names begin with.

    Raises RuntimeError when training starts inside an epoch, with a StageLoader of the user's own of which Lightning
    has dropped the state: the epoch would quietly begin anew.
    """

    def __init__(
        self,
        *,
        progress_bar: bool = True,
        summary: bool = True,
        max_wait_share: float | None = 0.25,
        slowest_rank: bool = False,
        prefix: str = "data",
    ) -> None:
        if max_wait_share is not None and not 0 < max_wait_share <= 1:
            raise ValueError(
                f"StageStatsMonitor: max_wait_share must be above 0 and at most 1, got {max_wait_share!r}. None: never "
                "warn."
            )
        self.progress_bar = progress_bar
        self.summary = summary
        self.max_wait_share = max_wait_share
        self.slowest_rank = slowest_rank
        self.prefix = prefix
        self._written = Windows()
        self._of_epoch = Windows()
        self._latest_of: dict[str, dict[str, float]] = {}  # what was written last, by the kind of loader
        self._last_step = -1
        self._last_bar = 0.0
        self._num_evaluated = 0
        self._has_warned = False

    # Training ---------------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._has_warned = False
        self._last_step = -1
        check_places(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for _, loader in named(trainer.train_dataloader, "train"):
            self._of_epoch.next_of(loader)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.progress_bar and not trainer.barebones and time.monotonic() - self._last_bar >= BAR_SECONDS:
            self._show(trainer)
        loop: Any = trainer.fit_loop.epoch_loop
        step: int = loop._batches_that_stepped
        if step == self._last_step or not is_time_to_write(trainer, step + 1):
            return
        self._last_step = step
        self._write(trainer, trainer.train_dataloader, "train", step)

    def _show(self, trainer: Trainer) -> None:
        self._last_bar = time.monotonic()
        shares = [self._of_epoch.peek(loader).wait_share for _, loader in named(trainer.train_dataloader, "train")]
        if shares:
            cast(Any, self).log("data_wait", max(shares), prog_bar=True, logger=False, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, loader in named(trainer.train_dataloader, "train"):
            stats = self._of_epoch.next_of(loader)
            if self.summary and stats.batches:
                rank_zero_info(summary_of(stats, f"epoch {trainer.current_epoch}, {name}"))
            if self.slowest_rank:
                self._write_slowest(trainer, name, stats)
            if self._is_worth_a_warning(stats):
                self._has_warned = True
                rank_zero_warn(
                    f"Training waited for data for {100 * stats.wait_share:.0f} % of epoch {trainer.current_epoch} "
                    f"({name}). {as_sentence(stats.advice)}"
                )

    def _is_worth_a_warning(self, stats: LoaderStats) -> bool:
        if self.max_wait_share is None or self._has_warned:
            return False
        if stats.batches < MIN_BATCHES or stats.wait_seconds < MIN_WAIT_SECONDS:
            return False
        return stats.wait_share > self.max_wait_share

    def _write_slowest(self, trainer: Trainer, name: str, stats: LoaderStats) -> None:
        mine = torch.tensor(
            [stats.wait_seconds, stats.wait_share, stats.samples_per_second],
            dtype=torch.float64,
            device=trainer.strategy.root_device,
        )
        ranks = trainer.strategy.all_gather(mine).reshape(-1, 3)
        slowest = int(ranks[:, 0].argmax())
        wait_share, samples_per_second = float(ranks[slowest, 1]), float(ranks[slowest, 2])
        begin = f"{self.prefix}/{name}/slowest_rank"
        self._log(
            trainer,
            {begin: slowest, f"{begin}_wait_share": wait_share, f"{begin}_samples_per_second": samples_per_second},
            step_of(trainer) - 1,
        )

    # Evaluation -------------------------------------------------------------------------------------------------

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer.val_dataloaders, "val")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer.test_dataloaders, "test")

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer.predict_dataloaders, "predict")

    def _begin(self, loaders: Any, kind: str) -> None:
        self._num_evaluated = 0
        for _, loader in named(loaders, kind):
            self._written.next_of(loader)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        if not trainer.sanity_checking:
            self._evaluated(trainer, trainer.val_dataloaders, "val")

    def on_test_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._evaluated(trainer, trainer.test_dataloaders, "test")

    def on_predict_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        self._evaluated(trainer, trainer.predict_dataloaders, "predict")

    def _evaluated(self, trainer: Trainer, loaders: Any, kind: str) -> None:
        self._num_evaluated += 1
        if not is_fitting(trainer) and is_time_to_write(trainer, self._num_evaluated):
            self._write(trainer, loaders, kind, self._num_evaluated)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._end(trainer, trainer.val_dataloaders, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, trainer.test_dataloaders, "test")

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(trainer, trainer.predict_dataloaders, "predict")

    def _end(self, trainer: Trainer, loaders: Any, kind: str) -> None:
        step = step_of(trainer) if is_fitting(trainer) else self._num_evaluated
        self._write(trainer, loaders, kind, step)

    # Writing ----------------------------------------------------------------------------------------------------

    def _write(self, trainer: Trainer, loaders: Any, kind: str, step: int) -> None:
        metrics: dict[str, float] = {}
        latest = self._latest_of.setdefault(kind, {})
        for name, loader in named(loaders, kind):
            stats = self._written.next_of(loader)
            if stats.batches:
                metrics |= metrics_of(stats, f"{self.prefix}/{name}")
        if metrics:
            latest |= metrics
            self._log(trainer, dict(latest), step)

    def _log(self, trainer: Trainer, metrics: dict[str, float], step: int) -> None:
        for logger in trainer.loggers:  # they write on the first rank alone
            logger.log_metrics(metrics, step=step)


def named(loaders: Any, name: str) -> Iterator[tuple[str, StageLoader[Any]]]:
    """The StageLoaders of a collection of loaders."""
    if isinstance(loaders, StageLoader):
        yield name, cast(StageLoader[Any], loaders)
    elif isinstance(loaders, Mapping):
        for key, value in cast(Mapping[Any, Any], loaders).items():
            yield from named(value, f"{name}_{in_name(key)}")
    elif isinstance(loaders, list | tuple):
        several = cast(list[Any], loaders)
        for number, value in enumerate(several):
            yield from named(value, name if len(several) == 1 else f"{name}_{number}")


def summary_of(stats: LoaderStats, what: str) -> str:
    return (
        f"Data of {what}: {stats.samples} samples in {stats.elapsed_seconds:.1f} s, {stats.samples_per_second:.0f} "
        f"samples/s; waited {stats.wait_seconds:.1f} s, {100 * stats.wait_share:.0f} % of a step. "
        f"{as_sentence(stats.advice)}"
    )


def as_sentence(advice: str) -> str:
    """Advice may follow a colon, so it begins with a small letter; the name of a stage stays as it is."""
    return advice[:1].upper() + advice[1:] if advice.startswith(("training is ", "balanced: ")) else advice


def check_places(trainer: Trainer) -> None:
    """Lightning gives loaders their states when it makes them. Where it makes them before it has read the checkpoint,
    it keeps the states and says nothing. A StageDataModule finds its own."""
    progress = Progress(trainer)
    if not progress.num_dropped or not progress.is_resumed_inside:
        return
    if any(getattr(loader, "feed", None) is None for _, loader in named(trainer.train_dataloader, "train")):
        raise RuntimeError(
            f"StageStatsMonitor: the checkpoint has the places of {progress.num_dropped} loaders in their data, and "
            "Lightning has not handed them over: it made the loaders before it read the checkpoint, as "
            "trainer.estimated_stepping_batches has it do. The epoch would begin anew. Give the loaders to the trainer "
            "by StageDataModule.wrap, which finds the places of loaders with a length, or do not ask for that property."
        )


def is_time_to_write(trainer: Any, number: int) -> bool:
    """``log_every_n_steps`` is 0 where nothing is to be written, as in ``Trainer(barebones=True)``."""
    every: int = trainer.log_every_n_steps
    return bool(every and trainer.loggers) and number % every == 0


def step_of(trainer: Trainer) -> int:
    loop: Any = trainer.fit_loop.epoch_loop
    return loop._batches_that_stepped


def is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn is not None and trainer.state.fn.value == "fit"
