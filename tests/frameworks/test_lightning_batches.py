"""Lightning's batches: one body, run with DataLoader and with StageLoader in the same trainer, gives the same."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightning")

import torch
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import BasePredictionWriter
from parity.compare import assert_same
from torch.utils.data import DataLoader

from torchstage import StageLoader

from .fed import Augmented, Stream, numbers_of
from .training import QUIET, STAGES, Recorder, new_trainer, run

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:You requested to overfit but enabled:UserWarning"),
]


def same_of_both(body: Callable[[type[DataLoader[Any]]], Any]) -> Any:
    """What the body gives for StageLoader, after a look that it is what it gives for DataLoader."""
    ours, theirs = body(StageLoader), body(DataLoader)
    assert_same(ours, theirs)
    return ours


def shuffled(length: int = 10) -> dict[str, Any]:
    """Lightning ends an epoch before the sampler says so. So the next order from this generator depends on how far
    ahead the sampler ran: with workers to its end, inline not, in DataLoader as well."""
    order = torch.Generator().manual_seed(3)
    return {"dataset": Augmented(length), "shuffle": True, "generator": order, "num_workers": 2}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("where", "drop_last"), [("outside", False), ("inside", True)])
def test_a_stage_sees_the_same_batches(stage: str, where: str, drop_last: bool) -> None:
    def body(loader_class: Any) -> Any:
        arguments = {**shuffled(), "batch_size": 3, "drop_last": drop_last}
        model, _ = run(stage, lambda: loader_class(**arguments), where)
        return [numbers_of(batch) for batch in model.seen_in(stage)]

    batches = same_of_both(body)
    num_batches = 3 if drop_last and stage != "predict" else 4  # predict wants every sample
    assert len(batches) == num_batches * (2 if stage == "fit" else 1)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("batch_size", [3, None])
def test_an_iterable_dataset_gives_the_same_batches_and_draws(stage: str, batch_size: int | None) -> None:
    def body(loader_class: Any) -> Any:
        torch.manual_seed(5)
        arguments = {"dataset": Stream(11), "batch_size": batch_size, "num_workers": 2}
        return run(stage, lambda: loader_class(**arguments))[0].seen_in(stage)

    assert len(same_of_both(body)) > 3


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_of_an_iterable_dataset_draw_the_same(persistent: bool) -> None:
    def body(loader_class: Any) -> Any:
        torch.manual_seed(5)
        arguments = {"dataset": Stream(11), "batch_size": 3, "num_workers": 2, "persistent_workers": persistent}
        return run("fit", lambda: loader_class(**arguments), max_epochs=3)[0].seen_in("fit")

    same_of_both(body)


@pytest.mark.parametrize(("where", "overfit_batches"), [("outside", 2), ("inside", 0.5)])
def test_overfitting_sees_the_same_batches(where: str, overfit_batches: float) -> None:
    def body(loader_class: Any) -> Any:
        arguments = {**shuffled(12), "batch_size": 3}
        model, _ = run("fit", lambda: loader_class(**arguments), where, overfit_batches=overfit_batches)
        return [numbers_of(batch) for batch in model.seen_in("fit")]

    assert same_of_both(body) == [[0, 1, 2], [3, 4, 5]] * 2


def test_fit_with_validation_sees_the_same_batches() -> None:
    def body(loader_class: Any) -> Any:
        model = Recorder()
        learnt = loader_class(**shuffled(), batch_size=2)
        judged = loader_class(Augmented(5), batch_size=2, num_workers=learnt.num_workers)
        new_trainer(num_sanity_val_steps=1, val_check_interval=2).fit(model, learnt, judged)
        return [(stage, epoch, numbers_of(batch)) for stage, epoch, batch in model.seen]

    same_of_both(body)


@pytest.mark.parametrize(
    "order",
    [
        {"generator": torch.Generator(), "dataset": Augmented(200)},  # longer than what is fetched ahead
        {"generator": None, "dataset": Augmented(10)},  # each epoch has a generator of its own
    ],
    ids=["long", "short"],
)
def test_limited_epochs_take_the_same_batches(order: dict[str, Any]) -> None:
    def body(loader_class: Any) -> Any:
        torch.manual_seed(4)
        arguments = {**shuffled(), **order, "batch_size": 2}
        if order["generator"] is not None:
            order["generator"].manual_seed(3)
        model = Recorder()
        new_trainer(limit_train_batches=2, max_epochs=3).fit(model, loader_class(**arguments))
        return [numbers_of(batch) for batch in model.seen_in("fit")]

    assert len(same_of_both(body)) == 6


class Writer(BasePredictionWriter):
    """Notes what indices Lightning says that a batch of predictions has."""

    def __init__(self) -> None:
        super().__init__("batch")
        self.told: list[Any] = []

    def write_on_batch_end(self, trainer: Any, module: Any, prediction: Any, indices: Any, *_: Any) -> None:
        self.told.append(indices)


def test_predictions_are_told_their_indices() -> None:
    """Lightning notes what the sampler yields, which is ahead of the batches that come back."""

    def body(loader_class: Any) -> Any:
        writer = Writer()
        arguments = {**shuffled(), "batch_size": 3}
        model, _ = run("predict", lambda: loader_class(**arguments), callbacks=[writer])
        assert writer.told == [numbers_of(batch) for batch in model.seen_in("predict")]
        return writer.told

    assert len(same_of_both(body)) == 4


# Random generators ------------------------------------------------------------------------------------------


def states() -> list[Any]:
    return [torch.get_rng_state(), random.getstate(), *np.random.get_state()]


@pytest.mark.parametrize("dataset", [Augmented(10), Stream(10)], ids=["map", "iterable"])
@pytest.mark.parametrize("workers", [False, True], ids=["", "init_fn"])
def test_the_trainers_own_generators_are_where_dataloader_leaves_them(dataset: Any, workers: bool) -> None:
    """``workers=True``: Lightning gives each worker a function that seeds the whole process."""

    def body(loader_class: Any) -> Any:
        seed_everything(7, workers=workers, verbose=False)
        run("fit", lambda: loader_class(dataset, batch_size=2, num_workers=2))
        return states()

    same_of_both(body)


def test_an_iterable_dataset_draws_as_in_workers_that_lightning_seeded() -> None:
    def body(loader_class: Any) -> Any:
        seed_everything(7, workers=True, verbose=False)
        loader = loader_class(Stream(10), batch_size=2, num_workers=2)
        model, _ = run("fit", lambda: loader)
        assert loader.worker_init_fn is not None
        return model.seen_in("fit")

    same_of_both(body)


def test_a_seeded_run_repeats_whatever_the_number_of_threads() -> None:
    def seen(num_threads: int) -> Any:
        seed_everything(7, workers=True, verbose=False)
        return run("fit", lambda: StageLoader(Augmented(20), 4, True, num_workers=num_threads))[0].seen_in("fit")

    first = seen(1)
    assert_same(seen(4), first)
    assert_same(seen(2), first)
    numbers = torch.cat(first)[:, 1:]
    assert len(numbers.unique(dim=0)) == len(numbers)  # no two samples, nor epochs, draw alike
