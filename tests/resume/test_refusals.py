"""A state that does not fit is refused, with what differs and what may differ."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, Sampler

from torchstage import StageLoader

from .runs import Plain, plain


def new(length: int = 11, **arguments: Any) -> StageLoader[Any]:
    return StageLoader(Plain(length), **{"batch_size": 2, "shuffle": True, "seed": 3, **arguments})


def state_of(loader: StageLoader[Any], num_batches: int = 2) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return loader.state_dict()


def ranks(num_replicas: int, seed: int = 0, **arguments: Any) -> StageLoader[Any]:
    sampler = DistributedSampler(range(11), num_replicas, 0, seed=seed)  # type: ignore[arg-type]
    return new(shuffle=None, sampler=sampler, **arguments)


def in_batches(size: int) -> StageLoader[Any]:
    class Own(BatchSampler):
        pass

    return StageLoader(Plain(11), batch_sampler=Own(range(11), size, False), seed=3)


@pytest.mark.parametrize(
    ("saved", "here", "word"),
    [
        (new, lambda: new(shuffle=False), "the sampler was 'RandomSampler' and is 'SequentialSampler'"),
        (new, lambda: new(12), "the sampler's length was 11 and is 12"),
        (new, lambda: new(seed=4), "seed was 3 and is 4"),
        (new, lambda: new(seed=None), "seed was 3 and is None"),
        (lambda: ranks(2), lambda: ranks(2, seed=1), "the sampler's seed was 0 and is 1"),
        (lambda: ranks(2), lambda: ranks(3), "num_replicas was 2 and is 3"),
        (lambda: in_batches(2), lambda: in_batches(3), "the sampler's length was 6 and is 4"),
    ],
)
def test_what_differs_is_named_with_what_may_differ(saved: Any, here: Any, word: str) -> None:
    state = state_of(saved())
    loader = here()
    with pytest.raises(ValueError, match="What may change: num_workers") as raised:
        loader.load_state_dict(state)
    assert word in str(raised.value)
    assert loader.state_dict()["position"] == 0


def test_all_that_differs_is_named() -> None:
    with pytest.raises(ValueError, match="seed was 3 and is 4") as raised:
        new(12, shuffle=False, seed=4).load_state_dict(state_of(new()))
    assert "the sampler was" in str(raised.value)
    assert "length was 11 and is 12" in str(raised.value)


def test_a_refused_state_leaves_the_loader_where_it_was() -> None:
    other = state_of(new())
    loader = new(12)
    before = state_of(loader)
    with pytest.raises(ValueError, match="does not fit"):
        loader.load_state_dict(other)
    assert loader.state_dict() == before


@pytest.mark.parametrize("state", [None, [], "state", 3])
def test_what_is_no_dict_is_a_type_error(state: Any) -> None:
    with pytest.raises(TypeError, match="a state is a dict"):
        new().load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"epoch": 3}, {"version": "1", "kind": "map"}])
def test_what_is_another_dict_is_a_value_error(state: Any) -> None:
    with pytest.raises(ValueError, match="no state of a StageLoader"):
        new().load_state_dict(state)


def test_a_state_of_a_newer_version_is_refused() -> None:
    state = {**state_of(new()), "version": 99}
    with pytest.raises(ValueError, match=r"version 99.*Update it"):
        new().load_state_dict(state)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # its use of torch
@pytest.mark.parametrize("num_batches", [0, 2, 6])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_of_stateful_data_loader_is_refused(num_batches: int, num_workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    arguments: dict[str, Any] = {"multiprocessing_context": "forkserver"} if num_workers else {}
    loader = stateful.StatefulDataLoader(Plain(11), 2, num_workers=num_workers, **arguments)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    state = loader.state_dict()
    del iterator, loader
    with pytest.raises(ValueError, match="saved by torchdata's StatefulDataLoader"):
        new(shuffle=False).load_state_dict(state)


class Forgetful(Sampler[int]):
    """Its order comes from nowhere."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(range(1000), 1000))

    def __len__(self) -> int:
        return 1000


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_order_that_does_not_come_again_is_an_error(num_workers: int) -> None:
    def make() -> StageLoader[Any]:
        return new(1000, shuffle=None, sampler=Forgetful(), num_workers=num_workers)

    state = state_of(make())
    loader = make()
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match="does not give the order again") as raised:
        next(iter(loader))
    assert "state_dict()" in str(raised.value)


class Shorter(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def test_a_sampler_that_has_become_shorter_is_an_error() -> None:
    state = state_of(new(shuffle=None, sampler=Shorter(11)), 4)
    loader = new(shuffle=None, sampler=Shorter(5))
    loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r"at place 8 .* but the Shorter yields fewer"):
        next(iter(loader))


def test_a_generator_of_the_same_place_goes_on_whatever_its_seed_is() -> None:
    def make(seed: int) -> StageLoader[Any]:
        sampler = RandomSampler(range(11), generator=torch.Generator().manual_seed(seed))
        return new(shuffle=None, sampler=sampler)

    loader = make(1)
    iterator = iter(loader)
    next(iterator)
    other = make(2)
    other.load_state_dict(loader.state_dict())
    assert [plain(batch) for batch in other] == [plain(batch) for batch in iterator]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_the_state_of_the_other_kind_of_dataset_is_refused() -> None:
    of_map, of_stream = StageLoader(Plain(8), 2), StageLoader(Stream(), 2)
    with pytest.raises(ValueError, match="of a map-style dataset, and this loader's is an iterable one"):
        of_stream.load_state_dict(of_map.state_dict())
    with pytest.raises(ValueError, match="of an iterable dataset, and this loader's is a map-style one"):
        of_map.load_state_dict(of_stream.state_dict())
