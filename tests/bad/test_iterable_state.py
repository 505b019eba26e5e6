"""Bad samples of iterable datasets and state: a run that was cut after any batch goes on as the whole one did."""

import itertools
import json
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import SkipSample, Stage, StageLoader, TooManyBadSamples

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning")


class Walk:
    """Goes on after an error. A state of its own, if it has one, is where it is."""

    def __init__(self, numbers: list[int], bad: tuple[int, ...], filtered: tuple[int, ...]) -> None:
        self.numbers, self.bad, self.filtered, self.at = numbers, bad, filtered, 0
        self.is_over = False
        self.draws = (
            get_worker_info() is not None
        )  # inline, without a seed, it would draw from the process's generators

    def __iter__(self) -> "Walk":
        return self

    def __next__(self) -> Any:
        if self.at == len(self.numbers):
            self.is_over = True
            raise StopIteration
        number = self.numbers[self.at]
        self.at += 1
        if number in self.bad:
            raise OSError(f"truncated: {number}")
        if number in self.filtered:
            raise SkipSample("too short")
        return number, torch.rand(()).item() if self.draws else 0.0


class WalkWithState(Walk):
    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Plain(IterableDataset[Any]):
    """No state: what was handed out is read once more."""

    kind: type[Walk] = Walk

    def __init__(self, bad: tuple[int, ...], filtered: tuple[int, ...] = ()) -> None:
        self.bad, self.filtered = bad, filtered

    def __iter__(self) -> Walk:
        info = get_worker_info()
        numbers = list(range(24)) if info is None else list(range(info.id, 24, info.num_workers))
        return self.kind(numbers, self.bad, self.filtered)


class OfIterator(Plain):
    """The state is its iterator's."""

    kind = WalkWithState


class OfDataset(Plain):
    """The state is the dataset's."""

    def __init__(self, bad: tuple[int, ...], filtered: tuple[int, ...] = ()) -> None:
        super().__init__(bad, filtered)
        self.start = 0
        self.walk: Walk | None = None

    def __iter__(self) -> Walk:
        self.walk = super().__iter__()
        self.walk.at, self.start = self.start, 0
        return self.walk

    def state_dict(self) -> dict[str, Any]:
        return {"at": 0 if self.walk is None or self.walk.is_over else self.walk.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]


BAD = (2, 3, 4, 9, 16, 21, 22, 23)  # of two lanes: at ends of batches, in rows, and at the end of both
FILTERED = (7, 12)


def fails(sample: tuple[int, float]) -> Any:
    number, drawn = sample
    if number in (6, 14):
        raise ValueError("a stage")
    return number, drawn, torch.rand(()).item() if get_worker_info() is not None else 0.0


def as_it_is(samples: Any) -> Any:
    return samples


WAYS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0, "batch_size": 3},
    "inline with a seed": {"num_workers": 0, "batch_size": 3, "seed": 3},
    "inline, one by one": {"num_workers": 0, "batch_size": None},
    "one lane": {"num_workers": 1, "batch_size": 4},
    "two lanes": {"num_workers": 2, "batch_size": 2},
    "two lanes, whole batches": {"num_workers": 2, "batch_size": 3, "drop_last": True},
    "two lanes, one by one": {"num_workers": 2, "batch_size": None},
    "kept": {"num_workers": 2, "batch_size": 2, "persistent_workers": True},
    "seldom": {"num_workers": 2, "batch_size": 2, "snapshot_every_n_steps": 3},
    "filters": {"num_workers": 2, "batch_size": 2, "on_error": "raise", "bad": ()},
    "filters inline": {"num_workers": 0, "batch_size": 1, "on_error": "raise", "bad": ()},
}


def made(dataset: type[Plain], way: str) -> StageLoader[Any]:
    torch.manual_seed(3)
    arguments = {"on_error": "skip", "collate_fn": as_it_is, **WAYS[way]}
    data = dataset(arguments.pop("bad", BAD), FILTERED)
    stages = [Stage(fails)] if arguments["on_error"] == "skip" else []
    return StageLoader(data, stages=stages, **arguments)


def told_by(body: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What it returns, and the reports of bad samples."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        value = body()
    return value, [words for one in told if "bad samples" in (words := str(one.message))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", [Plain, OfIterator, OfDataset])
def test_cut_after_any_batch_it_goes_on_with_the_next(dataset: type[Plain], way: str) -> None:
    with made(dataset, way) as loader:
        whole, reports = told_by(lambda: [list(loader), list(loader)])
        assert len(reports) == (0 if "filters" in way else 2)
        counts = loader.stats().bad_samples // 2, loader.stats().filtered_samples // 2
        named = [str(one) for one in loader.stats().bad]
    assert counts == ((0, 2) if "filters" in way else (10, 2))
    assert sum(len(batch) if WAYS[way]["batch_size"] else 1 for batch in whole[0]) > 8
    for number in range(len(whole[0]) + 1):
        with made(dataset, way) as loader:
            batches = iter(loader)
            assert list(itertools.islice(batches, number)) == whole[0][:number]
            state = json.loads(json.dumps(loader.state_dict()))
            before = loader.stats()
        with made(dataset, way) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            rest, told = told_by(lambda loader=loader: list(loader))
            after = loader.stats()
            assert rest == whole[0][number:], f"after batch {number}"
            assert told == reports[:1], f"after batch {number}"
            assert [str(one) for one in (*before.bad, *after.bad)] == named[: len(named) // 2]
            if number < len(whole[0]):
                assert told_by(lambda loader=loader: list(loader)) == (whole[1], reports[1:])


@pytest.mark.parametrize("way", ["inline", "one lane"])
@pytest.mark.parametrize("dataset", [Plain, OfIterator, OfDataset])
def test_the_count_of_bad_samples_goes_on(dataset: type[Plain], way: str) -> None:
    def loader_of() -> StageLoader[Any]:
        arguments = {**WAYS[way], "batch_size": 4, "collate_fn": as_it_is}
        return StageLoader(dataset((3, 4, 17)), on_error="skip", max_bad_samples=2, **arguments)

    with loader_of() as loader:
        batches = iter(loader)
        state = loader.state_dict()
        assert "bad_samples" not in state
        assert [[number for number, _ in next(batches)] for _ in range(2)] == [[0, 1, 2, 5], [6, 7, 8, 9]]
        state = loader.state_dict()
    assert state["bad_samples"]["bad"] == 2
    assert [(one["sample"], one["stage"]) for one in state["bad_samples"]["named"]] == [(3, "fetch"), (4, "fetch")]
    with loader_of() as loader:
        loader.load_state_dict(state)
        seen: list[int] = []
        with pytest.raises(TooManyBadSamples, match=r"3 bad samples .*sample 3.*sample 4.*sample 17") as caught:
            seen.extend(number for batch in loader for number, _ in batch)
        assert seen == [10, 11, 12, 13]
        assert len(caught.value.bad) == 3


@pytest.mark.parametrize("way", ["inline", "one lane", "kept"])
def test_an_epoch_with_bad_samples_ends_as_others_do(way: str) -> None:
    with made(Plain, way) as loader:
        told_by(lambda: list(loader))
        state = loader.state_dict()
        assert state["is_boundary"]
        assert "bad_samples" not in state


def test_a_state_from_before_there_were_bad_samples_still_counts() -> None:
    with made(OfIterator, "two lanes") as loader:
        whole, _ = told_by(lambda: list(loader))
    with made(OfIterator, "two lanes") as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    del state["bad_samples"]
    for reader in state["readers"]:
        del reader["num_read"]
    with made(OfIterator, "two lanes") as loader:
        loader.load_state_dict(state)
        assert told_by(lambda: list(loader))[0] == whole[1:]
