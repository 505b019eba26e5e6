"""Bad samples: what is handed out where some samples fail, everywhere that a sample can be made."""

from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from torchstage import BadSample, SkipSample, Stage, StageLoader, TooManyBadSamples

BAD = (3, 4, 17)
EVERYWHERE: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 0, "seed": 5},
    {"num_workers": 1},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 4, "worker_method": "thread"},
    {"num_workers": 2, "worker_method": "multiprocessing"},
]
NAMES = ["inline", "inline with a seed", "1 thread", "2 threads", "4 threads", "processes"]
everywhere = pytest.mark.parametrize("where", EVERYWHERE, ids=NAMES)


class Broken(Dataset[Any]):
    """Some of its samples cannot be read, and some are not wanted."""

    def __init__(self, length: int, bad: tuple[int, ...] = BAD, filtered: tuple[int, ...] = ()) -> None:
        self.samples = [(f"file-{number}.png", 0) for number in range(length)]
        self.bad, self.filtered = bad, filtered

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise OSError(f"truncated: {index}")
        if index in self.filtered:
            raise SkipSample("too short")
        return index


def listed(loader: StageLoader[Any]) -> list[list[int]]:
    with loader:
        return [batch.tolist() for batch in loader]


def in_one(batches: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def batches_of(indices: list[int], size: int) -> list[list[int]]:
    return [indices[begin : begin + size] for begin in range(0, len(indices), size)]


@everywhere
def test_an_error_is_raised_in_its_place_by_default(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(8, bad=(5,)), batch_size=2, **where)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="truncated: 5"):
        next(batches)
    assert next(batches).tolist() == [6, 7]
    loader.close()


@everywhere
@pytest.mark.parametrize("batch_size", [1, 4, 7, 20])
def test_skipped_samples_are_made_up_for_by_those_after_them(where: dict[str, Any], batch_size: int) -> None:
    good = [index for index in range(20) if index not in BAD]
    loader = StageLoader(Broken(20), batch_size=batch_size, on_error="skip", **where)
    with pytest.warns(UserWarning, match="3 bad samples in this epoch"):
        assert listed(loader) == batches_of(good, batch_size)
    loader.close()


@everywhere
def test_a_short_rest_is_dropped_where_that_is_asked_for(where: dict[str, Any]) -> None:
    good = [index for index in range(21) if index not in BAD]
    loader = StageLoader(Broken(21), batch_size=4, on_error="skip", drop_last=True, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        assert listed(loader) == batches_of(good, 4)[:4]
    loader.close()


@everywhere
def test_each_is_told_of_with_its_index_file_and_error(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20, filtered=(9,)), batch_size=4, on_error="skip", **where)
    with pytest.warns(UserWarning, match=r"index 3 \(file-3.png\), stage 'fetch': OSError: truncated: 3"):
        listed(loader)
    stats = loader.stats()
    assert (stats.bad_samples, stats.filtered_samples, stats.samples) == (3, 1, 16)
    bad = [one for one in stats.bad if not one.is_filtered]
    assert [(one.index, one.file, one.stage, one.kind, one.message) for one in bad] == [
        (index, f"file-{index}.png", "fetch", "OSError", f"truncated: {index}") for index in BAD
    ]
    (filtered,) = (one for one in stats.bad if one.is_filtered)
    assert (filtered.index, filtered.kind, filtered.message) == (9, "SkipSample", "too short")
    assert next(stage for stage in stats.stages if stage.name == "fetch").errors == 3
    assert "3 bad samples, 1 left out by SkipSample" in str(stats)
    loader.close()


@everywhere
def test_what_is_filtered_is_no_error_and_leaves_its_batch_short(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(8, bad=(), filtered=(1, 4, 5)), batch_size=2, **where)
    assert listed(loader) == [[0], [2, 3], [6, 7]]
    stats = loader.stats()
    assert (stats.bad_samples, stats.filtered_samples) == (0, 3)
    assert next(stage for stage in stats.stages if stage.name == "fetch").errors == 0
    loader.close()


@everywhere
def test_another_sample_comes_in_the_place_of_a_bad_one(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20, bad=(3, 4, 19), filtered=(9,)), batch_size=4, on_error="replace", **where)
    with pytest.warns(UserWarning, match="index 5 in its place"):
        batches = listed(loader)
    assert in_one(batches) == [0, 1, 2, 5, 5, 5, 6, 7, 8, 10, 10, 11, 12, 13, 14, 15, 16, 17, 18, 0]
    assert all(len(batch) == 4 for batch in batches)
    loader.close()


def minus_its_index(bad: BadSample) -> int:
    if bad.index == 4:
        raise SkipSample("not even that")
    return -bad.index


@everywhere
def test_a_function_says_what_comes_in_its_place(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=20, on_error=minus_its_index, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        (batch,) = listed(loader)
    assert batch == [0, 1, 2, -3, *range(5, 17), -17, 18, 19]
    loader.close()


def worse(bad: BadSample) -> Any:
    raise KeyError(f"no way to mend {bad.index}") from bad.error


@everywhere
def test_what_the_function_raises_comes_in_the_place_of_the_batch(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(12, bad=(5,)), batch_size=4, on_error=worse, **where)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="no way to mend 5") as caught:
        next(batches)
    assert any("dataset index 5" in note for note in caught.value.__notes__)
    assert next(batches).tolist() == [8, 9, 10, 11]
    loader.close()


@everywhere
def test_more_than_may_fail_is_an_error_that_lists_them(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=5, on_error="skip", max_bad_samples=2, **where)
    seen: list[int] = []
    with pytest.raises(TooManyBadSamples, match=r"3 bad samples .*max_bad_samples=2.*index 17") as caught:
        seen.extend(chain.from_iterable(batch.tolist() for batch in loader))
    assert seen == [index for index in range(17) if index not in BAD]
    assert [one.index for one in caught.value.bad] == list(BAD)
    loader.close()


@everywhere
def test_of_a_share_the_whole_epoch_counts(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=5, on_error="skip", max_bad_samples=0.15, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        listed(loader)
    loader = StageLoader(Broken(20), batch_size=5, on_error="skip", max_bad_samples=0.14, **where)
    with pytest.raises(TooManyBadSamples, match="of 20 samples"):
        listed(loader)


@everywhere
def test_if_every_sample_fails_that_is_an_error(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(6, bad=tuple(range(6))), batch_size=2, on_error="skip", **where)
    with pytest.raises(TooManyBadSamples, match="all 6 samples of this epoch failed"):
        listed(loader)


@everywhere
def test_a_batch_sampler_of_the_users_own_keeps_its_batches(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_sampler=[[0, 3], [3, 4], [1, 2, 17]], on_error="skip", **where)
    with pytest.warns(UserWarning, match="4 bad samples"):
        assert listed(loader) == [[0], [1, 2]]


@everywhere
def test_without_batches_a_bad_sample_is_left_out(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(6, bad=(0, 3)), batch_size=None, on_error="skip", **where)
    with loader, pytest.warns(UserWarning, match="2 bad samples"):
        assert list(loader) == [1, 2, 4, 5]


def odd(value: int) -> int:
    if value % 5 == 2:
        raise ValueError("a two")
    return 10 * value


async def awaited(value: int) -> int:
    if value % 5 == 3:
        raise ValueError("a three")
    return value + 1


@everywhere
@pytest.mark.parametrize("limits", [{}, {"concurrency": 2}], ids=["at home", "apart"])
def test_a_stage_that_fails_is_named(where: dict[str, Any], limits: dict[str, Any]) -> None:
    stages = [Stage(awaited), Stage(odd, **limits)]
    loader = StageLoader(Broken(10, bad=(0,)), batch_size=3, stages=stages, on_error="skip", **where)
    with pytest.warns(UserWarning, match="5 bad samples"):
        assert listed(loader) == [[30, 50, 60], [80, 100]]
    bad = [(one.index, one.stage) for one in loader.stats().bad]
    assert bad == [(0, "fetch"), (1, "odd"), (3, "awaited"), (6, "odd"), (8, "awaited")]


class Bulky(Broken):
    """Gives all samples of a batch at once."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@everywhere
def test_of_samples_that_come_at_once_those_that_fail_are_told_apart(where: dict[str, Any]) -> None:
    loader = StageLoader(Bulky(10), batch_size=4, on_error="skip", **where)
    with pytest.warns(UserWarning, match="2 bad samples .*index 3 .*index 4 "):
        assert listed(loader) == [[0, 1, 2], [5, 6, 7], [8, 9]]


@everywhere
def test_stages_after_samples_that_come_at_once_are_given_the_good_ones(where: dict[str, Any]) -> None:
    loader = StageLoader(Bulky(10), batch_size=4, stages=[Stage(odd)], on_error="skip", **where)
    with pytest.warns(UserWarning, match="4 bad samples"):
        assert listed(loader) == [[0, 10], [50, 60], [80, 90]]


@everywhere
def test_out_of_order_batches_stay_short(where: dict[str, Any]) -> None:
    loader = StageLoader(Broken(20), batch_size=4, on_error="skip", in_order=False, **where)
    with pytest.warns(UserWarning, match="3 bad samples"):
        batches = listed(loader)
    expected = [[0, 1, 2], [5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 18, 19]]
    assert sorted(batches) == expected if where["num_workers"] else in_one(batches) == in_one(expected)


class Drawing(Broken):
    """A sample is what it draws."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index), torch.rand(())


def drawing(samples: list[Any]) -> list[float]:
    return [number + float(value) for number, value in samples] + [float(torch.rand(()))]


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_the_draws_are_the_same_everywhere(on_error: Any) -> None:
    found: list[Any] = []
    for where in EVERYWHERE:
        arguments: dict[str, Any] = {"seed": 5, "on_error": on_error, "collate_fn": drawing, **where}
        loader = StageLoader(Drawing(20), batch_size=4, **arguments)
        with loader, pytest.warns(UserWarning, match="3 bad samples"):
            found.append(list(loader))
    assert all(one == found[0] for one in found)
    if on_error == "replace":  # a substitute is not the same sample twice
        first = found[0][0] + found[0][1]
        assert len(set(first)) == len(first)


@everywhere
def test_an_index_that_comes_twice_is_replaced_by_two_samples(where: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"seed": 5, "on_error": "replace", "collate_fn": drawing, **where}
    loader = StageLoader(Drawing(20), batch_size=4, sampler=[3, 0, 3, 1], **arguments)
    with loader, pytest.warns(UserWarning, match="2 bad samples"):
        ((first, _, second, *_),) = list(loader)
    assert int(first) == int(second) == 5
    assert first != second


@everywhere
def test_nothing_changes_where_no_sample_is_bad(where: dict[str, Any]) -> None:
    found: list[Any] = []
    for on_error in ("raise", "skip", "replace"):
        arguments: dict[str, Any] = {"seed": 5, "on_error": on_error, "collate_fn": drawing, **where}
        with StageLoader(Drawing(22, bad=()), batch_size=4, **arguments) as one:
            found.append([list(one), list(one)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("arguments", [{"on_error": "ignore"}, {"max_bad_samples": -1}, {"max_bad_samples": 1.5}])
def test_what_means_nothing_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        StageLoader(Broken(4), **arguments)
