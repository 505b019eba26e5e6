"""in_order=False: what was handed out out of its order is in the state, and does not come again."""

import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler

from torchstage import StageLoader

from . import custom
from .runs import Drawing, Plain, plain, reseed, through_json


class Held(Plain):
    """The samples of ``held`` come once they are let go of."""

    def __init__(self, length: int, held: set[int]) -> None:
        super().__init__(length)
        self.held = held
        self.let_go = threading.Event()

    def __getitem__(self, index: Any) -> torch.Tensor:
        if index in self.held and not self.let_go.wait(30):
            raise TimeoutError
        return super().__getitem__(index)


def new(dataset: Any, batch_size: int | None = 2, num_workers: int = 3, **arguments: Any) -> StageLoader[Any]:
    return StageLoader(dataset, batch_size, num_workers=num_workers, in_order=False, seed=1, **arguments)


def out_of_order(num_batches: int, **arguments: Any) -> tuple[list[Any], dict[str, Any]]:
    """As many batches of an epoch whose second one is held back, and the state then."""
    dataset = Held(20, {2, 3})
    with new(dataset, **arguments) as loader:
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(num_batches)]
        state = loader.state_dict()
        dataset.let_go.set()
    assert [2, 3] not in seen
    return seen, through_json(state)


def test_what_lies_beyond_the_first_place_that_was_not_handed_out_is_kept() -> None:
    seen, state = out_of_order(4)
    assert sorted(seen) == [[0, 1], [4, 5], [6, 7], [8, 9]]
    assert state["position"] == 2
    assert sorted(chain.from_iterable(range(begin, end) for begin, end in state["beyond"])) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("batch_size", [1, 2, 3, None, 7])
def test_the_rest_comes_exactly_once(num_workers: int, batch_size: int | None) -> None:
    seen, state = out_of_order(4)
    loader = new(Plain(20), batch_size, num_workers)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    rest = [plain(batch) for batch in loader]
    if batch_size is None:
        rest = [rest]
    assert sorted(chain(*seen, *rest)) == list(range(20))
    assert sorted(loader.dataset.asked) == sorted(chain(*rest))  # type: ignore[attr-defined]
    assert sorted(chain.from_iterable(_batches(loader))) == list(range(20))


def _batches(loader: StageLoader[Any]) -> Iterator[list[int]]:
    for batch in loader:
        yield plain(batch) if loader.batch_size is not None else [plain(batch)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_it_is_exactly_once_after_several_resumes(num_workers: int) -> None:
    seen, state = out_of_order(3)
    while not state["is_boundary"]:
        with new(Plain(20), 3, num_workers) as loader:
            loader.load_state_dict(state)
            iterator = iter(loader)
            seen.append(plain(next(iterator)))
            state = through_json(loader.state_dict())
    assert sorted(chain(*seen)) == list(range(20))


def test_what_was_out_of_order_is_held_back_again() -> None:
    """A second process that hands out other batches beyond the same low place."""
    seen, state = out_of_order(3)
    dataset = Held(20, {2, 3})
    with new(dataset) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        seen += [plain(next(iterator)) for _ in range(3)]
        state = through_json(loader.state_dict())
        dataset.let_go.set()
    assert state["position"] == 2
    with new(Plain(20), num_workers=0) as loader:
        loader.load_state_dict(state)
        seen += [plain(batch) for batch in loader]
    assert sorted(chain(*seen)) == list(range(20))


def _of_torch(dataset: Any) -> dict[str, Any]:
    return {"sampler": RandomSampler(dataset, generator=torch.Generator().manual_seed(3))}


def _stateful(dataset: Any) -> dict[str, Any]:
    return {"sampler": custom.Stateful()}


def _batch_sampler(dataset: Any) -> dict[str, Any]:
    sampler = RandomSampler(dataset, generator=torch.Generator().manual_seed(3))
    return {"batch_sampler": custom.Batches(sampler), "batch_size": 1}


def _process(dataset: Any) -> dict[str, Any]:
    return {"sampler": custom.AsItGoes("random")}


class HeldDraws(Drawing):
    """The k-th sample that is asked for waits until the others that may come before were handed out."""

    def __init__(self, length: int, num_first: int) -> None:
        super().__init__(length)
        self.left = num_first
        self.let_go = threading.Event()
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.lock:
            self.left -= 1
            is_held = self.left == 0
        if is_held and not self.let_go.wait(30):
            raise TimeoutError
        return super().__getitem__(index)


@pytest.mark.parametrize("make", [_of_torch, _stateful, _batch_sampler, _process])
@pytest.mark.parametrize("num_workers", [0, 3])
def test_samples_and_their_draws_are_those_of_the_order(make: Any, num_workers: int) -> None:
    reseed(1)
    with new(dataset := Drawing(11), num_workers=0, **make(dataset)) as loader:
        expected = [sorted(chain.from_iterable(plain(batch) for batch in loader)) for _ in range(2)]

    reseed(1)
    held = HeldDraws(11, 2)
    with new(held, num_workers=2, **make(held)) as loader:
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(3)]
        state = through_json(loader.state_dict())
        held.let_go.set()
        del iterator
    assert state["beyond"]
    reseed(2)
    with new(dataset := Drawing(11), num_workers=num_workers, **make(dataset)) as loader:
        loader.load_state_dict(state)
        rest = [plain(batch) for batch in loader]
        assert sorted(chain(*seen, *rest)) == expected[0]
        assert sorted(chain.from_iterable(plain(batch) for batch in loader)) == expected[1]


def test_processes_out_of_order_tell_as_threads_do() -> None:
    with StageLoader(Plain(8), 2, num_workers=2, in_order=False, worker_method="multiprocessing") as loader:
        iterator = iter(loader)
        first = next(iterator).tolist()
        state = loader.state_dict()
        loader.load_state_dict(state)
        rest = [value for batch in loader for value in batch.tolist()]
    assert sorted([*first, *rest]) == list(range(8))


def test_a_sampler_s_batches_stay_whole() -> None:
    class Pairs(Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            return iter(BatchSampler(range(20), 2, False))

    dataset = Held(20, {2, 3})
    with StageLoader(dataset, batch_sampler=Pairs(), num_workers=3, in_order=False, seed=1) as loader:
        iterator = iter(loader)
        seen = [plain(next(iterator)) for _ in range(4)]
        state = through_json(loader.state_dict())
        dataset.let_go.set()
    assert state["counts"] == "batches"
    with StageLoader(Plain(20), batch_sampler=Pairs(), num_workers=3, in_order=False, seed=1) as loader:
        loader.load_state_dict(state)
        seen += [plain(batch) for batch in loader]
    assert sorted(seen) == [[number, number + 1] for number in range(0, 20, 2)]
