"""With num_workers=0 the caller's thread reads the dataset itself; the same must hold."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from torchstage import StageLoader

from .streams import (
    STATEFUL,
    OfDataset,
    OfIterator,
    Plain,
    StartsThere,
    as_it_is,
    drawing,
    interrupted_again_and_again,
    interrupted_everywhere,
)

AGAIN = "ignore:StageLoader. the dataset has no state:UserWarning"
WAYS: dict[str, dict[str, Any]] = {
    "samples": {"batch_size": None, "seed": 5},
    "batches": {"batch_size": 7, "seed": 5, "collate_fn": drawing},
    "full batches": {"batch_size": 4, "seed": 5, "drop_last": True},
}


class Counting(IterableDataset):
    """With a state, without draws."""

    def __init__(self, length: int = 10) -> None:
        self.length, self.at, self.num_iterations = length, 0, 0

    def __iter__(self) -> Iterator[int]:
        self.num_iterations += 1
        while self.at < self.length:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def made(dataset: Any, **arguments: Any) -> StageLoader[Any]:
    torch.manual_seed(3)
    return StageLoader(dataset(), **{"collate_fn": as_it_is, **arguments})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", STATEFUL)
def test_interrupted_everywhere(dataset: Any, way: str) -> None:
    interrupted_everywhere(partial(made, dataset, **WAYS[way]))


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("way", WAYS)
def test_interrupted_everywhere_without_a_state(way: str) -> None:
    interrupted_everywhere(partial(made, Plain, **WAYS[way]))


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("dataset", [Counting, StartsThere])
def test_interrupted_everywhere_without_a_seed(dataset: Any, batch_size: int | None) -> None:
    interrupted_everywhere(partial(made, dataset, batch_size=batch_size))


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("dataset", [*STATEFUL, Plain])
def test_interrupted_again_and_again(dataset: Any) -> None:
    interrupted_again_and_again(partial(made, dataset, batch_size=2, collate_fn=drawing, seed=1), 3)


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("dataset", [Plain, OfIterator])
def test_the_caller_restores_the_generators_of_the_process_and_the_draws_go_on(dataset: Any) -> None:
    loader = made(dataset, batch_size=3)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state, generators = loader.state_dict(), torch.get_rng_state()
    rest, after = list(iterator), torch.get_rng_state()
    torch.manual_seed(99)
    again = StageLoader(dataset(), batch_size=3, collate_fn=as_it_is)
    again.load_state_dict(state)
    torch.set_rng_state(generators)
    assert list(again) == rest
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.filterwarnings(AGAIN)
@pytest.mark.parametrize("dataset", [Plain, OfDataset])
def test_what_is_read_once_more_draws_from_no_generator_of_the_process(dataset: Any) -> None:
    loader = made(dataset, batch_size=3)
    next(iter(loader))
    state = loader.state_dict()
    again = made(dataset, batch_size=3)
    again.load_state_dict(state)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    iter(again)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize("seed", [None, 3])
def test_after_a_break_the_state_is_where_it_broke_off(seed: int | None) -> None:
    loader = StageLoader(Counting(), batch_size=2, seed=seed)
    for _, batch in zip(range(3), loader, strict=False):
        last = batch
    assert last.tolist() == [5, 6]
    state = loader.state_dict()
    again = StageLoader(Counting(), batch_size=2, seed=seed)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[7, 8], [9, 10]]


def test_what_a_generator_does_when_it_is_closed_comes_after_the_state() -> None:
    class Closing(Counting):
        def __iter__(self) -> Iterator[int]:
            try:
                yield from super().__iter__()
            finally:
                self.at = -1

    loader = StageLoader(Closing(), batch_size=2)
    for _ in loader:
        break
    assert loader.dataset.at == -1
    assert loader.state_dict()["readers"][0]["dataset"] == {"at": 2}


def test_iter_is_called_once_on_resume() -> None:
    loader = StageLoader(Counting(), batch_size=2)
    next(iter(loader))
    dataset = Counting()
    again = StageLoader(dataset, batch_size=2)
    again.load_state_dict(loader.state_dict())
    list(again)
    assert dataset.num_iterations == 1


def test_a_loaded_state_counts_until_a_batch_was_asked_for() -> None:
    loader = StageLoader(Counting(), batch_size=2)
    next(iter(loader))
    state = loader.state_dict()
    again = StageLoader(Counting(), batch_size=2)
    again.load_state_dict(state)
    iter(again)
    iter(again)
    assert again.state_dict() == state
    assert [batch.tolist() for batch in again] == [[3, 4], [5, 6], [7, 8], [9, 10]]
    assert len(list(again)) == 5


def test_an_error_of_state_dict_keeps_its_type_and_says_where() -> None:
    class Broken(Counting):
        def state_dict(self) -> Any:
            raise KeyError("lost")

    loader = StageLoader(Broken(), batch_size=2)
    assert len(list(loader)) == 5
    with pytest.raises(KeyError, match="lost") as caught:
        loader.state_dict()
    assert "state_dict of the dataset" in caught.value.__notes__[0]


def test_the_ways_of_reading_do_not_mix() -> None:
    loader = StageLoader(Counting(), batch_size=2)
    next(iter(loader))
    with StageLoader(Counting(), batch_size=2, num_workers=1) as other:
        with pytest.raises(ValueError, match="num_workers=0, where the caller's thread reads"):
            other.load_state_dict(loader.state_dict())
        next(iter(other))
        with pytest.raises(ValueError, match="of lanes"):
            loader.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("arguments", "word"), [({"batch_size": 3}, "batch_size was 2 and is 3"), ({"seed": 1}, "seed was None and is 1")]
)
def test_a_state_that_does_not_fit_is_refused(arguments: dict[str, Any], word: str) -> None:
    loader = StageLoader(Counting(), batch_size=2)
    next(iter(loader))
    with pytest.raises(ValueError, match=word):
        StageLoader(Counting(), **{"batch_size": 2, **arguments}).load_state_dict(loader.state_dict())
