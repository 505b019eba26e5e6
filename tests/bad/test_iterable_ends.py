"""Bad samples of iterable datasets: generators, rows of errors without an end, bounds, ranks and processes."""

import threading
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.bad.test_iterable import Broken, Numbers, listed, one_reader
from torchstage import SkipSample, Stage, StageLoader, TooManyBadSamples


class Made(IterableDataset[Any]):
    """Reads what a function makes."""

    def __init__(self, make: Any) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def numbers_until(bad: int) -> Iterator[int]:
    for number in range(10):
        if number == bad:
            raise OSError(f"truncated: {number}")
        yield number


# Generators -------------------------------------------------------------------------------------------------------


@one_reader
@pytest.mark.parametrize("on_error", ["skip", "replace", lambda bad: -1])
def test_the_error_of_a_generator_is_raised_as_nothing_comes_after_it(where: dict[str, Any], on_error: Any) -> None:
    loader = StageLoader(Made(lambda: numbers_until(5)), batch_size=2, on_error=on_error, **where)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="truncated: 5") as caught:
        next(batches)
    assert any("a generator is over once it raised an error" in note for note in caught.value.__notes__)
    assert list(batches) == []
    loader.close()


@one_reader
def test_a_data_pipe_is_a_generator_inside(where: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe: Any = IterableWrapper(range(6), deepcopy=False).map(fails_at_three)
    loader = StageLoader(pipe, batch_size=2, on_error="skip", **where)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(ValueError, match="a three") as caught:
        next(batches)
    assert any("a generator is over" in note for note in caught.value.__notes__)
    loader.close()


def fails_at_three(value: int) -> int:
    if value == 3:
        raise ValueError("a three")
    return value


@one_reader
def test_a_stage_may_fail_on_what_a_generator_yields(where: dict[str, Any]) -> None:
    loader = StageLoader(
        Made(lambda: numbers_until(99)), batch_size=4, stages=[Stage(fails_at_three)], on_error="skip", **where
    )
    with pytest.warns(UserWarning, match="1 bad samples.*stage 'fails_at_three'") as told:
        assert listed(loader) == [[0, 1, 2, 4], [5, 6, 7, 8], [9]]
    assert "ended right after" not in str(told[0].message)


@one_reader
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_generator_that_raises_skip_sample_is_told_to_continue_instead(where: dict[str, Any], on_error: Any) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise SkipSample("no")

    loader = StageLoader(Made(numbers), batch_size=1, on_error=on_error, **where)
    batches = iter(loader)
    assert next(batches).tolist() == [1]
    with pytest.raises(SkipSample) as caught:
        next(batches)
    assert any("Use 'continue' inside it" in note for note in caught.value.__notes__)
    loader.close()


@one_reader
def test_of_a_generator_behind_an_iterator_it_is_said_that_samples_may_be_lost(where: dict[str, Any]) -> None:
    """Nobody can see that ``map`` reads a generator: it ends right after the error, and that is told."""
    loader = StageLoader(Made(lambda: map(int, numbers_until(5))), batch_size=2, on_error="skip", **where)
    with pytest.warns(UserWarning, match=r"truncated: 5\. The dataset's iterator ended right after .* did not come"):
        assert listed(loader) == [[0, 1], [2, 3], [4]]


# Rows of errors without an end ------------------------------------------------------------------------------------


class Endless(Numbers):
    """Raises again and again, for ever."""

    def __init__(self, num_good: int) -> None:
        super().__init__(range(num_good), bad=())

    def __next__(self) -> int:
        try:
            return super().__next__()
        except StopIteration:
            raise ConnectionError("gone") from None


@one_reader
@pytest.mark.parametrize("batch_size", [1, 2, None])
def test_a_row_of_errors_without_an_end_is_an_error(where: dict[str, Any], batch_size: Any) -> None:
    loader = StageLoader(Made(lambda: Endless(2)), batch_size=batch_size, on_error="skip", **where)
    batches = iter(loader)
    for _ in range(1 if batch_size == 2 else 2):
        next(batches)
    with pytest.raises(TooManyBadSamples, match=r"1000 samples of the dataset failed one after another.*gone"):
        next(batches)
    assert loader.stats().bad_samples == 1000
    loader.close()


@one_reader
def test_a_long_row_of_filtered_samples_is_none(where: dict[str, Any]) -> None:
    def rare(value: int) -> int:
        if value % 1500:
            raise SkipSample
        return value

    loader = StageLoader(Broken(3001, bad=()), batch_size=2, stages=[Stage(rare)], on_error="skip", **where)
    found = listed(loader)
    assert [number for batch in found for number in batch] == [0, 1500, 3000]
    assert loader.stats().filtered_samples == 2998


def test_a_lane_reads_no_further_once_its_loader_is_closed() -> None:
    is_reading = threading.Event()

    def never(value: int) -> int:
        is_reading.set()
        raise SkipSample

    loader = StageLoader(
        Broken(10**9, bad=()),
        batch_size=2,
        num_workers=1,
        stages=[Stage(never)],
        on_error="skip",
        timeout=0.2,
        isolation="shared",
    )
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="timed out"):
        next(batches)
    assert is_reading.is_set()
    loader.close()  # the fixture looks whether the thread is gone


# Bounds -----------------------------------------------------------------------------------------------------------


@one_reader
def test_more_than_may_fail_is_an_error_that_lists_them(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=5, on_error="skip", max_bad_samples=2, **where)
    seen: list[Any] = []
    batches = iter(loader)
    with pytest.raises(TooManyBadSamples, match=r"3 bad samples .*max_bad_samples=2.*sample 17") as caught:
        seen.extend(batch.tolist() for batch in batches)
    assert seen == [[0, 1, 2, 5, 6], [7, 8, 9, 10, 11], [12, 13, 14, 15, 16]]
    loader.close()
    assert [one.sample for one in caught.value.bad] == [3, 4, 17]


@one_reader
def test_of_a_share_what_was_read_so_far_counts(where: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"batch_size": 5, "on_error": "skip", **where}
    loader = StageLoader(Broken(20), max_bad_samples=0.3, **arguments)  # 2 of 7, then 3 of 20
    with pytest.warns(UserWarning, match="3 bad samples"):
        listed(loader)
    loader = StageLoader(Broken(20), max_bad_samples=0.25, **arguments)
    with loader, pytest.raises(TooManyBadSamples, match=r"max_bad_samples=0.25, of 7 so far"):
        next(iter(loader))


@one_reader
def test_if_every_sample_fails_that_is_an_error(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(6, bad=range(6)), batch_size=2, on_error="skip", **where)
    batches = iter(loader)
    with pytest.raises(TooManyBadSamples, match="all 6 samples of this epoch failed"):
        next(batches)
    assert list(batches) == []
    assert loader.state_dict()["is_boundary"]
    loader.close()


@one_reader
def test_the_next_epoch_counts_anew(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=4, on_error="skip", max_bad_samples=3, **where)
    for _ in range(2):
        with pytest.warns(UserWarning, match="3 bad samples") as told:
            assert sum(len(batch) for batch in loader) == 17
        assert len([one for one in told if "bad samples" in str(one.message)]) == 1
    assert loader.stats().bad_samples == 6
    loader.close()


def test_of_a_lane_is_told_which_it_was() -> None:
    loader = StageLoader(Broken(40, bad=(12, 15)), batch_size=4, num_workers=2, on_error="skip")
    with pytest.warns(UserWarning, match=r"sample 2 of lane 1 \(shard-1.tar\), stage 'fetch': OSError.*truncated: 12"):
        listed(loader)
    stats = loader.stats()
    assert [(one.lane, one.sample, one.index, one.file) for one in stats.bad] == [
        (1, 2, None, "shard-1.tar"),
        (1, 5, None, "shard-1.tar"),
    ]
    assert "sample 5 of lane 1" in str(stats)


# Ranks and processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a loader looks: two processes train together."""
    distributed: Any = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2
    )
    monkeypatch.setattr("torchstage.loader_iterator.torch", types.SimpleNamespace(distributed=distributed))


@one_reader
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.usefixtures("two_ranks")
def test_on_several_ranks_the_number_of_batches_stays(where: dict[str, Any], drop_last: bool) -> None:
    for on_error in ("skip", "replace"):
        loader = StageLoader(Broken(22), batch_size=4, on_error=on_error, drop_last=drop_last, **where)
        with pytest.warns(UserWarning, match="3 bad samples"):
            found = listed(loader)
        whole = [[0, 1, 2], [5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 18, 19], [20, 21]]
        assert found == (whole[:5] if drop_last else whole)


@one_reader
@pytest.mark.usefixtures("two_ranks")
def test_on_several_ranks_a_batch_of_which_nothing_is_left_is_an_error(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(6, bad=(2, 3)), batch_size=2, on_error="skip", **where)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(TooManyBadSamples, match="no sample of a batch is left, and other ranks wait"):
        next(batches)
    assert next(batches).tolist() == [4, 5]
    loader.close()


@pytest.mark.parametrize("on_error", ["skip", lambda bad: -1])
def test_worker_processes_of_torchs_own_are_refused(on_error: Any) -> None:
    with pytest.raises(ValueError, match=r"on_error is .* worker processes .*worker_method='thread'"):
        StageLoader(Broken(8), num_workers=2, worker_method="multiprocessing", on_error=on_error)
    loader = StageLoader(Broken(8), num_workers=2, on_error=on_error)
    loader.worker_method = "multiprocessing"
    with pytest.raises(ValueError, match="worker_method='thread'"):
        iter(loader)


def not_two(value: int) -> int:
    if value == 2:
        raise SkipSample("a two")
    return value


def test_in_worker_processes_skip_sample_is_raised_and_says_what_to_do() -> None:
    loader = StageLoader(
        Broken(8, bad=()), batch_size=4, num_workers=1, worker_method="multiprocessing", stages=[Stage(not_two)]
    )
    batches = iter(loader)
    with loader, pytest.raises(SkipSample, match="a two") as caught:
        next(batches)
    assert any("worker_method='thread'" in note for note in caught.value.__notes__)


def test_a_dataset_that_cannot_be_copied_for_lanes_is_refused() -> None:
    lock = threading.Lock()

    class Locked(Broken):
        def __init__(self) -> None:
            super().__init__(8)
            self.numbers = (number for number in range(8))
            self.lock = lock

    loader = StageLoader(Locked(), num_workers=2, on_error="skip")
    with pytest.raises(ValueError, match="cannot be copied for lanes"):
        iter(loader)


def test_that_nothing_is_left_of_a_batch_is_not_seen_as_its_end() -> None:
    """Of two lanes one has nothing but filtered samples in the middle: the other's batches come in their turns."""

    def wanted(value: int) -> torch.Tensor:
        if 2 <= value < 6:
            raise SkipSample
        return torch.tensor(value)

    loader = StageLoader(Broken(20, bad=()), batch_size=2, num_workers=2, stages=[Stage(wanted)])
    assert listed(loader) == [[0, 1], [10, 11], [12, 13], [14, 15], [6, 7], [16, 17], [8, 9], [18, 19]]
