"""Bad samples of datasets that give a batch's samples at once, wherever that is done; and what has to travel."""

import contextlib
import gc
from typing import Any

import pytest
from torch.utils.data import Dataset

from tests.bad.test_bad_samples import Broken, everywhere
from torchstage import BadSample, SkipSample, Stage, StagedDataset, StageLoader
from torchstage.executors.unpicklable import NotPicklable

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. [0-9]+ bad samples:UserWarning")


class AtOnce(StagedDataset):
    """Sample 1 is broken, sample 2 is not wanted."""

    def __len__(self) -> int:
        return 9

    def fetch_many(self, indices: list[int]) -> Any:
        return [given(index) for index in indices]


class AtOnceAwaited(StagedDataset):
    def __len__(self) -> int:
        return 9

    async def fetch_many(self, indices: list[int]) -> Any:
        return [given(index) for index in indices]


def given(index: int) -> int:
    if index == 1:
        raise ValueError("one")
    if index == 2:
        raise SkipSample("two")
    return index


def doubled(value: int) -> int:
    return 2 * value


def minus_one(bad: BadSample) -> int:
    return -1


@everywhere
@pytest.mark.parametrize("kind", [AtOnce, AtOnceAwaited])
@pytest.mark.parametrize("has_stages", [False, True])
def test_one_that_fails_takes_no_others_with_it(where: dict[str, Any], kind: Any, has_stages: bool) -> None:
    stages, times = ([Stage(doubled)], 2) if has_stages else ([], 1)
    expected = {"skip": [0, 3], "replace": [0, 3, 3, 3], minus_one: [0, -1, 3]}
    for on_error, first in expected.items():
        with StageLoader(kind(), 4, stages=stages, on_error=on_error, **where) as loader:
            found = [batch.tolist() for batch in loader]
            stats = loader.stats()
        rest = [[4, 5, 6, 7], [8]]
        assert found == [[value * (times if value > 0 else 1) for value in batch] for batch in (first, *rest)]
        assert (stats.bad_samples, stats.filtered_samples) == (1, 1)


class OwnError(Exception):
    """It cannot be made again from what pickle keeps of it."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")
        self.held = lambda: one


class OwnErrors(Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        if index == 3:
            raise OwnError(index, 4)
        return index


@everywhere
def test_an_error_that_cannot_travel_is_told_of_all_the_same(where: dict[str, Any]) -> None:
    with StageLoader(OwnErrors(), 2, on_error="skip", **where) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 4], [5]]
        (bad,) = loader.stats().bad
    assert (bad.index, bad.kind, bad.message, bad.error) == (3, "OwnError", "3 and 4", None)


def test_a_function_that_cannot_be_sent_to_processes_is_named() -> None:
    loader = StageLoader(Broken(6), 2, num_workers=1, worker_method="multiprocessing", on_error=lambda bad: bad.index)
    with loader, pytest.raises(NotPicklable, match="on_error"):
        next(iter(loader))


def test_processes_that_are_kept_are_told_with_each_batch_whether_it_is_filled_up() -> None:
    arguments: dict[str, Any] = {"num_workers": 2, "worker_method": "multiprocessing", "on_error": "skip"}
    with StageLoader(Broken(12, bad=(5,)), 2, in_order=False, **arguments) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    state["beyond"] = [[4, 6]]  # as if the third batch had come before the second
    state["position"] = 2
    state["last_index"] = 1
    with StageLoader(Broken(12, bad=(5,)), 2, persistent_workers=True, **arguments) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == [[2, 3], [6, 7], [8, 9], [10, 11]]
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 6], [7, 8], [9, 10], [11]]


class Tracked:
    pass


class Holding(Dataset[Any]):
    """Its errors' tracebacks lead to what a sample was made with."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        held = Tracked()
        if index % 4 == 1:
            raise ValueError("bad", index)
        return held


def another_error(bad: BadSample) -> Any:
    raise KeyError(str(bad)) from bad.error


@pytest.mark.parametrize("where", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["inline", "threads"])
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace", another_error])
def test_nothing_of_a_bad_sample_is_kept(where: dict[str, Any], on_error: Any) -> None:
    with StageLoader(Holding(), 4, on_error=on_error, collate_fn=len, **where) as loader:
        gc.collect()
        gc.disable()
        try:
            batches = iter(loader)
            for _ in range(4):
                with contextlib.suppress(ValueError, KeyError, StopIteration):
                    next(batches)
            stats = loader.stats()
            assert not any(type(one) is Tracked for one in gc.get_objects())
        finally:
            gc.enable()
    assert all(one.error is None for one in stats.bad)
