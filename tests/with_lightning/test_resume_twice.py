"""Resume from what is saved when an epoch begins, ends or fails; and once more from what the resumed run has saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

from frameworks.training import QUIET, Recorder
from torch.utils.data import DataLoader

from torchstage.lightning import StageDataModule

from .data import NUM_BATCHES, Batches, Estimating, Noisy, NoisyStream, Plain, SaveAt, trained

pytestmark = [*QUIET]

MODELS = pytest.mark.parametrize("model", [Recorder, Estimating])
RELOADING = pytest.mark.parametrize("every", [0, 1])
DATAMODULES: dict[str, Callable[[], StageDataModule]] = {
    "sized": lambda: StageDataModule(Noisy(), batch_size=4, num_workers=2, seed=4),
    "a stream": lambda: StageDataModule(NoisyStream(), batch_size=4, num_workers=2, lanes=1, seed=4),
    "batches without a length": lambda: StageDataModule.wrap(
        Plain(lambda: DataLoader(Noisy(), batch_sampler=Batches())), num_workers=2, seed=4
    ),
}
KINDS = pytest.mark.parametrize("kind", DATAMODULES)


class SaveAtStarts(SaveAt):
    """When an epoch begins, too: Lightning may have read ahead in it by then, and has the last one's counts."""

    def on_train_epoch_start(self, trainer: Any, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"start {self.num}.ckpt")


def new_run(
    kind: str, model: Recorder, folder: Path, cuts: tuple[int, ...], every: int, path: Path | None = None
) -> Any:
    options: dict[str, Any] = {"reload_dataloaders_every_n_epochs": every, "enable_checkpointing": True}
    return trained(DATAMODULES[kind](), model, path, callbacks=[SaveAtStarts(folder, cuts)], **options)[0]


@MODELS
@RELOADING
@KINDS
def test_what_is_saved_when_an_epoch_begins_is_gone_on_with(
    kind: str, every: int, model: type[Recorder], tmp_path: Path
) -> None:
    whole = new_run(kind, model(), tmp_path, (), every)
    starts = sorted(tmp_path.glob("start *.ckpt"))
    assert len(starts) == 3
    for path in starts:
        rest = new_run(kind, model(), tmp_path / "again", (), every, path)
        assert rest == whole[int(path.stem.split()[-1]) :], path.stem


@MODELS
@KINDS
@pytest.mark.parametrize("first", ["6", "start 6", "epoch 6"])
def test_what_a_resumed_run_has_saved_is_gone_on_with(
    first: str, kind: str, model: type[Recorder], tmp_path: Path
) -> None:
    every = 1 if first == "start 6" else 0
    whole = new_run(kind, model(), tmp_path, (2, NUM_BATCHES), every)
    begin = int(first.split()[-1])
    new_run(kind, model(), tmp_path / "again", (2, NUM_BATCHES), every, tmp_path / f"{first}.ckpt")
    wrong = {}
    for path in (tmp_path / "again").glob("*.ckpt"):
        cut = begin + int(path.stem.split()[-1])
        if cut < len(whole):
            rest = new_run(kind, model(), tmp_path / "last", (), every, path)
            if rest != whole[cut:]:
                wrong[path.stem] = [epoch for epoch, _ in rest]
    assert not wrong
