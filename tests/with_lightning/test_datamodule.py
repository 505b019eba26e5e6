"""The DataModule: its arguments, its loaders, and every run of a trainer with it."""

import copy
import inspect
import pickle
import signal
import threading
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder, loader_used, new_trainer
from lightning.pytorch import LightningModule
from lightning.pytorch.tuner import Tuner
from parity.compare import assert_same
from torch.utils.data import DataLoader, SequentialSampler

from torchstage import StageLoader
from torchstage.lightning import StageDataModule
from torchstage.samplers import ElasticSampler

from .data import LENGTH, Noisy, NoisyStream, Numbers, Plain, Stream, plain, trained

pytestmark = [*QUIET]


def new_module(**arguments: Any) -> StageDataModule:
    sets = {f"{name}_dataset": Numbers() for name in ("train", "val", "test", "predict")}
    return StageDataModule(**{**sets, "batch_size": 4, "num_workers": 2, **arguments})


def samples(model: Recorder, stage: str) -> list[list[int]]:
    return [sample for batch in model.seen_in(stage) for sample in plain(batch)]


# Arguments ------------------------------------------------------------------------------------------------------


def test_every_argument_of_the_loader_is_one_of_the_module_by_keyword_only() -> None:
    theirs = dict(inspect.signature(StageLoader).parameters)
    mine = dict(inspect.signature(StageDataModule).parameters)
    datasets = ["train_dataset", "val_dataset", "test_dataset", "predict_dataset"]
    assert list(mine)[:4] == datasets
    assert {*mine} - {*datasets} == {*theirs} - {"dataset"}
    for name in {*theirs} - {"dataset"}:
        assert mine[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert mine[name].default == theirs[name].default


def test_the_loaders_have_the_arguments() -> None:
    module = new_module(seed=5, isolation="shared", prefetch_factor=3, drop_last=True)
    for name in ("train", "val", "test", "predict"):
        loader = getattr(module, f"{name}_dataloader")()
        assert isinstance(loader, StageLoader)
        assert type(loader).__name__ == "StageLoader"
        assert (loader.batch_size, loader.num_workers, loader.seed) == (4, 2, 5)
        assert (loader.isolation, loader.prefetch_factor) == ("shared", 3)
        assert loader.drop_last == (name == "train")


def test_training_is_shuffled_by_epoch_and_seed_and_nothing_else_is() -> None:
    module = new_module(seed=5)
    sampler = module.train_dataloader().sampler
    assert isinstance(sampler, ElasticSampler)
    assert (sampler.seed, sampler.tail) == (5, "pad")
    assert isinstance(module.val_dataloader().sampler, SequentialSampler)
    assert list(new_module(shuffle=False).train_dataloader().sampler) == list(range(LENGTH))
    assert new_module(drop_last=True).train_dataloader().sampler.tail == "drop"


def test_the_seed_is_that_of_seed_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "11")
    assert new_module().train_dataloader().sampler.seed == 11


def test_what_lightning_makes_of_datasets_is_made_of_stage_loaders() -> None:
    module = StageDataModule.from_datasets(Numbers(), [Numbers()], batch_size=4, num_workers=2, seed=3)
    for loader in (module.train_dataloader(), *module.val_dataloader()):
        assert isinstance(loader, StageLoader)
        assert (loader.batch_size, loader.num_workers, loader.seed) == (4, 2, 3)


def test_arguments_may_be_changed_until_the_loaders_are_made() -> None:
    module = new_module()
    module.batch_size = 8
    assert module.train_dataloader().batch_size == 8


def test_datasets_in_lists_and_mappings_become_loaders_in_lists_and_mappings() -> None:
    module = StageDataModule({"a": Numbers(), "b": [Numbers(), Stream()]}, [Numbers(), Numbers()], batch_size=4)
    train, val = module.train_dataloader(), module.val_dataloader()
    assert [type(loader.dataset) for loader in (train["a"], *train["b"])] == [Numbers, Numbers, Stream]
    assert [len(loader) for loader in val] == [6, 6]


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match=r"train_dataset\[0\] is a int, which has no samples"):
        StageDataModule([1, 2, 3]).train_dataloader()


def test_a_sampler_for_several_datasets_is_refused() -> None:
    sampler = SequentialSampler(range(3))
    with pytest.raises(ValueError, match="belongs to one dataset, and train_dataset is a list"):
        StageDataModule([Numbers()], sampler=sampler).train_dataloader()


def test_a_sampler_of_the_users_is_used() -> None:
    batches, _ = trained(StageDataModule(Numbers(), batch_size=2, sampler=SequentialSampler(range(4))), max_epochs=1)
    assert batches == [(0, [[0], [1]]), (0, [[2], [3]])]


class Configured(StageDataModule):
    """Made from a configuration: its data come later."""

    def __init__(self, length: int = 4, **loader_arguments: Any) -> None:
        super().__init__(**loader_arguments)
        self.length = length

    def setup(self, stage: str) -> None:
        self.train_dataset = self.val_dataset = Noisy(self.length)


def test_data_may_come_in_setup() -> None:
    model = Recorder()
    new_trainer(max_epochs=1).fit(model, datamodule=Configured(length=6, batch_size=3))
    assert [len(model.seen_in(stage)) for stage in ("fit", "validate")] == [2, 2]


def test_hooks_may_be_overridden() -> None:
    class Doubled(StageDataModule):
        def train_dataloader(self) -> Any:
            return [super().train_dataloader(), super().train_dataloader()]

    batches, _ = trained(Doubled(Numbers(), batch_size=11), max_epochs=1)
    assert [len(batch) for _, batch in batches] == [2, 2]


def test_loaders_without_data_are_none_to_lightning() -> None:
    model = Recorder()
    trainer = new_trainer(max_epochs=1)
    trainer.fit(model, datamodule=StageDataModule(Numbers(), batch_size=4))
    assert not model.seen_in("validate")
    with pytest.raises(Exception, match="`test_dataloader` must be implemented"):
        trainer.test(model, datamodule=StageDataModule(Numbers()))


# Runs -----------------------------------------------------------------------------------------------------------


def test_fit_validate_test_and_predict_see_every_sample() -> None:
    model, module = Recorder(), new_module()
    trainer = new_trainer(max_epochs=1, num_sanity_val_steps=2)
    trainer.fit(model, datamodule=module)
    assert sorted(samples(model, "fit")) == [[index] for index in range(LENGTH)]
    assert len(model.seen_in("validate")) == 2 + 6
    trainer.test(model, datamodule=module)
    assert samples(model, "test") == [[index] for index in range(LENGTH)]
    trainer.predict(model, datamodule=module)
    assert samples(model, "predict") == [[index] for index in range(LENGTH)]
    assert isinstance(loader_used(trainer, "predict"), StageLoader)


@pytest.mark.parametrize(
    ("options", "num_batches"),
    [
        ({"limit_train_batches": 2}, 2),
        ({"limit_train_batches": 0.5}, 3),
        ({"fast_dev_run": 3}, 3),
        ({"limit_train_batches": 0}, 0),
    ],
)
def test_an_epoch_may_be_limited(options: dict[str, Any], num_batches: int) -> None:
    batches, _ = trained(new_module(), max_epochs=1, **options)
    assert len(batches) == num_batches


@pytest.mark.filterwarnings("ignore:You requested to overfit but enabled train dataloader shuffling:UserWarning")
def test_overfit_batches_gives_the_first_batches_again() -> None:
    batches, trainer = trained(StageDataModule(Numbers(), batch_size=4, num_workers=2), max_epochs=2, overfit_batches=2)
    assert [batch for _, batch in batches] == 2 * [[[0], [1], [2], [3]], [[4], [5], [6], [7]]]
    assert isinstance(loader_used(trainer, "fit"), StageLoader)


@pytest.mark.parametrize("options", [{"reload_dataloaders_every_n_epochs": 1}, {"accumulate_grad_batches": 4}])
def test_reloading_and_accumulating_change_no_batch(options: dict[str, Any]) -> None:
    module = StageDataModule(Noisy(), batch_size=4, num_workers=2, seed=1)
    plainly, _ = trained(module)
    assert trained(module, **options)[0] == plainly


@pytest.mark.parametrize("kind", ["in order", "wrapped", "a stream"])
def test_reloading_does_not_repeat_the_draws_of_an_epoch(kind: str) -> None:
    """Without an epoch of the sampler's, they depend on how many epochs a loader has begun."""
    made = {
        "in order": lambda: StageDataModule(Noisy(), batch_size=LENGTH, num_workers=2, seed=1, shuffle=False),
        "wrapped": lambda: StageDataModule.wrap(
            Plain(lambda: DataLoader(Noisy(), batch_size=LENGTH)), num_workers=2, seed=1
        ),
        "a stream": lambda: StageDataModule(NoisyStream(), batch_size=LENGTH, num_workers=2, seed=1, lanes=1),
    }[kind]
    reloaded, _ = trained(made(), reload_dataloaders_every_n_epochs=1)
    assert len({str(batch) for _, batch in reloaded}) == len(reloaded) == 3
    assert reloaded == trained(made())[0]


def test_the_same_module_can_be_trained_with_again() -> None:
    module = new_module()
    assert trained(module)[0] == trained(module)[0]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_the_tuner_finds_a_batch_size(tmp_path: Any) -> None:
    class Failing(Recorder):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if len(batch) > 8:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(batch, batch_idx)

    module = StageDataModule(Numbers(), Numbers(), batch_size=2, num_workers=2)
    trainer = new_trainer(default_root_dir=tmp_path)
    size = Tuner(trainer).scale_batch_size(Failing(), datamodule=module, steps_per_trial=2, max_trials=4)
    assert size == module.batch_size == 8
    batches, _ = trained(module, max_epochs=1)
    assert [len(batch) for _, batch in batches] == [8, 8, 6]


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
def test_the_tuner_that_looks_for_a_learning_rate_uses_up_no_batch(tmp_path: Any) -> None:
    class Learning(Recorder):
        lr = 0.1

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) + 1

    whole, _ = trained(new_module())
    module, model = new_module(), Learning()
    trainer = new_trainer(max_epochs=3, default_root_dir=tmp_path)
    found = Tuner(trainer).lr_find(model, datamodule=module, num_training=8, early_stop_threshold=None)
    assert found is not None
    model.seen.clear()
    trainer.fit(model, datamodule=module)
    assert [(epoch, plain(batch)) for stage, epoch, batch in model.seen if stage == "fit"] == whole


def test_a_trainer_goes_on_when_it_is_asked_to_fit_again() -> None:
    whole, _ = trained(new_module(), max_epochs=3)
    model, module = Recorder(), new_module()
    trainer = new_trainer(max_epochs=1)
    trainer.fit(model, datamodule=module)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, datamodule=module)
    assert [(epoch, plain(batch)) for stage, epoch, batch in model.seen if stage == "fit"] == whole


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_a_module_can_be_copied_and_sent_to_another_process(copied: Any) -> None:
    module = StageDataModule(Noisy(), batch_size=4, num_workers=2, seed=1)
    made = copied(module)
    assert trained(made)[0] == trained(module)[0]


# The end --------------------------------------------------------------------------------------------------------


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("torchstage-")]


class Watching(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.threads = loader_threads()
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("persistent", [False, True])
def test_no_thread_is_left_after_a_run(persistent: bool) -> None:
    model = Watching()
    module = new_module(persistent_workers=persistent)
    trained(module, model)
    assert model.threads
    assert not loader_threads()
    new_trainer().predict(model, datamodule=module)
    assert not loader_threads()


class Stumbling(Watching):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 2:
            raise self.error
        return loss


def test_an_error_in_training_closes_the_loaders() -> None:
    model = Stumbling(RuntimeError("mine"))
    with pytest.raises(RuntimeError, match="mine") as caught:
        trained(new_module(), model)
    assert model.threads
    assert not loader_threads()  # though the traceback still holds the frames
    del caught


@pytest.mark.parametrize("run", ["fit", "validate"])
def test_an_error_in_validation_closes_the_loaders(run: str) -> None:
    class Invalid(Recorder):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 1:
                raise RuntimeError("mine")
            return super().validation_step(batch, batch_idx)

    module = StageDataModule(Noisy(), Noisy(), batch_size=4, num_workers=2, persistent_workers=True)
    with pytest.raises(RuntimeError, match="mine") as caught:
        getattr(new_trainer(val_check_interval=2), run)(Invalid(), datamodule=module)
    assert not loader_threads()
    del caught


def test_an_interrupt_closes_the_loaders() -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):
            trained(new_module(), Stumbling(KeyboardInterrupt()))
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores further interrupts
    assert not loader_threads()


def test_a_run_that_has_failed_can_be_saved_and_gone_on_with(tmp_path: Any) -> None:
    whole, _ = trained(new_module())
    model = Stumbling(RuntimeError("mine"))
    trainer = new_trainer(max_epochs=3)
    with pytest.raises(RuntimeError, match="mine"):
        trainer.fit(model, datamodule=new_module())
    trainer.save_checkpoint(tmp_path / "failed.ckpt")
    rest, _ = trained(new_module(), None, tmp_path / "failed.ckpt")
    assert rest == whole[3:]  # the batch that failed was handed out


def test_a_trainer_has_the_callbacks_that_it_had() -> None:
    _, trainer = trained(new_module())
    assert not [callback for callback in trainer.callbacks if type(callback).__module__.startswith("torchstage")]


# What Lightning says --------------------------------------------------------------------------------------------


def test_lightning_says_of_one_worker_what_it_says_of_any_loader(recwarn: pytest.WarningsRecorder) -> None:
    def said(num_workers: int) -> list[str]:
        recwarn.clear()
        trained(StageDataModule(Numbers(), batch_size=4, num_workers=num_workers), max_epochs=1)
        return [str(warning.message) for warning in recwarn if "workers" in str(warning.message)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning.pytorch.trainer.connectors.data_connector.suggested_max_num_workers", lambda _: 8)
        assert len(said(0)) == 1
        assert not said(2)


def test_a_run_can_be_told_on_any_module_of_lightnings() -> None:
    """Only the loaders differ from those of DataLoader."""

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.batches: list[torch.Tensor] = []

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            self.batches.append(batch)
            return self.layer(batch.float()).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    model = Model()
    new_trainer(max_epochs=1).fit(model, datamodule=new_module(val_dataset=None, shuffle=False))
    assert_same(torch.cat(model.batches), torch.arange(LENGTH)[:, None])
