"""Lanes that are interrupted anywhere go on where they were."""

import itertools
from functools import partial
from typing import Any

import pytest
import torch

from torchstage import StageLoader

from .streams import (
    STATEFUL,
    OfDataset,
    OfIterator,
    Plain,
    as_it_is,
    drawing,
    epochs_of,
    interrupted_again_and_again,
    interrupted_everywhere,
    through_a_file,
)

AGAIN = "ignore:StageLoader. the dataset has no state:UserWarning"

WAYS: dict[str, dict[str, Any]] = {
    "one lane": {"num_workers": 1, "batch_size": 3},
    "two lanes": {"num_workers": 2, "batch_size": 2},
    "three lanes": {"num_workers": 3, "batch_size": 4, "drop_last": True},
    "four lanes": {"num_workers": 4, "batch_size": None},
    "one lane, more threads": {"num_workers": 3, "lanes": 1, "batch_size": 7},
    "kept": {"num_workers": 2, "batch_size": 3, "persistent_workers": True},
    "seldom": {"num_workers": 3, "batch_size": 2, "snapshot_every_n_steps": 3, "collate_fn": drawing},
    "one batch in flight": {"num_workers": 3, "batch_size": 2, "prefetch_bytes": 1},  # others are not asked at first
    "a seed": {"num_workers": 2, "batch_size": 2, "seed": 7, "collate_fn": drawing},
}


def made(dataset: Any, **arguments: Any) -> StageLoader[Any]:
    torch.manual_seed(3)
    return StageLoader(dataset(), **{"collate_fn": as_it_is, **arguments})


# Of four lanes each sample is a place to be interrupted at: 63 runs for each dataset, so two of them must do.
CASES = [
    (dataset, way) for dataset in STATEFUL for way in WAYS if way != "four lanes" or dataset in (OfDataset, OfIterator)
]


@pytest.mark.parametrize(("dataset", "way"), CASES)
def test_interrupted_everywhere(dataset: Any, way: str) -> None:
    interrupted_everywhere(partial(made, dataset, **WAYS[way]))


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "kept"])
def test_interrupted_everywhere_without_a_state(way: str) -> None:
    interrupted_everywhere(partial(made, Plain, **WAYS[way]))


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("num_batches", [1, 2, 5])
@pytest.mark.parametrize("dataset", [*STATEFUL, Plain])
def test_interrupted_again_and_again(dataset: Any, num_batches: int) -> None:
    make = partial(made, dataset, num_workers=3, batch_size=2, collate_fn=drawing)
    interrupted_again_and_again(make, num_batches)


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("dataset", [OfDataset, Plain])
@pytest.mark.parametrize("own_generator", [False, True])
def test_epochs_after_a_second_resume_draw_as_in_the_run_that_was_not_interrupted(
    dataset: Any, own_generator: bool
) -> None:
    """In processes whose generators are elsewhere."""

    def loader_after(seed: int) -> StageLoader[Any]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if own_generator else None
        return StageLoader(dataset(), num_workers=2, batch_size=5, collate_fn=as_it_is, generator=generator)

    with loader_after(1) as loader:
        whole = epochs_of(loader, 4)
    with loader_after(1) as loader:
        given = [*itertools.islice(loader, 2)]
        state = through_a_file(loader.state_dict())
    with loader_after(2) as loader:
        loader.load_state_dict(state)
        given += list(loader)
        state = through_a_file(loader.state_dict())
    with loader_after(3) as loader:
        loader.load_state_dict(state)
        second = list(loader)
        state = through_a_file(loader.state_dict())
    with loader_after(4) as loader:
        loader.load_state_dict(state)
        assert [given, second, *epochs_of(loader, 2)] == whole
