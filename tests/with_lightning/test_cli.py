"""LightningCLI: the DataModule is made from arguments and configurations."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")
pytest.importorskip("jsonargparse")

from frameworks.training import QUIET, Recorder
from lightning.pytorch.cli import LightningCLI

from torchstage.lightning import StageDataModule

# Lightning calls what jsonargparse has renamed.
pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

QUIETLY: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_epochs": 1,
}


def run(folder: Path, *arguments: str) -> LightningCLI:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", "fit", *arguments])
        return LightningCLI(
            Recorder,
            StageDataModule,
            trainer_defaults={**QUIETLY, "default_root_dir": str(folder)},
            save_config_callback=None,
            seed_everything_default=False,
        )


def test_datasets_and_loader_arguments_come_from_the_command_line(tmp_path: Path) -> None:
    cli = run(
        tmp_path,
        *("--data.train_dataset=with_lightning.data.Noisy", "--data.train_dataset.length=10"),
        *("--data.batch_size=5", "--data.num_workers=2", "--data.isolation=shared", "--data.seed=3"),
    )
    loader: Any = cli.trainer.train_dataloader
    assert (len(loader.dataset), loader.batch_size, loader.num_workers) == (10, 5, 2)
    assert (loader.isolation, loader.seed) == ("shared", 3)
    assert len(cli.model.seen_in("fit")) == 2


def test_a_configuration_may_have_a_mapping_of_datasets_and_a_sampler(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        """
data:
  train_dataset:
    a: {class_path: with_lightning.data.Noisy, init_args: {length: 4}}
    b: {class_path: with_lightning.data.Noisy, init_args: {length: 6}}
  val_dataset:
    - class_path: with_lightning.data.Numbers
  batch_size: 2
  num_workers: 2
  collate_fn: torch.utils.data.default_collate
  stages:
    - class_path: torchstage.Stage
      init_args: {fn: torch.neg}
"""
    )
    cli = run(tmp_path, f"--config={config}")
    batches = cli.model.seen_in("fit")
    assert [sorted(batch) for batch in batches] == 3 * [["a", "b"]]
    assert all((batch["b"][:, 0] <= 0).all() for batch in batches)
