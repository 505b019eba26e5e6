"""Wrapped: another DataModule's hooks are called as they were, and its loaders become StageLoaders."""

import pickle
import sys
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.fed import Named
from frameworks.training import QUIET, Recorder, loader_used, new_trainer
from lightning.pytorch import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from torchstage import StageLoader
from torchstage.lightning import StageDataModule

from .data import Noisy, Numbers, Plain, Stream, plain, trained

pytestmark = [*QUIET]


class Telling(LightningDataModule):
    """Notes which hooks were called, and has every loader."""

    classes = 10

    def __init__(self, length: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.called: list[str] = []
        self.loaded: Any = None

    def prepare_data(self) -> None:
        self.called.append("prepare_data")

    def setup(self, stage: str) -> None:
        self.called.append(f"setup {TrainerFn(stage).value}")
        self.dataset = Noisy(self.hparams["length"])

    def _loader(self, shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_size=4, shuffle=shuffle, num_workers=1, prefetch_factor=5)

    def train_dataloader(self) -> Any:
        return self._loader(shuffle=True)

    def val_dataloader(self) -> Any:
        return [self._loader(), self._loader()]

    def test_dataloader(self) -> Any:
        return self._loader()

    def predict_dataloader(self) -> Any:
        return self._loader()

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return -batch

    def teardown(self, stage: str) -> None:
        self.called.append(f"teardown {TrainerFn(stage).value}")

    def on_exception(self, exception: BaseException) -> None:
        self.called.append(f"on_exception {exception}")

    def state_dict(self) -> dict[str, Any]:
        return {"mine": 7}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict


class Evaluating(Recorder):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
        return self._note("validate", batch)


def test_every_hook_is_the_other_modules(tmp_path: Any) -> None:
    inner, model = Telling(), Evaluating()
    module = StageDataModule.wrap(inner, num_workers=2)
    trainer = new_trainer(max_epochs=1)
    trainer.fit(model, datamodule=module)
    assert inner.called == ["prepare_data", "setup fit", "teardown fit"]
    assert sorted(row[0] for batch in model.seen_in("fit") for row in plain(batch)) == [*range(-7, 1)]
    assert inner.trainer is trainer
    assert len(model.seen_in("validate")) == 4
    trainer.test(model, datamodule=module)
    assert len(trainer.predict(model, datamodule=module) or []) == 2
    trainer.save_checkpoint(tmp_path / "at the end.ckpt")


def test_its_state_and_errors_reach_it(tmp_path: Any) -> None:
    class Failing(Evaluating):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            raise RuntimeError("mine")

    inner = Telling()
    with pytest.raises(RuntimeError, match="mine"):
        new_trainer().fit(Failing(), datamodule=StageDataModule.wrap(inner))
    assert inner.called[-1] == "on_exception mine"
    _, trainer = trained(StageDataModule.wrap(inner), Evaluating(), max_epochs=1)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    other = Telling()
    trained(StageDataModule.wrap(other), Evaluating(), tmp_path / "saved.ckpt", max_epochs=2)
    assert other.loaded == {"mine": 7}


def test_a_copy_calls_the_hooks_of_a_copy() -> None:
    inner = Telling()
    module = pickle.loads(pickle.dumps(StageDataModule.wrap(inner, num_workers=2)))
    trained(module, Evaluating(), max_epochs=1)
    assert module._wrapped.called == ["prepare_data", "setup fit", "teardown fit"]
    assert not inner.called


def test_its_attributes_and_hyperparameters_are_there() -> None:
    module = StageDataModule.wrap(Telling(length=12))
    assert (module.classes, module.hparams["length"]) == (10, 12)
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        module.nothing_of_the_kind  # noqa: B018 - what is asked for is the error


def test_the_loaders_keep_their_arguments_but_for_those_given() -> None:
    inner = Telling()
    inner.setup("fit")
    module = StageDataModule.wrap(inner, num_workers=2, seed=3)
    train, (val, _) = module.train_dataloader(), module.val_dataloader()
    for loader in (train, val):
        assert isinstance(loader, StageLoader)
        assert (loader.batch_size, loader.prefetch_factor) == (4, 5)
        assert (loader.num_workers, loader.seed) == (2, 3)
    assert isinstance(train.sampler, RandomSampler)
    assert isinstance(val.sampler, SequentialSampler)
    inline = StageDataModule.wrap(inner, num_workers=0).train_dataloader()
    assert inline.prefetch_factor is None


@pytest.mark.parametrize("dataset", [Numbers(), Stream()])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_the_batches_are_those_of_dataloader(dataset: Any, batch_size: int | None) -> None:
    def make() -> Any:
        return DataLoader(dataset, batch_size=batch_size, drop_last=batch_size is not None)

    def batches(module: LightningDataModule) -> list[Any]:
        return trained(module, max_epochs=2)[0]

    assert batches(StageDataModule.wrap(Plain(make), num_workers=2, lanes=1)) == batches(Plain(make))


def test_batches_of_the_users_own_are_kept() -> None:
    order = BatchSampler(SequentialSampler(range(6)), 3, False)
    module = StageDataModule.wrap(Plain(lambda: DataLoader(Numbers(), batch_sampler=order)), num_workers=2)
    assert trained(module, max_epochs=1)[0] == [(0, [[0], [1], [2]]), (0, [[3], [4], [5]])]


def test_a_loader_class_of_the_users_keeps_its_class_and_arguments() -> None:
    loader = StageDataModule.wrap(Plain(lambda: Named(Numbers(), name="mine", seed=4)), num_workers=2)
    made = loader.train_dataloader()
    assert isinstance(made, Named)
    assert (made.name, made.seed, made.num_workers) == ("mine", 4, 2)


def test_a_combined_loader_keeps_its_mode() -> None:
    loaders = {"a": DataLoader(Numbers(), batch_size=4), "b": DataLoader(Numbers(), batch_size=8)}
    module = StageDataModule.wrap(Plain(lambda: CombinedLoader(loaders, "max_size")), num_workers=2)
    batches, trainer = trained(module, max_epochs=1)
    assert [batch["b"] is None for _, batch in batches] == 3 * [False] + 3 * [True]
    assert all(isinstance(loader, StageLoader) for loader in loader_used(trainer, "fit").values())


def test_sequential_evaluation_keeps_its_mode() -> None:
    class Two(Evaluating):
        def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> torch.Tensor:
            return self._note(f"{dataloader_idx}", batch)

    model = Two()
    two = [DataLoader(Numbers(), batch_size=11) for _ in range(2)]
    module = StageDataModule.wrap(Plain(lambda: two[0], lambda: CombinedLoader(two, "sequential")))
    new_trainer().validate(model, datamodule=module, verbose=False)
    assert [name for name, _, _ in model.seen] == ["0", "0", "1", "1"]


class Endless(DataLoader[Any]):
    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


def test_a_loader_that_iterates_in_its_own_way_stays_as_it_is() -> None:
    module = StageDataModule.wrap(Plain(lambda: Endless(Numbers())), num_workers=2)
    with pytest.warns(UserWarning, match="a Endless has an __iter__ of its own, and stays as it is"):
        assert type(module.train_dataloader()) is Endless


def test_what_is_no_dataloader_stays_as_it_is() -> None:
    batches = [torch.zeros(2), torch.ones(2)]
    module = StageDataModule.wrap(Plain(lambda: {"a": range(2), "b": DataLoader(Numbers())}), num_workers=2)
    made = module.train_dataloader()
    assert type(made["a"]) is range
    assert isinstance(made["b"], StageLoader)
    del batches


@pytest.mark.parametrize("name", ["shuffle", "sampler", "batch_sampler"])
def test_an_order_cannot_be_given_for_all_loaders(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} cannot be given, since each loader"):
        StageDataModule.wrap(Telling(), **{name: None})


def test_an_unknown_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="StageLoader has no argument numworkers"):
        StageDataModule.wrap(Telling(), numworkers=2)


def test_what_is_no_datamodule_is_refused() -> None:
    with pytest.raises(TypeError, match=r"give it a lightning\.pytorch\.LightningDataModule, got a builtins\.list"):
        StageDataModule.wrap([])  # pyright: ignore[reportArgumentType]


@pytest.mark.skipif("pytorch_lightning" not in sys.modules, reason="nobody has imported the other package")
def test_a_datamodule_of_the_other_package_is_refused() -> None:
    other = sys.modules["pytorch_lightning"].LightningDataModule()
    with pytest.raises(TypeError, match="pytorch_lightning"):
        StageDataModule.wrap(other)


class Sized(LightningDataModule):
    """Has attributes that StageDataModule has, too."""

    def __init__(self, batch_size: int = 2) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.train_dataset = Numbers()

    def train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=self.batch_size)

    def val_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=self.batch_size)


class Filling(Recorder):
    """Has memory for eight samples."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if len(batch) > 8:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(batch, batch_idx)


def test_attributes_are_those_of_the_other_module() -> None:
    inner = Sized()
    module = StageDataModule.wrap(inner, num_workers=2)
    assert (module.batch_size, module.train_dataset, module.num_workers) == (2, inner.train_dataset, 2)
    assert not hasattr(module, "test_dataset")
    module.batch_size = 5
    module.num_workers = 3
    assert inner.batch_size == 5
    assert (module.train_dataloader().batch_size, module.train_dataloader().num_workers) == (5, 3)
    assert not hasattr(inner, "num_workers")


@pytest.mark.parametrize("given", [{}, {"batch_size": 2}])
def test_the_tuner_finds_a_batch_size_of_the_other_module(given: dict[str, Any], tmp_path: Any) -> None:
    module = StageDataModule.wrap(Sized(), num_workers=2, **given)
    trainer = new_trainer(default_root_dir=tmp_path)
    size = Tuner(trainer).scale_batch_size(Filling(), datamodule=module, steps_per_trial=2, max_trials=4)
    assert size == module.batch_size == 8
    assert [len(batch) for _, batch in trained(module, max_epochs=1)[0]] == [8, 8, 6]


def test_a_module_that_lightning_has_made_of_datasets_is_wrapped() -> None:
    """Its hooks are attributes of its own."""
    made = LightningDataModule.from_datasets(Numbers(), batch_size=11)
    module = StageDataModule.wrap(made, num_workers=2, pin_memory=False)
    assert isinstance(module.train_dataloader(), StageLoader)
    assert [len(batch) for _, batch in trained(module, max_epochs=1)[0]] == [11, 11]
