"""Draws in stages: they belong to the sample and the stage, not to the place, the number of threads or their timing."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from tests.parity.compare import assert_same
from tests.stages.placing import Awaited, Numbers, Places
from torchstage import Stage, StagedDataset, StageLoader, sample_rng

LENGTH = 20
SEED = 5


def drawn() -> list[float]:
    """One draw from each generator that a sample has."""
    own = sample_rng()
    modern, native = own.numpy.random(), own.python.random()
    return [torch.rand((), dtype=torch.float64).item(), random.random(), np.random.rand(), modern, native]


def first(value: int) -> list[float]:
    return [float(value), *drawn()]


def second(value: list[float]) -> list[float]:
    return [*value, *drawn()]


def third(value: list[float]) -> torch.Tensor:
    return torch.tensor([*value, *drawn()], dtype=torch.float64)


THREE = (first, second, third)


class Drawing(Numbers):
    """The dataset draws, too."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + random.random() + torch.rand(()).item() + np.random.rand()


class Bulk(StagedDataset):
    """Draws when it reads a batch, and when it decodes a sample."""

    def __len__(self) -> int:
        return LENGTH

    def fetch_many(self, indices: Sequence[int]) -> list[float]:
        return [index + random.random() for index in indices]

    def decode(self, value: float) -> float:
        return value + 100 * random.random()


def epochs(places: Places, words: str, dataset: Any, num_epochs: int = 2, **arguments: Any) -> list[Any]:
    arguments = {"batch_size": 4, "seed": SEED, **arguments}
    stages = places.stages(THREE, words)
    with StageLoader(dataset, stages=stages, **arguments) as loader:
        return [list(loader) for _ in range(num_epochs)]


@pytest.fixture(scope="module")
def expected() -> dict[type, Any]:
    """Of the plainest loader."""
    places = Places({})
    return {
        kind: epochs(places, "t t t", dataset, num_workers=1)
        for kind, dataset in {Drawing: Drawing(LENGTH), Bulk: Bulk()}.items()
    }


def states() -> list[Any]:
    """Of the process's generators but torch's."""
    return [random.getstate(), *np.random.get_state()[1:]]


@pytest.fixture(autouse=True)
def the_process_s_generators_stay_as_they_are():
    before, of_torch = states(), torch.get_rng_state()
    yield
    assert_same(states(), before)
    torch.set_rng_state(of_torch)  # each epoch takes its base seed from it


@pytest.mark.parametrize("num_workers", [0, 3])
def test_torch_s_generator_gives_a_base_seed_for_each_epoch_as_in_torch(num_workers, somewhere):
    torch.manual_seed(1)
    for _ in range(2):
        list(DataLoader(Numbers(LENGTH), 4))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    epochs(somewhere, "t 2 a", Drawing(LENGTH), num_workers=num_workers)
    assert_same(torch.get_rng_state(), state)


WORDS = ["t t t", "2 2 2", "a a a", "x x x", "p p p", "a t 2", "2 a x", "x 2 a", "t p t", "p t a"]


@pytest.mark.parametrize("dataset", [Drawing(LENGTH), Bulk()], ids=["sample by sample", "in bulk"])
@pytest.mark.parametrize("words", WORDS)
def test_the_place_changes_no_draw(words, dataset, everywhere, expected):
    assert_same(epochs(everywhere, words, dataset, num_workers=3), expected[type(dataset)])


@pytest.mark.parametrize("dataset", [Drawing(LENGTH), Bulk()], ids=["sample by sample", "in bulk"])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4, 8])
@pytest.mark.parametrize("words", ["t t t", "2 a x"])
def test_the_number_of_threads_changes_no_draw(words, num_workers, dataset, somewhere, expected):
    assert_same(epochs(somewhere, words, dataset, num_workers=num_workers), expected[type(dataset)])


@pytest.mark.parametrize("isolation", ["serial", "per_thread", "shared"])
@pytest.mark.parametrize("words", ["t t t", "a 2 x"])
def test_isolation_changes_no_draw(words, isolation, somewhere, expected):
    got = epochs(somewhere, words, Drawing(LENGTH), num_workers=3, isolation=isolation)
    assert_same(got, expected[Drawing])


@pytest.mark.parametrize("words", WORDS)
def test_out_of_order_each_sample_draws_the_same(words, everywhere, expected):
    got = epochs(everywhere, words, Drawing(LENGTH), 1, num_workers=3, in_order=False)[0]
    assert sorted(batch.tolist() for batch in got) == sorted(batch.tolist() for batch in expected[Drawing][0])


def flat(batches: list[torch.Tensor]) -> list[list[float]]:
    return [sample for batch in batches for sample in batch.tolist()]


@pytest.mark.parametrize("batch_size", [1, 7, None])
@pytest.mark.parametrize("words", ["t t t", "2 a x"])
def test_batching_changes_no_draw(words, batch_size, somewhere, expected):
    batches = epochs(somewhere, words, Drawing(LENGTH), 1, num_workers=3, batch_size=batch_size)[0]
    got = [batch.tolist() for batch in batches] if batch_size is None else flat(batches)
    assert got == flat(expected[Drawing][0])


def test_draws_differ_between_stages_samples_and_epochs(expected):
    samples = [flat(epoch) for epoch in expected[Drawing]]
    draws = [number for epoch in samples for sample in epoch for number in sample[1:]]
    assert len(set(draws)) == len(draws)


@pytest.mark.parametrize("words", WORDS)
def test_one_index_twice_draws_anew(words, everywhere):
    def sampler() -> Any:
        return RandomSampler(range(LENGTH), replacement=True, num_samples=40, generator=torch.manual_seed(3))

    state = torch.get_rng_state()
    plain = epochs(everywhere, "t t t", Drawing(LENGTH), 1, num_workers=0, sampler=sampler())[0]
    other = epochs(everywhere, words, Drawing(LENGTH), 1, num_workers=3, sampler=sampler())[0]
    torch.set_rng_state(state)
    assert_same(other, plain)
    samples = [tuple(sample[1:]) for sample in flat(plain)]
    assert len(set(samples)) == len(samples)


class Key:
    """An index that does not say by itself which sample it is."""

    def __init__(self, number: int) -> None:
        self.number = number


class ByKey(Drawing):
    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key.number)


@pytest.mark.parametrize("words", WORDS)
def test_indices_that_are_objects_draw_the_same_everywhere(words, everywhere):
    def sampler() -> list[Key]:
        return [Key(number % LENGTH) for number in range(30)]

    plain = epochs(everywhere, "t t t", ByKey(LENGTH), 1, num_workers=0, sampler=sampler())[0]
    assert_same(epochs(everywhere, words, ByKey(LENGTH), 1, num_workers=3, sampler=sampler())[0], plain)


class Both(Numbers):
    """Several samples of a batch wait for each other inside their coroutines: their draws take turns."""

    @staticmethod
    async def take_turns(value: int) -> torch.Tensor:
        numbers = [float(value)]
        for _ in range(5):
            numbers += drawn()
            await asyncio.sleep(0)
        return torch.tensor(numbers, dtype=torch.float64)


@pytest.mark.parametrize("num_workers", [1, 4])
def test_coroutines_that_take_turns_keep_their_draws(num_workers):
    def epoch(concurrency: int, num_workers: int) -> list[Any]:
        stages = [Stage(Both.take_turns, concurrency=concurrency)]
        with StageLoader(Both(LENGTH), 4, num_workers=num_workers, stages=stages, seed=SEED) as loader:
            return list(loader)

    assert_same(epoch(16, num_workers), epoch(1, 0))


@pytest.mark.parametrize("words", ["t t t", "a 2 x", "x x a"])
def test_without_sample_rng_stages_draw_from_the_process_s_generators(words, somewhere):
    def draw(value: Any) -> float:
        with pytest.raises(RuntimeError, match="sample_rng"):
            sample_rng()
        return random.random()

    stages = somewhere.stages([draw, draw, draw], words)
    state = random.getstate()
    with StageLoader(Numbers(8), 4, num_workers=1, stages=stages, sample_rng=False) as loader:
        random.seed(1)
        got = flat_numbers(loader)
    random.seed(1)
    assert set(got) <= {random.random() for _ in range(24)}
    random.setstate(state)


def flat_numbers(loader: Any) -> list[float]:
    return [number for batch in loader for number in batch.tolist()]


class Holding:
    """A stage that keeps generators of its own, as many augmentations do."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.random = random.Random(0)

    def __call__(self, value: int) -> torch.Tensor:
        return torch.tensor([value, self.rng.random(), self.random.random()], dtype=torch.float64)


@pytest.mark.parametrize("words", ["t", "1", "3", "a", "a1"])
def test_generators_that_a_stage_keeps_are_the_sample_s_too(words):
    def epoch(word: str, num_workers: int) -> list[Any]:
        stages = [Places({}).stage(Holding(), word) if word[0] != "a" else Stage(Awaited2(Holding()))]
        with StageLoader(Numbers(LENGTH), 4, num_workers=num_workers, stages=stages, seed=SEED) as loader:
            return [list(loader) for _ in range(2)]

    plain = epoch("t", 0)
    assert_same(epoch(words, 1), plain)
    assert_same(epoch(words, 4), plain)


class Awaited2(Awaited):
    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = type(function).__name__


class HoldingBulk(Bulk):
    """Draws from a generator that it keeps, when it decodes a sample, and from no other."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def fetch_many(self, indices: Sequence[int]) -> list[float]:
        return list(map(float, indices))

    def decode(self, value: float) -> float:
        return value + self.rng.random()


def test_generators_that_a_dataset_keeps_are_the_sample_s_after_a_bulk_read():
    def samples(batch_size: int, num_workers: int) -> list[float]:
        with StageLoader(HoldingBulk(), batch_size, num_workers=num_workers, seed=SEED, collate_fn=list) as loader:
            return [sample for batch in loader for sample in batch]

    plain = samples(4, 0)
    assert len({sample % 1 for sample in plain}) == LENGTH
    for batch_size, num_workers in ((4, 1), (4, 4), (7, 0), (7, 4), (1, 2)):
        assert samples(batch_size, num_workers) == plain
