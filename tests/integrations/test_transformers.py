"""The Trainer of transformers: with the mixin it trains with StageLoaders, and goes on where a checkpoint was saved."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import Dataset, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from torchstage import StageLoader
from torchstage.integrations.transformers import StageTrainerMixin

from .ranks import run_on_two_ranks

LENGTH, BATCH_SIZE, NUM_BATCHES = 22, 4, 6
pytestmark = pytest.mark.filterwarnings("ignore:.*(pin_memory|pin memory|LeafSpec|has no state, so).*")


class Noisy(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"sample": torch.tensor([float(index), float(torch.randint(1000, ()))])}


class Stream(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self) -> None:
        self.at = self.start = 0

    def __iter__(self) -> Any:
        self.at, self.start = self.start, 0
        while self.at < LENGTH:
            self.at += 1
            yield {"sample": torch.tensor([float(self.at - 1), 0.0])}

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append(sample.tolist())
        return {"loss": self.weight**2, "sample": sample[:, :1]}


class StageTrainer(StageTrainerMixin, Trainer):
    def stage_loader_arguments(self) -> dict[str, Any]:
        return {"lanes": 1}


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


@pytest.fixture(autouse=True)
def _states_of_its_own() -> Any:
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def new_trainer(folder: Path, dataset: Any = None, trainer_class: Any = StageTrainer, **options: Any) -> Trainer:
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH_SIZE,
        "per_device_eval_batch_size": BATCH_SIZE,
        "num_train_epochs": 3,
        "dataloader_num_workers": 2,
        "dataloader_pin_memory": False,
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "seed": 5,
    }
    arguments = TrainingArguments(**{**given, **options})
    return trainer_class(model=Model(), args=arguments, train_dataset=dataset or Noisy(), eval_dataset=Noisy())


def seen(trainer: Any) -> list[Any]:
    return trainer.model.seen


def test_the_loaders_are_stage_loaders_with_the_trainers_arguments(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path, dataloader_drop_last=True)
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader(), trainer.get_test_dataloader(Noisy())):
        assert isinstance(loader, StageLoader)
        assert (loader.batch_size, loader.num_workers) == (BATCH_SIZE, 2)


def test_each_epoch_has_every_sample_in_an_order_of_its_own(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path)
    trainer.train()
    epochs = [seen(trainer)[at : at + NUM_BATCHES] for at in range(0, 3 * NUM_BATCHES, NUM_BATCHES)]
    orders = [[sample[0] for batch in epoch for sample in batch] for epoch in epochs]
    assert [sorted(order) for order in orders] == 3 * [list(range(LENGTH))]
    assert orders[0] != orders[1]


def test_evaluation_and_prediction_see_every_sample_in_order(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path)
    trainer.evaluate()
    assert [sample[0] for batch in seen(trainer) for sample in batch] == list(range(LENGTH))
    trainer.predict(Noisy())
    assert [sample[0] for batch in seen(trainer)[NUM_BATCHES:] for sample in batch] == list(range(LENGTH))


@pytest.mark.parametrize("cut", [2, NUM_BATCHES, NUM_BATCHES + 3])
def test_a_checkpoint_is_gone_on_with(cut: int, tmp_path: Path) -> None:
    whole = new_trainer(tmp_path / "whole")
    whole.train()

    first = new_trainer(tmp_path / "cut")
    first.add_callback(StopAt(cut))
    first.train()
    assert len(seen(first)) == cut

    resumed = new_trainer(tmp_path / "cut")
    resumed.train(resume_from_checkpoint=True)
    assert seen(first) + seen(resumed) == seen(whole)
    assert resumed.state.global_step == 3 * NUM_BATCHES


def test_a_stream_is_gone_on_with(tmp_path: Path) -> None:
    first = new_trainer(tmp_path, Stream(), max_steps=5)
    first.add_callback(StopAt(2))
    first.train()
    resumed = new_trainer(tmp_path, Stream(), max_steps=5)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    numbers = [int(sample[0]) for batch in seen(first) + seen(resumed) for sample in batch]
    assert numbers == list(range(20))


class ShuffledStream(Stream):
    """Another order in each epoch, which it is told."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        self.at, self.start = self.start, 0
        while self.at < LENGTH:
            self.at += 1
            yield {"sample": torch.tensor([float(order[self.at - 1]), 0.0])}


@pytest.mark.parametrize("cut", [NUM_BATCHES, NUM_BATCHES + 2])
def test_a_stream_that_was_passed_over_is_gone_on_with_in_its_epoch(cut: int, tmp_path: Path) -> None:
    def new(folder: str) -> Trainer:
        return new_trainer(tmp_path / folder, ShuffledStream(), max_steps=3 * NUM_BATCHES)

    whole, first = new("whole"), new("cut")
    whole.train()
    first.add_callback(StopAt(cut))
    first.train()
    resumed = new("cut")
    resumed.train(resume_from_checkpoint=True)
    assert seen(first) + seen(resumed) == seen(whole)


class Lengths(Noisy):
    """Samples that can be grouped by their length."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= LENGTH:
            raise IndexError  # the Trainer's sampler reads all of it by index
        return {**super().__getitem__(index), "input_ids": [0] * (index % 5 + 1)}


def only_sample(features: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"sample": torch.stack([feature["sample"] for feature in features])}


@pytest.mark.parametrize("cut", [2, NUM_BATCHES + 3])
def test_batches_grouped_by_length_are_gone_on_with(cut: int, tmp_path: Path) -> None:
    def new(folder: str) -> Trainer:
        trainer = new_trainer(tmp_path / folder, Lengths(), train_sampling_strategy="group_by_length")
        trainer.data_collator = only_sample
        return trainer

    whole = new("whole")
    whole.train()
    first = new("cut")
    first.add_callback(StopAt(cut))
    first.train()
    torch.manual_seed(1)
    resumed = new("cut")
    resumed.train(resume_from_checkpoint=True)
    assert seen(first) + seen(resumed) == seen(whole)
    assert sorted(sample[0] for batch in seen(whole)[NUM_BATCHES : 2 * NUM_BATCHES] for sample in batch) == [*range(22)]


def test_evaluation_in_the_midst_of_an_epoch_changes_nothing(tmp_path: Path) -> None:
    """Its loader's threads stay, and are used again."""
    plain = new_trainer(tmp_path / "plain", num_train_epochs=1)
    plain.train()
    options: dict[str, Any] = {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 2}
    trainer = new_trainer(tmp_path / "eval", dataloader_persistent_workers=True, **options)
    trainer.train()
    assert len(seen(trainer)) == NUM_BATCHES + 3 * NUM_BATCHES
    trained = [seen(trainer)[at : at + 2] for at in range(0, 3 * (2 + NUM_BATCHES), 2 + NUM_BATCHES)]
    assert [batch for batches in trained for batch in batches] == seen(plain)
    loaders = {id(loader) for loader in trainer._eval_dataloaders.values()}
    assert len(loaders) == 1
    trainer.get_eval_dataloader().close()


def test_the_epoch_begins_anew_where_the_trainer_is_told_not_to_skip(tmp_path: Path) -> None:
    first = new_trainer(tmp_path)
    first.add_callback(StopAt(NUM_BATCHES + 2))
    first.train()
    resumed = new_trainer(tmp_path, ignore_data_skip=True)
    resumed.train(resume_from_checkpoint=True)
    orders = [[sample[0] for batch in batches for sample in batch] for batches in (seen(first), seen(resumed))]
    assert orders[1][:8] == orders[0][LENGTH : LENGTH + 8]
    assert sorted(orders[1][:LENGTH]) == [*range(LENGTH)]


def test_accumulated_batches_are_gone_on_with(tmp_path: Path) -> None:
    whole = new_trainer(tmp_path / "whole", gradient_accumulation_steps=2)
    whole.train()
    first = new_trainer(tmp_path / "cut", gradient_accumulation_steps=2)
    first.add_callback(StopAt(4))
    first.train()
    resumed = new_trainer(tmp_path / "cut", gradient_accumulation_steps=2)
    resumed.train(resume_from_checkpoint=True)
    assert seen(first) + seen(resumed) == seen(whole)


def test_a_checkpoint_of_another_trainer_says_what_to_do(tmp_path: Path) -> None:
    plain = new_trainer(tmp_path, trainer_class=Trainer, dataloader_num_workers=0)
    plain.add_callback(StopAt(2))
    plain.train()
    with pytest.raises(FileNotFoundError, match="no state of the training loader, and 2 batches of its epoch"):
        new_trainer(tmp_path).train(resume_from_checkpoint=True)
    from transformers import trainer as module

    assert module.skip_first_batches.__module__ == "accelerate.data_loader"


@pytest.mark.distributed
def test_two_ranks_go_on_where_they_were(tmp_path: Path) -> None:
    ranks = [found["seen"] for found in run_on_two_ranks("two_trainers.py", tmp_path)]
    num_batches = len(ranks[0]["whole"]) // 2
    for rank in ranks:
        assert rank["first"] + rank["resumed"] == rank["whole"]
        assert len(rank["first"]) == num_batches + 1
    for epoch in range(2):
        both = [
            sample[0]
            for rank in ranks
            for batch in rank["whole"][epoch * num_batches :][:num_batches]
            for sample in batch
        ]
        assert set(both) == {*range(LENGTH)}
        assert len(both) == LENGTH
