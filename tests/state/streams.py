"""Iterable datasets for the tests of states, and the harness that interrupts, saves, restores and compares."""

import io
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import StageLoader

SIZES = (0, 13, 5, 9)  # of the shards; the readers' are uneven


def my_sizes() -> tuple[range, int]:
    """The calling reader's own numbers, and who it is."""
    info = get_worker_info()
    if info is None:
        return range(sum(SIZES)), 0
    shards = [range(sum(SIZES[:at]), sum(SIZES[: at + 1])) for at in range(len(SIZES))]
    mine = [number for shard in shards[info.id :: info.num_workers] for number in shard]
    return range(len(mine)), info.id


class Plain(IterableDataset):
    """No state. The order is shuffled, and each sample drawn upon, by torch's generator."""

    def __iter__(self) -> Iterator[Any]:
        numbers, who = my_sizes()
        for at in torch.randperm(len(numbers)).tolist():
            yield who, at, torch.rand(()).item()


class OfDataset(IterableDataset):
    """A generator; its position and its epoch are the dataset's. Draws for each sample."""

    def __init__(self) -> None:
        self.at = self.epoch = 0
        self.resume: int | None = None

    def __iter__(self) -> Iterator[Any]:
        numbers, who = my_sizes()
        self.at, self.resume = self.resume or 0, None
        for at in numbers[self.at :]:
            self.at += 1
            yield self.epoch, who, at, torch.rand(()).item()
        self.at = 0
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.resume, self.epoch = state["at"], state["epoch"]


class Walk:
    """An iterator with a state. Each sample's list is changed for the next one."""

    def __init__(self) -> None:
        numbers, self.who = my_sizes()
        self.order = torch.randperm(len(numbers)).tolist()  # with the generators of the epoch's beginning
        self.seen: list[int] = []

    def __iter__(self) -> "Walk":
        return self

    def __next__(self) -> Any:
        if len(self.seen) == len(self.order):
            raise StopIteration
        at = self.order[len(self.seen)]
        self.seen.append(at)
        return self.who, at, torch.rand(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}  # the list itself

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class OfIterator(IterableDataset):
    """The state is its iterator's."""

    def __iter__(self) -> Walk:
        return Walk()


class Itself(IterableDataset):
    """It is its own iterator, and its order its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> "Itself":
        self.at = 0
        self.numbers, self.who = my_sizes()
        return self

    def __next__(self) -> Any:
        if self.at >= len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.who, self.at, torch.rand(()).item()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class StartsThere(IterableDataset):
    """A dataset that begins where it was told to, again and again, as those of Hugging Face do."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.start: int | None = None

    def __iter__(self) -> Iterator[Any]:
        numbers, who = my_sizes()
        self.at = self.start or 0
        for at in numbers[self.at :]:
            self.at += 1
            yield who, at

    def state_dict(self) -> Any:
        return None if self.at is None else {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.start = None if state is None else state["at"]


STATEFUL: list[type[IterableDataset[Any]]] = [OfDataset, OfIterator, Itself, StartsThere]


def as_it_is(samples: Any) -> Any:
    return samples


def drawing(samples: Any) -> Any:
    """A collate function that draws."""
    return samples, torch.rand(()).item()


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def epochs_of(loader: StageLoader[Any], num_epochs: int) -> list[list[Any]]:
    return [list(loader) for _ in range(num_epochs)]


def rest_of(make: Callable[[], StageLoader[Any]], state: Any, num_epochs: int) -> list[list[Any]]:
    """What a new loader gives that goes on from there: the rest of the epoch, and more epochs."""
    with make() as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        return epochs_of(loader, num_epochs)


def interrupted_everywhere(make: Callable[[], StageLoader[Any]], num_epochs: int = 2) -> None:
    """A run is interrupted before every batch and after the last; what is left of it must come from a new loader."""
    with make() as loader:
        whole = epochs_of(loader, num_epochs)
    assert sum(map(len, whole)) > 2
    with make() as loader:
        states: list[tuple[int, int, Any]] = []
        for epoch in range(num_epochs):
            iterator = iter(loader)
            states.append((epoch, 0, through_a_file(loader.state_dict())))
            given: list[Any] = []
            for batch in iterator:
                given.append(batch)
                states.append((epoch, len(given), through_a_file(loader.state_dict())))
            assert given == whole[epoch]
            states.append((epoch + 1, 0, through_a_file(loader.state_dict())))
    for epoch, at, state in states:
        if epoch == num_epochs:
            continue
        expected = [whole[epoch][at:], *whole[epoch + 1 :]]
        assert rest_of(make, state, num_epochs - epoch) == expected, f"from batch {at} of epoch {epoch}"


def interrupted_again_and_again(make: Callable[[], StageLoader[Any]], num_batches: int) -> None:
    """So many batches, then a new loader, until the epoch is over: together they are the epoch."""
    with make() as loader:
        whole = list(loader)
    state, given = None, list[Any]()
    while True:
        with make() as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _, batch in zip(range(num_batches), loader, strict=False):
                given.append(batch)
                state = loader.state_dict()
            state = through_a_file(loader.state_dict())
        if state["is_boundary"] or len(given) > len(whole):
            break
        if len(given) == len(whole):
            with make() as loader:
                loader.load_state_dict(state)
                assert list(loader) == []
            break
    assert given == whole
