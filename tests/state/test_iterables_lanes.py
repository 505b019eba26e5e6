"""Lanes that are interrupted anywhere go on where they were."""

from functools import partial
from typing import Any

import pytest
import torch
from streams import STATEFUL, Plain, as_it_is, drawing, interrupted_again_and_again, interrupted_everywhere

from torchstage import StageLoader

from .streams import STATEFUL, Plain, as_it_is, drawing, interrupted_again_and_again, interrupted_everywhere

AGAIN = "ignore:StageLoader. the dataset has no state:UserWarning"

WAYS: dict[str, dict[str, Any]] = {
    "one lane": {"num_workers": 1},
    "two lanes": {"num_workers": 2, "batch_size": 2},
    "three lanes": {"num_workers": 3, "batch_size": 4, "drop_last": True},
    "four lanes": {"num_workers": 4, "batch_size": None},
    "one lane, more threads": {"num_workers": 3, "lanes": 1, "batch_size": 7},
    "kept": {"num_workers": 2, "batch_size": 3, "persistent_workers": True},
    "seldom": {"num_workers": 3, "batch_size": 2, "snapshot_every_n_steps": 3, "collate_fn": drawing},
    "a seed": {"num_workers": 2, "batch_size": 2, "seed": 7, "collate_fn": drawing},
}


def made(dataset: Any, **arguments: Any) -> StageLoader[Any]:
    torch.manual_seed(3)
    return StageLoader(dataset(), **{"collate_fn": as_it_is, **arguments})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", STATEFUL)
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
