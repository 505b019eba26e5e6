"""Ignite: it hands every public attribute of a loader to the loader's class, with a batch sampler of its own."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from torchstage import StageLoader

from .fed import CLASSES, Augmented, Stream, arguments_of, assert_kept, numbers_of

STANDS_FOR = ("batch_size", "drop_last", "sampler", "batch_sampler")  # what a batch sampler stands for


def rebuilt(loader: Any, batch_sampler: Any) -> Any:
    """The way of a framework that knows nothing but attributes: ours must be enough for it, and not too many."""
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    kept = {name: value for name, value in public.items() if name not in STANDS_FOR}
    return type(loader)(**kept, batch_sampler=batch_sampler)


@pytest.fixture(params=["attributes", "ignite"])
def rebuild(request: pytest.FixtureRequest) -> Any:
    if request.param == "attributes":
        return rebuilt
    return pytest.importorskip("ignite.engine.deterministic").update_dataloader


def pairs(length: int) -> BatchSampler:
    return BatchSampler(SequentialSampler(range(length)), 2, drop_last=False)


@pytest.mark.parametrize("loader_class", CLASSES)
def test_every_argument_is_kept(rebuild: Any, loader_class: type[StageLoader[Any]]) -> None:
    arguments = arguments_of(loader_class)
    loader = rebuild(loader_class(Augmented(5), **arguments), pairs(5))
    assert type(loader) is loader_class
    assert_kept(loader, arguments, *STANDS_FOR)
    assert loader.batch_sampler.batch_size == 2


def test_the_new_loader_takes_the_new_order(rebuild: Any) -> None:
    first = StageLoader(Augmented(5), batch_size=3, shuffle=True, num_workers=2)
    assert [numbers_of(batch) for batch in rebuild(first, pairs(5))] == [[0, 1], [2, 3], [4]]


def test_a_loader_in_the_middle_of_an_epoch_can_be_rebuilt(rebuild: Any) -> None:
    with StageLoader(Augmented(20), batch_size=2, num_workers=2, persistent_workers=True) as first:
        begun = iter(first)
        next(begun)
        with rebuild(first, pairs(5)) as second:
            assert [numbers_of(batch) for batch in second] == [[0, 1], [2, 3], [4]]
        assert [numbers_of(batch)[0] for batch in begun] == list(range(2, 20, 2))


def trained(loader: Any, start: dict[str, Any] | None = None) -> list[list[int]]:
    """The indices that ignite's deterministic engine takes from a loader in two epochs, or in what is left of them."""
    deterministic = pytest.importorskip("ignite.engine.deterministic")
    seen: list[list[int]] = []
    engine = deterministic.DeterministicEngine(lambda _, batch: seen.append(numbers_of(batch)))
    if start is not None:
        engine.load_state_dict(start)
    torch.manual_seed(2)  # its own seed comes from here
    engine.run(loader, max_epochs=2)
    return seen


def test_a_deterministic_engine_sees_the_batches_of_dataloader() -> None:
    seen = [
        trained(loader_class(Augmented(10), batch_size=4, shuffle=True, num_workers=2))
        for loader_class in (StageLoader, DataLoader)
    ]
    assert seen[0] == seen[1]
    assert len(seen[0]) == 6


def test_a_deterministic_engine_resumes_in_the_middle_of_an_epoch() -> None:
    whole = trained(StageLoader(Augmented(10), batch_size=4, shuffle=True, num_workers=2))
    start = {"epoch_length": 3, "max_epochs": 2, "iteration": 4, "rng_states": None}
    assert trained(StageLoader(Augmented(10), batch_size=4, shuffle=True, num_workers=2), start) == whole[4:]


def test_ignites_auto_dataloader_makes_a_dataloader_of_torchs() -> None:
    """It is given a dataset and arguments, never a loader: there is nothing of ours to keep. Documented."""
    distributed = pytest.importorskip("ignite.distributed")
    loader = distributed.auto_dataloader(Augmented(4), batch_size=2)
    assert type(loader) is DataLoader
    with pytest.raises(TypeError, match="isolation"):
        distributed.auto_dataloader(Augmented(4), batch_size=2, isolation="shared")


def test_an_iterable_dataset_is_rebuilt_without_a_batch_sampler() -> None:
    arguments = {"batch_size": 2, "num_workers": 2, "lanes": 3, "isolation": "shared", "seed": 4}
    loader = StageLoader(Stream(6), **arguments)
    public = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    double = StageLoader(**{**public, "sampler": None, "batch_sampler": None})
    assert_kept(double, arguments)
