"""prefetch_bytes: what is alive at once is bound by the budget; a batch larger than the budget passes; and nothing
is lost or left behind wherever the epoch ends."""

import threading
import weakref
from typing import Any

import pytest
import torch

from tests.parity.compare import story
from tests.stages.placing import Numbers, Places
from tests.watching import seconds_until
from torchstage import Stage, StageLoader

SAMPLE_BYTES = 4000


class Alive:
    """Counts the bytes of what was made and is not gone yet."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        with self.lock:
            self.now += num_bytes
            self.most = max(self.most, self.now)

    def watch(self, tensor: torch.Tensor) -> torch.Tensor:
        num_bytes = tensor.untyped_storage().nbytes()
        self.add(num_bytes)
        weakref.finalize(tensor, self.add, -num_bytes)
        return tensor

    def sample(self, value: int) -> torch.Tensor:
        return self.watch(torch.full((SAMPLE_BYTES // 4,), value, dtype=torch.float32))

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        return self.watch(torch.stack(samples))


def loader_of(alive: Alive, words: str, budget: int | None, **arguments: Any) -> StageLoader[Any]:
    arguments = {"num_workers": 3, "batch_size": 4, "isolation": "shared", "collate_fn": alive.collate, **arguments}
    places = Places({})
    stages = [places.stage(alive.sample, words.split()[0]), *(places.stage(same, word) for word in words.split()[1:])]
    return StageLoader(Numbers(160), stages=stages, prefetch_bytes=budget, **arguments)


def same(value: Any) -> Any:
    return value


@pytest.mark.parametrize("words", ["t", "3", "a", "t 2", "2 t", "a 2 t"])
@pytest.mark.parametrize("num_batches", [1, 2, 5])
def test_what_is_alive_stays_under_the_budget(num_batches, words):
    alive = Alive()
    batch_bytes = 4 * SAMPLE_BYTES
    budget = num_batches * batch_bytes
    with loader_of(alive, words, budget) as loader:
        numbers = [number for batch in loader for number in batch[:, 0].tolist()]
    assert numbers == [float(number) for number in range(0, 1600, 10)]
    # Beside the budget: in each of three threads a batch that is collated is alive together with its samples; and while
    # one is handed over the caller has the one before.
    assert alive.most <= budget + min(num_batches, 3) * batch_bytes + 3 * SAMPLE_BYTES + 2 * batch_bytes


def test_without_a_budget_more_is_alive():
    alive = Alive()
    with loader_of(alive, "t", None) as loader:
        iterator = iter(loader)
        next(iterator)
        seconds_until(lambda: alive.now >= 11 * 4 * SAMPLE_BYTES)
        assert len(list(iterator)) == 39


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("words", ["t", "2", "a", "t 2 a"])
@pytest.mark.parametrize("in_order", [False, True])
def test_a_batch_larger_than_the_budget_passes(in_order, words, batch_size):
    alive = Alive()
    with loader_of(alive, words, 1, batch_size=batch_size, in_order=in_order, collate_fn=None) as loader:
        got = sorted(float(batch.flatten()[0]) for batch in loader)
    step = 10 * (batch_size or 1)
    assert got == [float(number) for number in range(0, 1600, step)]


@pytest.mark.parametrize("num_taken", [0, 1, 2, 5, 39, 40])
@pytest.mark.parametrize("end", ["drop", "close", "again"])
@pytest.mark.parametrize("words", ["t", "a 2"])
def test_wherever_the_epoch_ends_everything_goes(words, end, num_taken):
    alive = Alive()
    loader = loader_of(alive, words, 3 * 4 * SAMPLE_BYTES, persistent_workers=end == "again")
    iterator = iter(loader)
    for _ in range(num_taken):
        next(iterator)
    if end == "again":
        iterator = iter(loader)
        assert len(list(iterator)) == 40
    if end != "drop":
        loader.close()
    del iterator, loader
    seconds_until(lambda: alive.now == 0)


@pytest.mark.parametrize("words", ["t", "2", "a", "t 2 a"])
def test_errors_fill_no_place_in_the_budget(words):
    def fails(value: int) -> torch.Tensor:
        if value % 30 == 0:
            raise KeyError(value)
        return torch.full((1000,), value)

    places = Places({})
    stages = [places.stage(fails if number == 0 else same, word) for number, word in enumerate(words.split())]
    with StageLoader(Numbers(60), 1, num_workers=3, stages=stages, prefetch_bytes=9000) as loader:
        events = story(loader)
    assert [isinstance(event, KeyError) for event in events] == [number % 3 == 0 for number in range(60)]


@pytest.mark.parametrize("budget", [0, -1, True, 1.5, "2"])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match="prefetch_bytes must be a positive number of bytes or None"):
        StageLoader(Numbers(3), prefetch_bytes=budget)


def test_the_budget_can_be_set_later():
    alive = Alive()
    with loader_of(alive, "t", None) as loader:
        loader.prefetch_bytes = 4 * SAMPLE_BYTES
        assert sum(len(batch) for batch in loader) == 160
    assert alive.most <= 6 * 4 * SAMPLE_BYTES


def test_samples_that_grow_are_measured_again():
    """The largest seen counts: at most what was let in before it came is over the budget."""
    sizes = [1] * 20 + [100] * 20
    alive = Alive()

    def grown(value: int) -> torch.Tensor:
        return alive.watch(torch.zeros(250 * sizes[value // 10]))

    with StageLoader(
        Numbers(40), 1, num_workers=2, stages=[Stage(grown)], prefetch_bytes=200_000, isolation="shared"
    ) as loader:
        assert len(list(loader)) == 40


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("lanes", [None, 1])
def test_with_lanes(lanes, num_workers):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(50))

    with StageLoader(
        Stream(), 5, num_workers=num_workers, lanes=lanes, prefetch_bytes=1, stages=[Stage(torch.tensor)]
    ) as loader:
        assert len(list(loader)) == 10 * (num_workers if lanes is None and num_workers else 1)
