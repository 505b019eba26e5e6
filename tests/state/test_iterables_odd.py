"""States of iterable datasets in odd places: errors, breaks, no order, other libraries' datasets."""

import itertools
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from torchstage import StageLoader

from .streams import OfDataset, Plain, StartsThere, as_it_is, through_a_file


class Numbers(IterableDataset):
    """``length`` numbers, the same for each reader, with a state. Counts what is asked of it."""

    calls: ClassVar[Counter[str]] = Counter()

    def __init__(self, length: int = 12) -> None:
        self.length, self.at = length, 0

    def __iter__(self) -> Iterator[int]:
        self.calls["iter"] += 1
        while self.at < self.length:
            self.at += 1
            self.calls["samples"] += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        self.calls["state_dict"] += 1
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls["load_state_dict"] += 1
        self.at = state["at"]


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    Numbers.calls.clear()


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


# What it costs ---------------------------------------------------------------------------------------------------


def test_to_go_on_asks_for_no_sample_that_was_handed_out_and_calls_iter_once_in_each_lane() -> None:
    with StageLoader(Numbers(40), batch_size=2, num_workers=2) as loader:
        given = flat(itertools.islice(loader, 10))
        state = loader.state_dict()
    Numbers.calls.clear()
    with StageLoader(Numbers(40), batch_size=2, num_workers=2) as again:
        again.load_state_dict(state)
        rest = flat(again)
    assert sorted(given + rest) == sorted([*range(1, 41)] * 2)
    assert Numbers.calls["samples"] == len(rest) == 60
    assert Numbers.calls["iter"] == Numbers.calls["load_state_dict"] == 2


@pytest.mark.parametrize(("num_steps", "num_marks"), [(1, 6), (3, 2), (100, 0), (0, 0), (None, 0)])
def test_a_state_is_asked_for_once_in_so_many_batches_of_a_lane(num_steps: int | None, num_marks: int) -> None:
    with StageLoader(Numbers(12), batch_size=2, num_workers=1, snapshot_every_n_steps=num_steps) as loader:
        iterator = iter(loader)
        given = flat(itertools.islice(iterator, 5))
        state = loader.state_dict()
        assert flat(iterator) == [11, 12]
        assert Numbers.calls["state_dict"] == 1 + num_marks  # and once before the first batch
    with StageLoader(Numbers(12), batch_size=2, num_workers=1, snapshot_every_n_steps=num_steps) as again:
        again.load_state_dict(state)
        assert given + flat(again) == [*range(1, 13)]


def test_what_is_read_once_more_is_said_once_with_a_number_and_a_way_out() -> None:
    with StageLoader(Plain(), batch_size=2, num_workers=2) as loader:
        assert len(list(itertools.islice(loader, 3))) == 3
        state = loader.state_dict()
    with StageLoader(Plain(), batch_size=2, num_workers=2) as again:
        again.load_state_dict(state)
        with pytest.warns(UserWarning, match="so 3 batches .* Give the dataset .*state_dict") as caught:
            list(again)
        assert len(caught) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            list(again)


# Epochs after it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [OfDataset, StartsThere, Numbers, Plain])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning")
def test_only_the_resumed_epoch_is_short(dataset: Any, num_workers: int, is_kept: bool) -> None:
    """UR-037."""
    chosen = {"batch_size": 2, "num_workers": num_workers, "persistent_workers": is_kept and num_workers > 0}
    with StageLoader(dataset(), collate_fn=as_it_is, **chosen) as loader:
        num_batches = len(list(loader))
        assert len(list(itertools.islice(loader, num_batches - 3))) == num_batches - 3
        state = loader.state_dict()
    with StageLoader(dataset(), collate_fn=as_it_is, **chosen) as again:
        again.load_state_dict(state)
        assert [len(list(again)) for _ in range(3)] == [3, num_batches, num_batches]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_one_loader_loads_one_state_after_another(num_workers: int) -> None:
    with StageLoader(StartsThere(), batch_size=2, num_workers=num_workers, collate_fn=as_it_is) as loader:
        whole = list(loader)
        states = []
        for _ in loader:
            states.append(loader.state_dict())
        for at in (3, 7, 0, 5):
            loader.load_state_dict(states[at])
            assert list(loader) == whole[at + 1 :]
            assert list(loader) == whole


def test_a_state_is_not_changed_by_what_is_read_after_it() -> None:
    class Mutable(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def __iter__(self) -> Iterator[int]:
            for number in range(len(self.seen), 10):
                self.seen.append(number)
                yield number

        def state_dict(self) -> Any:
            return {"seen": self.seen}

        def load_state_dict(self, state: Any) -> None:
            self.seen = state["seen"]

    for num_workers in (0, 1):
        with StageLoader(Mutable(), num_workers=num_workers) as loader:
            iterator = iter(loader)
            next(iterator), next(iterator)
            state = loader.state_dict()
            copy = through_a_file(state)
            list(iterator)
            assert state == copy
        with StageLoader(Mutable(), num_workers=num_workers) as again:
            again.load_state_dict(state)
            list(again)
            assert state == copy


# Without order -----------------------------------------------------------------------------------------------------


def test_out_of_order_each_lane_goes_on_where_what_was_handed_out_of_it_ends() -> None:
    may_go = threading.Event()

    class Slow(Numbers):
        def __iter__(self) -> Iterator[int]:
            info = get_worker_info()
            if info.id == 0:
                assert may_go.wait(20)
            for number in super().__iter__():
                yield number + 100 * info.id

    chosen: dict[str, Any] = {"batch_size": None, "num_workers": 2, "in_order": False}
    with StageLoader(Slow(), isolation="auto", **chosen) as loader:
        iterator = iter(loader)
        given = [next(iterator) for _ in range(5)]
        assert given == [101, 102, 103, 104, 105]
        may_go.set()
        given.append(next(iterator))
        state = loader.state_dict()
    with StageLoader(Slow(), **chosen) as again:
        again.load_state_dict(state)
        given += list(again)
    assert sorted(given) == [*range(1, 13), *range(101, 113)]


# Errors ------------------------------------------------------------------------------------------------------------


class Failing(Numbers):
    """Every fifth sample is an error, after which it goes on: it is no generator."""

    def __iter__(self) -> "Failing":  # type: ignore[override]
        return self

    def __next__(self) -> int:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        if self.at % 5 == 0:
            raise ValueError(self.at)
        return self.at


def given_by(iterator: Iterator[Any], num_batches: int = 1000) -> list[Any]:
    found: list[Any] = []
    while len(found) < num_batches:
        try:
            found.append(next(iterator).tolist())
        except ValueError as error:
            found.append(error.args)
        except StopIteration:
            break
    return found


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_batch_that_failed_counts_and_does_not_come_again(num_workers: int) -> None:
    def made() -> StageLoader[Any]:
        return StageLoader(Failing(), batch_size=2, num_workers=num_workers)

    with made() as loader:
        whole = given_by(iter(loader))
    assert (5,) in whole
    for at in range(len(whole)):
        with made() as loader:
            given_by(iter(loader), at)
            state = loader.state_dict()
        with made() as again:
            again.load_state_dict(state)
            assert given_by(iter(again)) == whole[at:]


def test_an_error_of_state_dict_waits_until_somebody_asks_and_names_the_lane() -> None:
    class Broken(Numbers):
        def state_dict(self) -> Any:
            if self.at > 3 and get_worker_info().id == 1:
                raise KeyError("lost")
            return super().state_dict()

    with StageLoader(Broken(), num_workers=2) as loader:
        iterator = iter(loader)
        for _ in range(7):
            next(iterator)
        loader.state_dict()
        next(iterator)
        with pytest.raises(KeyError, match="lost") as caught:
            loader.state_dict()
        assert "raised in state_dict of lane 1" in caught.value.__notes__[0]
        assert len(list(iterator)) == 24 - 8


def test_an_error_of_load_state_dict_comes_in_the_place_of_the_lane_s_batch_and_names_it() -> None:
    class Broken(Numbers):
        def load_state_dict(self, state: Any) -> None:
            raise KeyError("lost")

    with StageLoader(Broken(), num_workers=2) as loader:
        iterator = iter(loader)  # while it is there, each lane tells where it began
        next(iterator)
        state = loader.state_dict()
    with StageLoader(Broken(), num_workers=2) as again:
        again.load_state_dict(state)
        with pytest.raises(KeyError, match="lost") as caught:
            next(iter(again))
        assert any("load_state_dict of lane" in note for note in caught.value.__notes__)


# Breaks, and who may have it ---------------------------------------------------------------------------------------


def test_after_a_break_the_state_is_where_it_broke_off_and_the_next_epoch_is_whole() -> None:
    with StageLoader(Numbers(), batch_size=3, num_workers=2) as loader:
        given = flat(itertools.islice(loader, 3))
        state = loader.state_dict()
        assert len(flat(loader)) == 24
    with StageLoader(Numbers(), batch_size=3, num_workers=2) as again:
        again.load_state_dict(state)
        assert sorted(given + flat(again)) == sorted([*range(1, 13)] * 2)


def test_lanes_that_are_kept_after_a_break_begin_with_the_draws_that_they_have_come_to() -> None:
    chosen: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, "collate_fn": as_it_is}
    with StageLoader(OfDataset(), **chosen) as loader:
        list(itertools.islice(loader, 3))
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = list(iterator)
    with StageLoader(OfDataset(), **chosen) as again:
        again.load_state_dict(state)
        assert list(again) == rest


def test_a_state_before_any_batch_begins_with_the_same_draws() -> None:
    with StageLoader(OfDataset(), num_workers=2, collate_fn=as_it_is) as loader:
        iterator = iter(loader)
        state = through_a_file(loader.state_dict())
        whole = list(iterator)
    with StageLoader(OfDataset(), num_workers=2, collate_fn=as_it_is) as again:
        again.load_state_dict(state)
        assert list(again) == whole


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"num_workers": 3}, "the number of readers .* was 2 and is 3"),
        ({"lanes": 1}, "the number of readers .* was 2 and is 1"),
        ({"drop_last": True}, "drop_last was False and is True"),
        ({"dataset": Plain()}, "the dataset's type was 'Numbers' and is 'Plain'"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(arguments: dict[str, Any], word: str) -> None:
    chosen: dict[str, Any] = {"dataset": Numbers(), "num_workers": 2}
    with StageLoader(**chosen) as loader:
        next(iter(loader))
        with pytest.raises(ValueError, match=word) as caught:
            StageLoader(**{**chosen, **arguments}).load_state_dict(loader.state_dict())
        assert "What may change: prefetch_factor" in str(caught.value)


def test_what_may_change_may_change() -> None:
    with StageLoader(Numbers(), num_workers=2) as loader:
        given = flat(itertools.islice(loader, 5))
        state = loader.state_dict()
    other: dict[str, Any] = {
        "prefetch_factor": 5,
        "persistent_workers": True,
        "snapshot_every_n_steps": 4,
        "timeout": 9,
    }
    with StageLoader(Numbers(), num_workers=2, **other) as again:
        again.load_state_dict(state)
        assert sorted(given + flat(again)) == sorted([*range(1, 13)] * 2)


# Other libraries' --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning")
@pytest.mark.filterwarnings("ignore:.*DataPipe.*|.*pipe.*")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_data_pipe_is_read_once_more_in_the_same_order(num_workers: int) -> None:
    def made() -> StageLoader[Any]:
        pipe = IterableWrapper(range(20)).shuffle().sharding_filter()
        return StageLoader(pipe, batch_size=2, num_workers=num_workers, shuffle=True, generator=torch.Generator())

    with made() as loader:
        iterator = iter(loader)
        given = flat(itertools.islice(iterator, 4))
        state = through_a_file(loader.state_dict())
        rest, second = flat(iterator), flat(loader)
    assert sorted(given + rest) == [*range(20)]
    with made() as again:
        again.load_state_dict(state)
        assert flat(again) == rest
        assert flat(again) == second


@pytest.mark.parametrize(("num_workers", "is_kept"), [(0, False), (1, False), (3, False), (3, True)])
def test_a_dataset_of_hugging_face(num_workers: int, is_kept: bool) -> None:
    datasets = pytest.importorskip("datasets")

    def made() -> StageLoader[Any]:
        rows = datasets.Dataset.from_dict({"number": list(range(30))}).to_iterable_dataset(num_shards=3)
        chosen = {"batch_size": 4, "num_workers": num_workers, "collate_fn": as_it_is}
        return StageLoader(rows, persistent_workers=is_kept and num_workers > 0, **chosen)

    with made() as loader:
        whole = list(loader)
    assert sorted(row["number"] for batch in whole for row in batch) == [*range(30)]
    for at in range(len(whole)):
        with made() as loader:
            assert list(itertools.islice(loader, at)) == whole[:at]
            state = through_a_file(loader.state_dict())
        with made() as again:
            again.load_state_dict(state)
            assert list(again) == whole[at:]
            assert list(again) == whole
