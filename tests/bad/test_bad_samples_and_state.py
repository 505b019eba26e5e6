"""Bad samples and state: a run that was cut anywhere and goes on hands out what the whole one does."""

import json
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, RandomSampler

from tests.bad.test_bad_samples import Broken, Drawing, everywhere, listed
from torchstage import BadSample, SkipSample, StageLoader, TooManyBadSamples
from torchstage.samplers import ElasticSampler

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. [0-9]+ bad samples:UserWarning")


def made_of(where: dict[str, Any], **arguments: Any) -> StageLoader[Any]:
    sampler = RandomSampler(range(23), generator=torch.Generator().manual_seed(3))
    defaults: dict[str, Any] = {"batch_size": 4, "sampler": sampler, "on_error": "skip", "seed": 5}
    return StageLoader(Broken(23, filtered=(8,)), **{**defaults, **where, **arguments})


def made_instead(bad: BadSample) -> int:
    return -1


@everywhere
@pytest.mark.parametrize("drop_last", [False, True])
def test_cut_after_any_batch_it_goes_on_with_the_next(where: dict[str, Any], drop_last: bool) -> None:
    with made_of(where, drop_last=drop_last) as loader:
        whole = [batch.tolist() for batch in loader]
    assert all(len(batch) == 4 for batch in whole[:-1])
    for number in range(len(whole)):
        with made_of(where, drop_last=drop_last) as loader:
            batches = iter(loader)
            for _ in range(number):
                next(batches)
            state = json.loads(json.dumps(loader.state_dict()))
        with made_of(where, drop_last=drop_last) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert [batch.tolist() for batch in loader] == whole[number:]


def test_what_threads_began_processes_go_on_with_and_back() -> None:
    threads: dict[str, Any] = {"num_workers": 2, "worker_method": "thread"}
    processes: dict[str, Any] = {"num_workers": 2, "worker_method": "multiprocessing"}
    with made_of(threads) as loader:
        whole = [batch.tolist() for batch in loader]
    for first, second in ((threads, processes), (processes, threads), (threads, {"num_workers": 0})):
        with made_of(first) as loader:
            batches = iter(loader)
            found = [next(batches).tolist() for _ in range(3)]
            state = loader.state_dict()
        with made_of(second) as loader:
            loader.load_state_dict(state)
            assert found + [batch.tolist() for batch in loader] == whole


@everywhere
def test_the_count_of_bad_samples_goes_on_too(where: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "on_error": "skip", "max_bad_samples": 2, **where}
    with StageLoader(Broken(20), **arguments) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 5], [6, 7, 8, 9]]
        state = loader.state_dict()
    assert state["bad_samples"]["bad"] == 2
    assert [one["index"] for one in state["bad_samples"]["named"]] == [3, 4]
    with StageLoader(Broken(20), **arguments) as loader:
        loader.load_state_dict(state)
        seen: list[int] = []
        with pytest.raises(TooManyBadSamples, match=r"3 bad samples .*index 3 .*index 4 .*index 17 ") as caught:
            seen.extend(index for batch in loader for index in batch.tolist())
        assert seen == [10, 11, 12, 13]
        assert len(caught.value.bad) == 3


@everywhere
@pytest.mark.parametrize("in_order", [True, False])
def test_a_sample_that_a_function_made_counts_in_its_own_batch(where: dict[str, Any], in_order: bool) -> None:
    """Also where it is the last of its batch: samples 3 and 4 are bad, and 3 is."""
    arguments: dict[str, Any] = {"batch_size": 4, "on_error": made_instead, "in_order": in_order, **where}
    with StageLoader(Broken(8), max_bad_samples=0, **arguments) as loader, pytest.raises(TooManyBadSamples):
        next(iter(loader))
    with StageLoader(Broken(8), **arguments) as loader:
        next(iter(loader))
        assert loader.state_dict()["bad_samples"]["bad"] == loader.stats().bad_samples == 1


@everywhere
def test_an_epoch_with_bad_samples_ends_as_others_do(where: dict[str, Any]) -> None:
    with StageLoader(Broken(20, bad=(18, 19)), batch_size=4, on_error="skip", **where) as loader:
        first = [batch.tolist() for batch in loader]
        state = loader.state_dict()
        assert state["position"] == 0
        assert "bad_samples" not in state
        assert [batch.tolist() for batch in loader] == first


@everywhere
def test_an_elastic_sampler_counts_the_samples_that_were_passed(where: dict[str, Any]) -> None:
    def loader_of() -> StageLoader[Any]:
        data = Broken(20)
        sampler = ElasticSampler(data, num_replicas=1, rank=0, shuffle=True, seed=2)
        return StageLoader(data, 4, sampler=sampler, on_error="skip", **where)

    with loader_of() as loader:
        whole = [batch.tolist() for batch in loader]
    for number in range(1, len(whole)):
        with loader_of() as loader:
            batches = iter(loader)
            for _ in range(number):
                next(batches)
            state = loader.state_dict()
        with loader_of() as loader:
            loader.load_state_dict(state)
            assert [batch.tolist() for batch in loader] == whole[number:]


class Moody(Dataset[int]):
    """Which samples fail, and how, is drawn by hypothesis."""

    def __init__(self, moods: list[int]) -> None:
        self.moods = moods

    def __len__(self) -> int:
        return len(self.moods)

    def __getitem__(self, index: int) -> int:
        mood = self.moods[index]
        if mood == 1:
            raise ValueError(str(index))
        if mood == 2:
            raise SkipSample(str(index))
        return index


def by_hand(moods: list[int], order: list[int], batch_size: int, drop_last: bool) -> list[list[int]]:
    good = [index for index in order if moods[index] == 0]
    batches = [good[begin : begin + batch_size] for begin in range(0, len(good), batch_size)]
    return [batch for batch in batches if len(batch) == batch_size or not drop_last]


@settings(max_examples=60, deadline=None)
@given(
    moods=st.lists(st.sampled_from([0, 0, 0, 0, 1, 2]), min_size=1, max_size=40).filter(lambda moods: 0 in moods),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    num_workers=st.integers(0, 3),
    cut=st.integers(0, 12),
)
def test_whatever_fails_the_rest_comes_in_full_batches(
    moods: list[int], batch_size: int, drop_last: bool, num_workers: int, cut: int
) -> None:
    def loader_of() -> StageLoader[Any]:
        arguments: dict[str, Any] = {"worker_method": "thread"} if num_workers else {}
        return StageLoader(
            Moody(moods), batch_size, num_workers=num_workers, drop_last=drop_last, on_error="skip", **arguments
        )

    expected = by_hand(moods, list(range(len(moods))), batch_size, drop_last)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found: list[list[int]] = []
        with loader_of() as loader:
            for batch in loader:
                if len(found) == cut:
                    break
                found.append(batch.tolist())
                state = loader.state_dict()
        if not found or len(found) == len(expected):  # there is no state, or it may be that of the next epoch
            assert found == expected[:cut]
            return
        with loader_of() as loader:
            loader.load_state_dict(state)
            assert found + [batch.tolist() for batch in loader] == expected


@everywhere
def test_a_broken_loop_and_a_new_one_begin_anew(where: dict[str, Any]) -> None:
    with StageLoader(Drawing(20), 4, on_error="skip", collate_fn=len, **{"seed": 1, **where}) as loader:
        for _ in loader:
            break
        assert list(loader) == [4, 4, 4, 4, 1]
    assert listed(StageLoader(Broken(3, bad=(1,)), 2, on_error="skip", **where)) == [[0, 2]]
