"""Lost places: Lightning drops states, and makes loaders of loaders; the place is found, or it is an error."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

from frameworks.training import QUIET, Recorder, loader_used
from torch.utils.data import DataLoader, RandomSampler

from torchstage import StageLoader
from torchstage.lightning import StageDataModule
from torchstage.lightning.fed import Fed, fed_class
from torchstage.samplers import ElasticSampler

from .data import Estimating, Noisy, Numbers, Plain, SaveAt, Stream, trained

pytestmark = [*QUIET]

MODELS = pytest.mark.parametrize("model", [Recorder, Estimating])


class Named(StageDataModule):
    """Its state is found under another name."""


def new_module(kind: type[StageDataModule] = StageDataModule) -> StageDataModule:
    return kind(Noisy(), batch_size=4, num_workers=2)


def saved(module: Any, folder: Path) -> list[Any]:
    return trained(module, callbacks=[SaveAt(folder, (2, 8))], enable_checkpointing=True)[0]


@MODELS
@pytest.mark.parametrize("cut", [2, 8])
def test_the_place_that_another_module_has_saved_is_gone_on_with(
    cut: int, model: type[Recorder], tmp_path: Path
) -> None:
    whole = saved(new_module(Named), tmp_path)
    rest, _ = trained(new_module(), model(), tmp_path / f"{cut}.ckpt")
    assert rest == whole[cut:]


@MODELS
def test_the_place_of_a_plain_stage_loader_is_gone_on_with(model: type[Recorder], tmp_path: Path) -> None:
    def make() -> StageLoader[Any]:
        dataset = Noisy()
        return StageLoader(dataset, batch_size=4, sampler=ElasticSampler(dataset, seed=3), num_workers=2)

    whole = saved(Plain(make), tmp_path)
    rest, _ = trained(StageDataModule.wrap(Plain(make)), model(), tmp_path / "8.ckpt")
    assert rest == whole[8:]


def test_a_place_that_cannot_be_given_any_more_is_an_error(tmp_path: Path) -> None:
    saved(Named(Stream(), batch_size=4), tmp_path)
    with pytest.raises(RuntimeError, match="has the places of 1 loaders in their data, but not from"):
        trained(StageDataModule(Stream(), batch_size=4), Estimating(), tmp_path / "2.ckpt")


@MODELS
def test_without_any_place_it_is_said_what_lightning_would_say(model: type[Recorder], tmp_path: Path) -> None:
    saved(Plain(lambda: DataLoader(Numbers(), batch_size=4)), tmp_path)
    with pytest.warns(UserWarning, match="saved inside an epoch, and has no place in its data"):
        trained(StageDataModule(Numbers(), batch_size=4), model(), tmp_path / "2.ckpt")
    trained(StageDataModule(Numbers(), batch_size=4), model(), tmp_path / "epoch 6.ckpt")  # at its end nothing is lost


@pytest.fixture
def first_run() -> Iterator[None]:
    """As in a process that has trained with nothing yet: the loaders' classes are made within Lightning's hooks."""
    fed_class.cache_clear()
    yield
    fed_class.cache_clear()


def of_datasets() -> StageDataModule:
    return StageDataModule(Noisy(), predict_dataset=Noisy(), batch_size=4, num_workers=2)


def of_loaders() -> StageDataModule:
    return StageDataModule.wrap(Plain(lambda: DataLoader(Noisy(), 4, sampler=RandomSampler(Noisy()))), num_workers=2)


@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling:UserWarning")
@pytest.mark.parametrize("make", [of_datasets, of_loaders])
@pytest.mark.parametrize("models", [Recorder, Estimating])
@pytest.mark.usefixtures("first_run")
def test_a_loader_that_lightning_makes_of_the_first_one_is_the_modules_too(
    make: Callable[[], StageDataModule], models: type[Recorder], tmp_path: Path
) -> None:
    saving = {"callbacks": [SaveAt(tmp_path, (4,))], "enable_checkpointing": True}
    whole, trainer = trained(make(), models(), overfit_batches=3, **saving)
    used = loader_used(trainer, "fit")
    assert isinstance(used, Fed)
    assert used.feed is not None
    rest, _ = trained(make(), models(), tmp_path / "4.ckpt", overfit_batches=3)
    assert rest[:2] == whole[4:6]  # what is left of the second epoch
