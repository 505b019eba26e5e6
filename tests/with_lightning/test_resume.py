"""Resume: wherever training is cut, the resumed run is given the batches that it would have had, in their epochs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder, new_trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader

from torchstage.lightning import StageDataModule

from .data import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_EPOCHS,
    Batches,
    Estimating,
    Noisy,
    NoisyStream,
    Numbers,
    Plain,
    SaveAt,
    Stream,
    trained,
)

pytestmark = [*QUIET]

THREADS: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": 2}
SHORT = Noisy(10, first=100)  # three batches
CUTS = (2, NUM_BATCHES, NUM_BATCHES + 4, 2 * NUM_BATCHES)
MODELS = pytest.mark.parametrize("model", [Recorder, Estimating])


def loader(dataset: Any, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=BATCH_SIZE, **arguments)


def shuffled_by_its_generator() -> DataLoader[Any]:
    return loader(Noisy(), shuffle=True, generator=torch.Generator().manual_seed(3))


def wrapped(make: Callable[[], Any]) -> StageDataModule:
    return StageDataModule.wrap(Plain(make), num_workers=2, seed=4)


def combined(mode: Any) -> StageDataModule:
    return wrapped(lambda: CombinedLoader({"long": loader(Noisy()), "short": loader(SHORT)}, mode))


DATAMODULES: dict[str, Callable[[], StageDataModule]] = {
    "sized": lambda: StageDataModule(Noisy(), **THREADS),
    "with validation": lambda: StageDataModule(Noisy(), Noisy(8), **THREADS),
    "several datasets": lambda: StageDataModule({"long": Noisy(), "short": SHORT}, **THREADS),
    "batches without a length": lambda: StageDataModule(Numbers(), batch_sampler=Batches(), num_workers=2),
    "a stream": lambda: StageDataModule(Stream(), batch_size=BATCH_SIZE),
    "a stream and threads": lambda: StageDataModule(Stream(), **THREADS, lanes=1),
    "a stream with draws": lambda: StageDataModule(NoisyStream(), **THREADS, lanes=1, seed=4),
    "in order": lambda: StageDataModule(Noisy(), Noisy(8), **THREADS, shuffle=False),
    "a wrapped loader": lambda: wrapped(shuffled_by_its_generator),
    "cycling": lambda: wrapped(lambda: [loader(Noisy()), loader(SHORT)]),
    "as long as the longest": lambda: combined("max_size"),
    "as short as the shortest": lambda: combined("min_size"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    "limited": {"limit_train_batches": 4},
    "accumulating": {"accumulate_grad_batches": 4},
    "reloading": {"reload_dataloaders_every_n_epochs": 1},
    "reloading in turn": {"reload_dataloaders_every_n_epochs": 2},
    "validating often": {"val_check_interval": 2},
    "counting steps": {"max_epochs": -1, "max_steps": NUM_EPOCHS * NUM_BATCHES},
}
FEW = ("sized", "a stream", "cycling")
EVERY = [(name, "") for name in DATAMODULES]
SOME = [(name, option) for name in FEW for option in ("limited", "reloading")]
REST = [
    ("sized", "accumulating"),
    ("with validation", "validating often"),
    ("in order", "reloading"),
    ("a wrapped loader", "reloading in turn"),
    ("a stream with draws", "limited"),
    ("sized", "counting steps"),
    ("a stream", "counting steps"),
]


def saved(make: Callable[[], StageDataModule], model: Recorder, folder: Path, **options: Any) -> list[tuple[int, Any]]:
    """A run that is not cut, which saves checkpoints."""
    whole, _ = trained(make(), model, callbacks=[SaveAt(folder, CUTS)], enable_checkpointing=True, **options)
    return whole


@MODELS
@pytest.mark.parametrize(("name", "option"), [*EVERY, *SOME, *REST])
def test_a_checkpoint_of_any_batch_or_epoch_is_gone_on_with(
    name: str, option: str, model: type[Recorder], tmp_path: Path
) -> None:
    make, options = DATAMODULES[name], OPTIONS[option]
    whole = saved(make, model(), tmp_path, **options)
    assert {epoch for epoch, _ in whole} == set(range(NUM_EPOCHS))
    wrong = {}
    for path in sorted(tmp_path.glob("*.ckpt")):
        cut = int(path.stem.split()[-1])
        if cut < len(whole):
            rest, _ = trained(make(), model(), path, **options)
            if rest != whole[cut:]:
                wrong[path.stem] = rest
    assert not wrong


@MODELS
@pytest.mark.parametrize(("name", "option"), [*((name, "") for name in FEW), *SOME])
def test_a_run_that_max_steps_has_cut_is_gone_on_with(
    name: str, option: str, model: type[Recorder], tmp_path: Path
) -> None:
    make, options = DATAMODULES[name], {"max_epochs": -1, **OPTIONS[option]}
    torch.manual_seed(1)  # where a loader has no seed, draws are from the process's generator
    whole, _ = trained(make(), model(), max_steps=14, **options)
    for cut in (1, 4, NUM_BATCHES, NUM_BATCHES + 2):
        torch.manual_seed(1)
        first, trainer = trained(make(), model(), max_steps=cut, **options)
        trainer.save_checkpoint(tmp_path / "cut.ckpt")
        rest, _ = trained(make(), model(), tmp_path / "cut.ckpt", max_steps=14, **options)
        assert first + rest == whole, cut


def test_a_resumed_run_can_be_cut_and_resumed_again(tmp_path: Path) -> None:
    for name in ("sized", "a stream"):
        make = DATAMODULES[name]
        whole = saved(make, Recorder(), tmp_path)
        trained(make(), None, tmp_path / "2.ckpt", callbacks=[SaveAt(tmp_path, (2, 7))], enable_checkpointing=True)
        rest, _ = trained(make(), None, tmp_path / "2.ckpt")  # the second batch of the resumed run
        assert rest == whole[4:]
        rest, _ = trained(make(), None, tmp_path / "7.ckpt")
        assert rest == whole[9:]


@pytest.mark.parametrize("run", ["validate", "test"])
def test_a_checkpoint_that_was_only_evaluated_with_is_not_gone_on_with(run: str, tmp_path: Path) -> None:
    whole = saved(DATAMODULES["sized"], Recorder(), tmp_path)
    datamodule = StageDataModule(Noisy(), Noisy(8), Noisy(8), **THREADS)
    getattr(new_trainer(), run)(Recorder(), datamodule=datamodule, ckpt_path=tmp_path / "2.ckpt", verbose=False)
    assert trained(datamodule)[0] == whole


def test_a_run_that_had_nothing_left_to_do_leaves_nothing_to_the_next_one(tmp_path: Path) -> None:
    whole = saved(DATAMODULES["sized"], Recorder(), tmp_path)
    datamodule = DATAMODULES["sized"]()
    nothing, trainer = trained(datamodule, None, tmp_path / "epoch 6.ckpt", max_epochs=1)
    assert not nothing
    trainer.save_checkpoint(tmp_path / "again.ckpt")
    assert trained(datamodule)[0] == whole
    assert trained(DATAMODULES["sized"](), None, tmp_path / "again.ckpt")[0] == whole[NUM_BATCHES:]


def test_a_module_that_is_printed_while_it_trains_is_saved_all_the_same(tmp_path: Path) -> None:
    class Printing(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            assert "size=22" in str(datamodule)
            return super().training_step(batch, batch_idx)

    datamodule = DATAMODULES["sized"]()
    whole = saved(lambda: datamodule, Printing(), tmp_path)
    rest, _ = trained(DATAMODULES["sized"](), None, tmp_path / "10.ckpt")
    assert rest == whole[10:]


def test_another_batch_size_goes_on_behind_the_same_samples(tmp_path: Path) -> None:
    whole = saved(DATAMODULES["sized"], Recorder(), tmp_path)
    for cut, size, rest_of_epoch in (("2", 7, 2), ("10", 2, 3), ("epoch 6", 11, 2)):
        rest, _ = trained(StageDataModule(Noisy(), batch_size=size), None, tmp_path / f"{cut}.ckpt")
        num = int(cut.split()[-1])
        samples = [sample[0] for _, batch in whole[num:] for sample in batch]
        assert [sample[0] for _, batch in rest for sample in batch] == samples
        first_epoch = rest[0][0]
        assert [epoch for epoch, _ in rest].count(first_epoch) == rest_of_epoch


def test_a_state_of_fewer_loaders_is_refused(tmp_path: Path) -> None:
    saved(DATAMODULES["sized"], Recorder(), tmp_path)
    with pytest.raises(ValueError, match="the state has 1 training loaders, and there are 2 now"):
        trained(DATAMODULES["several datasets"](), None, tmp_path / "epoch 6.ckpt")


def test_a_state_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        StageDataModule(Noisy()).load_state_dict({"version": 99})


def test_without_training_there_is_nothing_to_save() -> None:
    assert StageDataModule(Noisy()).state_dict() == {}


def test_a_state_that_was_loaded_and_not_used_is_saved_as_it_was(tmp_path: Path) -> None:
    saved(DATAMODULES["sized"], Recorder(), tmp_path)
    state = torch.load(tmp_path / "2.ckpt", weights_only=True)["StageDataModule"]
    datamodule = DATAMODULES["sized"]()
    datamodule.load_state_dict(state)
    assert datamodule.state_dict() == state


class Stopping(Recorder):
    """Wants to stop in the middle of an epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.trainer.should_stop = self.trainer.global_step + 1 == NUM_BATCHES + 2
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("name", ["sized", "a stream"])
def test_a_run_that_was_stopped_early_goes_on_in_its_epoch(name: str, tmp_path: Path) -> None:
    make = DATAMODULES[name]
    whole, _ = trained(make())
    first, trainer = trained(make(), Stopping())
    assert len(first) == NUM_BATCHES + 2
    trainer.save_checkpoint(tmp_path / "stopped.ckpt")
    rest, _ = trained(make(), None, tmp_path / "stopped.ckpt")
    assert first + rest == whole
