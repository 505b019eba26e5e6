"""Bad samples of iterable datasets: what lanes, and the caller's thread, hand out where some samples fail."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import BadSample, SkipSample, Stage, StageLoader, TooManyBadSamples

BAD = (3, 4, 17)
ONE_READER: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 0, "seed": 5},
    {"num_workers": 1},
    {"num_workers": 3, "lanes": 1},
    {"num_workers": 1, "persistent_workers": True},
]
NAMES = ["inline", "inline with a seed", "one lane", "lanes=1", "a lane that is kept"]
one_reader = pytest.mark.parametrize("where", ONE_READER, ids=NAMES)


class Numbers:
    """An iterator of a class: after an error it goes on with the next number."""

    def __init__(self, numbers: Any, bad: Any = BAD, filtered: Any = ()) -> None:
        self.numbers, self.bad, self.filtered = iter(numbers), bad, filtered

    def __iter__(self) -> "Numbers":
        return self

    def __next__(self) -> int:
        number = next(self.numbers)
        if number in self.bad:
            raise OSError(5, f"truncated: {number}", f"shard-{number // 10}.tar")
        if number in self.filtered:
            raise SkipSample("too short")
        return number


class Broken(IterableDataset[Any]):
    """Reader k of N has every N-th block of ten numbers."""

    kind = Numbers

    def __init__(self, length: int, bad: Any = BAD, filtered: Any = ()) -> None:
        self.length, self.bad, self.filtered = length, bad, filtered

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        which, step = (0, 1) if info is None else (info.id, info.num_workers)
        mine = (number for number in range(self.length) if number // 10 % step == which)
        return self.kind(mine, self.bad, self.filtered)


def listed(loader: StageLoader[Any]) -> list[list[int]]:
    with loader:
        return [batch.tolist() for batch in loader]


def batches_of(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[begin : begin + size] for begin in range(0, len(numbers), size)]


# What is handed out -----------------------------------------------------------------------------------------------


@one_reader
def test_an_error_is_raised_in_its_place_by_default(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(8, bad=(3,)), batch_size=2, **where)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(OSError, match="truncated: 3"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[4, 5], [6, 7]]
    assert loader.stats().bad_samples == 0
    loader.close()


@one_reader
@pytest.mark.parametrize("on_error", ["skip", "replace"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 20])
def test_batches_are_filled_up_by_reading_on(where: dict[str, Any], on_error: Any, batch_size: int) -> None:
    good = [number for number in range(20) if number not in BAD]
    loader = StageLoader(Broken(20), batch_size=batch_size, on_error=on_error, **where)
    with pytest.warns(UserWarning, match="3 bad samples in this epoch"):
        assert listed(loader) == batches_of(good, batch_size)


@one_reader
def test_a_short_rest_is_dropped_where_that_is_asked_for(where: dict[str, Any]) -> None:
    good = [number for number in range(21) if number not in BAD]
    loader = StageLoader(Broken(21), batch_size=4, on_error="skip", drop_last=True, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        assert listed(loader) == batches_of(good, 4)[:4]


@one_reader
def test_without_batches_the_next_good_sample_comes(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(6, bad=(0, 3, 5)), batch_size=None, on_error="skip", **where)
    with loader, pytest.warns(UserWarning, match="3 bad samples"):
        assert list(loader) == [1, 2, 4]


def test_each_lane_fills_its_own_batches() -> None:
    loader = StageLoader(Broken(40, bad=(1, 12, 13, 39)), batch_size=4, num_workers=2, on_error="skip")
    with pytest.warns(UserWarning, match="4 bad samples"):
        found = listed(loader)
    lanes = [[0, *range(2, 10), *range(20, 30)], [10, 11, *range(14, 20), *range(30, 39)]]
    by_lane = [batches_of(lane, 4) for lane in lanes]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by_lane))
    assert found == [batch for batch in turns if batch is not None]


@one_reader
def test_the_last_sample_may_be_bad(where: dict[str, Any]) -> None:
    for on_error in ("skip", lambda bad: -1):
        loader = StageLoader(Broken(9, bad=(8,)), batch_size=4, on_error=on_error, **where)
        with pytest.warns(UserWarning, match=r"1 bad samples.*ended right after"):
            assert listed(loader)[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert loader.stats().bad_samples == 1


@one_reader
def test_bad_samples_after_the_last_batch_are_told_of_too(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(12, bad=range(8, 12)), batch_size=4, on_error="skip", max_bad_samples=4, **where)
    with pytest.warns(UserWarning, match="4 bad samples"):
        assert listed(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader = StageLoader(Broken(12, bad=range(8, 12)), batch_size=4, on_error="skip", max_bad_samples=3, **where)
    seen: list[Any] = []
    with loader, pytest.raises(TooManyBadSamples, match="4 bad samples"):
        seen.extend(batch.tolist() for batch in loader)
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]


@one_reader
def test_a_function_says_what_comes_in_its_place(where: dict[str, Any]) -> None:
    known: list[BadSample] = []

    def instead(bad: BadSample) -> int:
        known.append(bad)
        assert isinstance(bad.error, OSError)
        if bad.sample == 4:
            raise SkipSample("not even that")
        return -(bad.sample or 0)

    stages = [Stage(lambda value: value + 100)]
    loader = StageLoader(Broken(20), batch_size=20, stages=stages, on_error=instead, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        (batch,) = listed(loader)
    expected = [100, 101, 102, -3, *range(105, 117), -17, 118, 119]
    assert batch == expected
    assert [bad.sample for bad in known] == [3, 4, 17]
    assert all(one.error is None for one in loader.stats().bad)


@one_reader
def test_what_the_function_raises_comes_in_the_place_of_the_batch(where: dict[str, Any]) -> None:
    def worse(bad: BadSample) -> Any:
        raise KeyError(f"no way to mend {bad.sample}") from bad.error

    loader = StageLoader(Broken(12, bad=(5,)), batch_size=4, on_error=worse, **where)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no way to mend 5"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[8, 9, 10, 11]]
    loader.close()


# Stages and filters -----------------------------------------------------------------------------------------------


def odd(value: int) -> int:
    if value % 5 == 2:
        raise ValueError("a two")
    return 10 * value


async def awaited(value: int) -> int:
    if value % 5 == 3:
        raise ValueError("a three")
    return value + 1


@one_reader
def test_a_stage_that_fails_is_named_and_counted(where: dict[str, Any]) -> None:
    stages = [Stage(awaited), Stage(odd)]
    loader = StageLoader(Broken(10, bad=(0,)), batch_size=3, stages=stages, on_error="skip", **where)
    with pytest.warns(UserWarning, match="5 bad samples"):
        assert listed(loader) == [[30, 50, 60], [80, 100]]
    stats = loader.stats()
    assert [(one.sample, one.stage) for one in stats.bad] == [
        *((0, "fetch"), (1, "odd"), (3, "awaited"), (6, "odd"), (8, "awaited")),
    ]
    counts = {
        stage.name: (stage.samples, stage.errors)
        for stage in stats.stages
        if stage.name not in ("collate", "state_dict")
    }
    if where["num_workers"]:
        assert counts == {"fetch": (10, 1), "awaited": (9, 2), "odd": (7, 2)}
    else:  # of what the caller's thread reads, what came out is known
        assert counts == {"fetch": (10, 5)}


@one_reader
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_what_a_stage_filters_is_no_error_and_leaves_its_batch_short(where: dict[str, Any], batch_size: Any) -> None:
    def wanted(value: int) -> int:
        if value in (1, 4, 5):
            raise SkipSample("too short")
        return value

    loader = StageLoader(Broken(8, bad=()), batch_size=batch_size, stages=[Stage(wanted)], **where)
    expected = {2: [[0], [2, 3], [6, 7]], 1: [[0], [2], [3], [6], [7]], None: [0, 2, 3, 6, 7]}[batch_size]
    assert (list(loader) if batch_size is None else [batch.tolist() for batch in loader]) == expected
    stats = loader.stats()
    assert (stats.bad_samples, stats.filtered_samples, stats.samples) == (0, 3, 5)
    assert all(stage.errors == 0 for stage in stats.stages)
    assert {one.message for one in stats.bad} == {"too short"}
    loader.close()


@one_reader
def test_an_iterator_of_a_class_may_filter_too(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(8, bad=(), filtered=(1, 4, 5)), batch_size=2, **where)
    assert listed(loader) == [[0], [2, 3], [6, 7]]
    loader = StageLoader(Broken(8, bad=(), filtered=(1, 4, 5)), batch_size=2, on_error="skip", **where)
    assert listed(loader) == [[0, 2], [3, 6], [7]]
    assert loader.stats().filtered_samples == 3


@one_reader
def test_if_everything_is_filtered_no_batch_comes(where: dict[str, Any]) -> None:
    for on_error in ("raise", "skip"):
        loader = StageLoader(Broken(8, bad=(), filtered=range(8)), batch_size=3, on_error=on_error, **where)
        assert listed(loader) == []
        assert loader.stats().filtered_samples == 8


@one_reader
def test_a_stop_iteration_of_a_stage_ends_no_epoch(where: dict[str, Any]) -> None:
    def stops(value: int) -> int:
        if value == 1:
            raise StopIteration
        return value

    loader = StageLoader(Broken(6, bad=()), batch_size=2, stages=[Stage(stops)], **where)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="StopIteration was raised in stage 'stops'"):
        next(batches)
    assert [batch.tolist() for batch in batches] == [[2, 3], [4, 5]]
    loader.close()
    loader = StageLoader(Broken(6, bad=()), batch_size=2, stages=[Stage(stops)], on_error="skip", **where)
    with pytest.warns(UserWarning, match="stage 'stops': StopIteration"):
        assert listed(loader) == [[0, 2], [3, 4], [5]]


# Draws ------------------------------------------------------------------------------------------------------------


class Drawn(Numbers):
    def __next__(self) -> Any:
        return super().__next__() + float(torch.rand(()))


class Drawing(Broken):
    """A sample is what it draws."""

    kind = Drawn


def drawn(value: float) -> float:
    return value + 100 * float(torch.rand(()))


def drawing(samples: list[float]) -> list[float]:
    return [*samples, float(torch.rand(()))]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_nothing_changes_where_no_sample_is_bad(num_workers: int) -> None:
    found: list[Any] = []
    for on_error in ("raise", "skip", "replace", lambda bad: -1):
        arguments: dict[str, Any] = {"seed": 5, "on_error": on_error, "collate_fn": drawing, "stages": [Stage(drawn)]}
        with StageLoader(Drawing(22, bad=()), batch_size=4, num_workers=num_workers, **arguments) as loader:
            found.append([list(loader), list(loader)])
    assert all(one == found[0] for one in found)


def test_inline_gives_what_one_lane_gives() -> None:
    found: list[Any] = []
    for num_workers in (0, 1):
        arguments: dict[str, Any] = {"seed": 5, "on_error": "skip", "collate_fn": drawing, "stages": [Stage(drawn)]}
        with StageLoader(Drawing(22), batch_size=4, num_workers=num_workers, **arguments) as loader:
            with pytest.warns(UserWarning, match="3 bad samples"):
                found.append(list(loader))
            found.append([(one.sample, one.stage, one.file) for one in loader.stats().bad])
    assert found[:2] == found[2:]
