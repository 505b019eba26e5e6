"""The monitor: what reaches the loggers, the progress bar, the log and the user, and what it costs."""

import csv
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder, new_trainer
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger
from torch.utils.data import DataLoader, Dataset

from torchstage import Stage
from torchstage.lightning import StageDataModule, StageStatsMonitor
from torchstage.lightning.monitor import as_sentence

from .data import Noisy, Numbers, Plain

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging:UserWarning"),
]
# What MLflow allows, which TensorBoard does not change either.
MLFLOW = re.compile(r"^[/\w.\- ]*$")


class Remembering(Logger):
    """Keeps what it is told, by step."""

    name, version = "remembering", "0"

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.told.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...

    def of(self, name: str) -> list[tuple[int | None, float]]:
        return [(step, metrics[name]) for step, metrics in self.told if name in metrics]

    def names(self, begin: str) -> list[set[str]]:
        keys = [{key for key in metrics if key.startswith(begin)} for _, metrics in self.told]
        return [key for key in keys if key]


def modules(**arguments: Any) -> StageDataModule:
    sets = {f"{name}_dataset": Numbers() for name in ("train", "val", "test", "predict")}
    return StageDataModule(**{**sets, "batch_size": 2, "num_workers": 2, **arguments})


def watched(module: Any, monitor: StageStatsMonitor | None = None, model: Any = None, **options: Any) -> Any:
    logger = Remembering()
    trainer = new_trainer(
        **{"logger": logger, "callbacks": [monitor or StageStatsMonitor()], "log_every_n_steps": 2, **options}
    )
    trainer.fit(model or Recorder(), datamodule=module)
    return trainer, logger


class Evaluating(Recorder):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        return self._note("validate", batch)


# Loggers --------------------------------------------------------------------------------------------------------


def test_statistics_are_written_every_n_steps_at_the_steps_of_training() -> None:
    _, logger = watched(modules(stages=[Stage(torch.neg, name="negate")]), max_epochs=2, log_every_n_steps=4)
    steps = [step for step, _ in logger.of("data/train/samples_per_second")]
    assert steps == [3, 7, 11, 15, 19]
    assert [step for step, _ in logger.of("data/train/negate/busy_share")] == steps
    assert sum(value for _, value in logger.of("data/train/fetch/samples")) >= 5 * 4 * 2


def test_each_time_has_the_same_names() -> None:
    _, logger = watched(modules(), max_epochs=2)
    for kind in ("train", "val"):
        first, *others = logger.names(f"data/{kind}/")
        assert others
        assert all(names == first for names in others)


def test_names_hold_to_the_rules_and_have_units() -> None:
    module = modules(stages=[Stage(lambda sample: sample), Stage(torch.neg, name="a/b: c%")])
    _, logger = watched(module, max_epochs=1)
    names = set().union(*logger.names("data/"))
    assert all(MLFLOW.match(name) for name in names)
    assert "data/train/a_b_c_/p95_seconds" in names
    units = ("_seconds", "_share", "_per_second", "_in_flight", "samples", "errors", "queued")
    assert all(name.endswith(units) for name in names)


def test_mlflow_itself_takes_the_names() -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    module = modules(stages=[Stage(lambda sample: sample), Stage(torch.neg, name="a/b: c%")])
    _, logger = watched(module, StageStatsMonitor(slowest_rank=True), max_epochs=1)
    for name in set().union(*logger.names("data/")):
        validation._validate_metric_name(name)


def test_validation_is_written_when_it_ends_at_the_step_that_training_has_come_to() -> None:
    _, logger = watched(modules(), max_epochs=2, num_sanity_val_steps=1)
    assert [step for step, _ in logger.of("data/val/wait_share")] == [10, 21]
    assert [value for _, value in logger.of("data/val/fetch/samples")] == [22, 22]


@pytest.mark.parametrize(("kind", "name"), [("validate", "val"), ("test", "test"), ("predict", "predict")])
def test_other_runs_write_at_the_number_of_the_batch(kind: str, name: str) -> None:
    logger = Remembering()
    trainer = new_trainer(logger=logger, callbacks=[StageStatsMonitor()], log_every_n_steps=4)
    getattr(trainer, kind)(Recorder(), datamodule=modules())
    assert [step for step, _ in logger.of(f"data/{name}/samples_per_second")] == [4, 8, 11]


def test_several_loaders_are_told_apart() -> None:
    module = StageDataModule({"a": Noisy(), "b c": Noisy()}, [Noisy(), Noisy()], batch_size=4, num_workers=2)
    _, logger = watched(module, model=Evaluating(), max_epochs=1)
    for name in ("train_a", "train_b_c", "val_0", "val_1"):
        assert logger.of(f"data/{name}/wait_share")


def test_accumulated_batches_are_one_step() -> None:
    _, logger = watched(modules(), max_epochs=1, accumulate_grad_batches=3, log_every_n_steps=1)
    assert [step for step, _ in logger.of("data/train/wait_share")] == [0, 1, 2, 3]


def test_loaders_that_are_made_anew_are_followed() -> None:
    _, logger = watched(modules(), max_epochs=3, reload_dataloaders_every_n_epochs=1, log_every_n_steps=11)
    assert [value for _, value in logger.of("data/train/fetch/samples")] == [22, 22, 22]


def test_other_loaders_and_no_logger_are_nothing_to_it() -> None:
    watched(Plain(lambda: DataLoader(Numbers())), max_epochs=1)
    watched(modules(), max_epochs=1, logger=False)


def test_the_csv_logger_has_a_column_for_each(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    watched(modules(), max_epochs=1, logger=logger)
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    written = [(int(row["step"]), float(row["data/train/wait_share"])) for row in rows if row["data/train/wait_share"]]
    assert [step for step, _ in written] == [1, 3, 5, 7, 9]
    assert all(0 <= share <= 1 for _, share in written)


def test_tensorboard_has_a_scalar_for_each(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    watched(modules(), max_epochs=1, logger=logger)
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"data/train/wait_share", "data/train/fetch/p95_seconds", "data/val/samples_per_second"} <= set(tags)
    assert [event.step for event in events.Scalars("data/train/wait_share")] == [1, 3, 5, 7, 9]


# People ---------------------------------------------------------------------------------------------------------


class Bar(TQDMProgressBar):
    """Keeps what it was to show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[dict[str, Any]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        super().on_train_batch_end(trainer, pl_module, *others)
        self.shown.append(dict(self.get_metrics(trainer, pl_module)))


@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_progress_bar_shows_the_share_of_waiting(is_wanted: bool, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar()
    monitor = StageStatsMonitor(progress_bar=is_wanted)
    watched(modules(), max_epochs=1, callbacks=[monitor, bar], enable_progress_bar=True)
    capsys.readouterr()
    assert any("data_wait" in shown for shown in bar.shown) == is_wanted
    assert all(0 <= shown.get("data_wait", 0) <= 1 for shown in bar.shown)


def test_the_bar_of_rich_shows_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    from lightning.pytorch.callbacks import RichProgressBar

    bar = RichProgressBar(refresh_rate=1)
    watched(modules(), max_epochs=1, callbacks=[StageStatsMonitor(), bar], enable_progress_bar=True)
    assert "data_wait" in str(bar.get_metrics(bar.trainer, bar.trainer.lightning_module))
    assert re.search(r"data_wait:\s+\d", capsys.readouterr().out)


class Sleeping(Dataset[torch.Tensor]):
    """A batch of two takes longer than any step of training that does nothing."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.04)
        return torch.tensor([index])


@pytest.mark.timing
def test_a_summary_ends_each_epoch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        watched(modules(), max_epochs=2)
    said = [record.message for record in caplog.records if record.message.startswith("Data of")]
    assert [message.partition(":")[0] for message in said] == ["Data of epoch 0, train", "Data of epoch 1, train"]
    assert all("22 samples in" in message for message in said)
    assert all(re.search(r"% of a step\. [A-Z]|% of a step\. (fetch|collate) ", message) for message in said)


@pytest.mark.parametrize(
    ("advice", "sentence"),
    [
        ("training is the limit: 1 thread would do.", "Training is the limit: 1 thread would do."),
        ("balanced: training waits 4 %.", "Balanced: training waits 4 %."),
        ("decode is busy: raise num_workers.", "decode is busy: raise num_workers."),
    ],
)
def test_a_sentence_begins_with_a_capital_and_a_stage_with_its_name(advice: str, sentence: str) -> None:
    assert as_sentence(advice) == sentence


@pytest.mark.timing
def test_a_warning_says_once_that_training_waits_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchstage.lightning.monitor.MIN_WAIT_SECONDS", 0.01)
    module = StageDataModule(Sleeping(), batch_size=2, num_workers=1, isolation="shared")
    with pytest.warns(UserWarning, match=r"Training waited for data for \d+ % of epoch 0 \(train\)\. .+") as caught:
        watched(module, StageStatsMonitor(max_wait_share=0.05), max_epochs=2)
    assert len([warning for warning in caught if "waited for data" in str(warning.message)]) == 1


@pytest.mark.parametrize("share", [0, 1.5, -1])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="max_wait_share must be above 0 and at most 1"):
        StageStatsMonitor(max_wait_share=share)


def test_the_slowest_rank_is_written_at_the_end_of_an_epoch() -> None:
    _, logger = watched(modules(), StageStatsMonitor(slowest_rank=True), max_epochs=2)
    assert logger.of("data/train/slowest_rank") == [(10, 0.0), (21, 0.0)]
    assert len(logger.of("data/train/slowest_rank_wait_share")) == 2


@pytest.mark.timing
def test_training_that_does_not_wait_is_not_warned_of() -> None:
    class Slow(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            time.sleep(0.005)
            return super().training_step(batch, batch_idx)

    watched(modules(), StageStatsMonitor(max_wait_share=0.9), Slow(), max_epochs=1)


@pytest.mark.parametrize("options", [{"barebones": True}, {"fast_dev_run": True}, {"log_every_n_steps": 0}])
@pytest.mark.parametrize("run", ["fit", "validate", "test", "predict"])
def test_where_nothing_is_to_be_written_nothing_is(run: str, options: dict[str, Any]) -> None:
    if "barebones" in options:
        trainer = Trainer(accelerator="cpu", max_epochs=1, callbacks=[StageStatsMonitor()], **options)
        logger = None
    else:
        logger = Remembering()
        trainer = new_trainer(logger=logger, max_epochs=1, callbacks=[StageStatsMonitor()], **options)
    getattr(trainer, run)(Recorder(), datamodule=modules(val_dataset=None) if run == "fit" else modules())
    assert logger is None or not logger.of("data/train/wait_share")
