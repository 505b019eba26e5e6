"""What a state says at each moment of an epoch, and what a loader does with it."""

import copy
import gc
import json
import pickle
import threading
import weakref
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler

from torchstage import StageLoader

from . import custom
from .runs import Drawing, Plain, plain, reseed, through_json

every_num_workers = pytest.mark.parametrize("num_workers", [0, 2])


def new(num_workers: int = 2, length: int = 10, **arguments: Any) -> StageLoader[Any]:
    given = {"batch_size": 3, "shuffle": True, "seed": 4, "generator": torch.Generator().manual_seed(1), **arguments}
    if "sampler" in given:
        del given["shuffle"]
    return StageLoader(given.pop("dataset", None) or Plain(length), num_workers=num_workers, **given)


def rest_of(loader: StageLoader[Any]) -> list[Any]:
    return [plain(batch) for batch in loader]


def resumed(state: Any, num_workers: int = 2, **arguments: Any) -> StageLoader[Any]:
    loader = new(num_workers, **arguments)
    loader.load_state_dict(through_json(state))
    return loader


@every_num_workers
def test_before_the_first_epoch_it_is_the_start_of_the_first(num_workers: int) -> None:
    loader = new(num_workers)
    state = loader.state_dict()
    expected = [rest_of(loader), rest_of(loader)]
    other = resumed(state, num_workers)
    assert [rest_of(other), rest_of(other)] == expected


@every_num_workers
def test_an_iterator_that_was_not_asked_for_a_batch_is_at_its_start(num_workers: int) -> None:
    loader = new(num_workers)
    iterator = iter(loader)
    state = loader.state_dict()
    assert state["position"] == 0
    assert rest_of(resumed(state, num_workers)) == [plain(batch) for batch in iterator]


@pytest.mark.parametrize("num_workers", [0, 2, "kept"])
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("sampler", ["at once", "own", "torch"])
@pytest.mark.parametrize("seed", [3, None])
def test_the_epochs_after_an_iterator_that_was_not_used_are_the_same(
    num_workers: Any, batch_size: int | None, sampler: str, seed: int | None
) -> None:
    def make() -> StageLoader[Any]:
        of = {"at once": custom.AtOnce("torch"), "own": custom.Own("torch", at_once=True), "torch": None}[sampler]
        arguments: dict[str, Any] = {"shuffle": True} if of is None else {"sampler": of}
        arguments |= {"num_workers": 2, "persistent_workers": True} if num_workers == "kept" else {}
        dataset = Plain(11) if num_workers == 0 and seed is None else Drawing(11)
        return StageLoader(dataset, batch_size, seed=seed, **{"num_workers": num_workers, **arguments})

    for num_epochs in (0, 1, 2):
        reseed(1)
        with make() as loader:
            for _ in range(num_epochs):
                list(loader)
            iterator = iter(loader)
            state = loader.state_dict()
            expected = [[plain(batch) for batch in iterator], rest_of(loader), rest_of(loader)]
        reseed(2)
        with make() as other:
            other.load_state_dict(through_json(state))
            assert [rest_of(other) for _ in expected] == expected, num_epochs


@every_num_workers
def test_it_counts_what_was_handed_out_not_what_was_made(num_workers: int) -> None:
    dataset = Watched(200)
    loader = new(num_workers, dataset=dataset)
    iterator = iter(loader)
    positions = []
    for _ in range(5):
        next(iterator)
        positions.append(loader.state_dict()["position"])
    assert num_workers == 0 or dataset.has_more_than_15.wait(20)
    assert [*positions, loader.state_dict()["position"]] == [3, 6, 9, 12, 15, 15]


class Watched(Plain):
    """Tells when a sample beyond the fifth batch was asked for."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.has_more_than_15 = threading.Event()

    def __getitem__(self, index: Any) -> torch.Tensor:
        sample = super().__getitem__(index)
        if len(self.asked) > 15:
            self.has_more_than_15.set()
        return sample


@every_num_workers
def test_a_finished_epoch_is_the_start_of_the_next(num_workers: int) -> None:
    loader = new(num_workers)
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    before_the_end = loader.state_dict()
    assert next(iterator, None) is None
    after_the_end = loader.state_dict()
    assert before_the_end["position"] == after_the_end["position"] == 0
    assert before_the_end == after_the_end
    del iterator
    assert loader.state_dict() == after_the_end
    expected = rest_of(loader)
    assert len(expected) == 4
    assert rest_of(resumed(before_the_end, num_workers)) == expected


@every_num_workers
def test_a_loop_that_is_left_at_the_last_batch_has_finished_its_epoch(num_workers: int) -> None:
    loader = new(num_workers, length=9)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    assert (state["position"], state["is_boundary"]) == (0, True)
    uninterrupted = new(num_workers, length=9)
    rest_of(uninterrupted)
    assert rest_of(resumed(state, num_workers, length=9)) == rest_of(uninterrupted)


@every_num_workers
def test_after_break_it_is_where_the_loop_was_left(num_workers: int) -> None:
    loader = new(num_workers)
    seen = []
    for batch in loader:
        seen.append(plain(batch))
        if len(seen) == 2:
            break
    state = loader.state_dict()
    loader.close()
    assert loader.state_dict() == state
    assert seen + rest_of(resumed(state, num_workers)) == rest_of(new(num_workers))


@every_num_workers
def test_break_and_iter_begin_a_new_epoch(num_workers: int) -> None:
    loader = resumed(_state_inside(num_workers), num_workers)
    for _ in loader:
        break
    assert sorted(chain(*rest_of(loader))) == list(range(10))


def _state_inside(num_workers: int = 2, num_batches: int = 1, **arguments: Any) -> dict[str, Any]:
    loader = new(num_workers, **arguments)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return loader.state_dict()


class Failing(Plain):
    """Sample 4 cannot be had."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        if index == 4:
            raise OSError("sample 4")
        return super().__getitem__(index)


@every_num_workers
def test_an_error_is_handed_out_like_a_batch_and_not_repeated(num_workers: int) -> None:
    loader = new(num_workers, dataset=Failing(10), shuffle=False)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="sample 4"):
        next(iterator)
    state = loader.state_dict()
    assert state["position"] == 6
    expected = [plain(batch) for batch in iterator]
    assert rest_of(resumed(state, num_workers, dataset=Failing(10), shuffle=False)) == expected == [[6, 7, 8], [9]]


class FailingOnce(SequentialSampler):
    def __iter__(self) -> Any:
        yield from range(6)
        raise OSError("no more indices today")


@every_num_workers
def test_a_sampler_that_failed_did_not_finish_its_epoch(num_workers: int) -> None:
    dataset = Plain(10)
    loader = new(num_workers, dataset=dataset, sampler=FailingOnce(dataset))
    iterator = iter(loader)
    for _ in range(2):
        next(iterator)
    with pytest.raises(OSError, match="no more indices"):
        next(iterator)
    state = loader.state_dict()
    assert list(iterator) == []
    assert loader.state_dict() == state
    assert (state["position"], state["is_boundary"]) == (6, False)


@every_num_workers
def test_the_loaded_state_is_told_again_until_it_was_used(num_workers: int) -> None:
    state = _state_inside(num_workers)
    loader = resumed(state, num_workers)
    assert loader.state_dict() == state
    iter(loader)
    assert loader.state_dict() == state
    iterator = iter(loader)
    assert loader.state_dict() == state
    next(iterator)
    assert loader.state_dict() != state


@every_num_workers
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("sampler", ["at once", "own", "torch"])
def test_iterators_that_nobody_uses_do_not_use_it_up(
    num_workers: int, batch_size: int | None, finished: bool, sampler: str
) -> None:
    def make() -> StageLoader[Any]:
        of = {"at once": custom.AtOnce("torch"), "own": custom.Own("torch", at_once=True), "torch": None}[sampler]
        arguments: dict[str, Any] = {"shuffle": True} if of is None else {"sampler": of}
        return StageLoader(Drawing(11), batch_size, seed=3, num_workers=num_workers, **arguments)

    reseed(1)
    loader = make()
    iterator = iter(loader)
    for _ in range(len(loader) if finished else 2):
        next(iterator)
    state = loader.state_dict()
    expected = [[plain(batch) for batch in iterator], rest_of(loader)][finished:]

    reseed(2)
    other = make()
    other.load_state_dict(state)
    iter(other)
    iter(other)
    assert [rest_of(other) for _ in expected] == expected


def test_an_iterator_that_fails_to_start_does_not_use_it_up() -> None:
    state = _state_inside(2)
    expected = rest_of(resumed(state))
    failing = [True]

    def init(number: int) -> None:
        if failing:
            raise OSError("no licence")

    loader = resumed(state, worker_init_fn=init)
    with pytest.raises(OSError, match="no licence"):
        next(iter(loader))
    assert loader.state_dict() == state
    failing.clear()
    assert rest_of(loader) == expected


@every_num_workers
def test_iterators_that_were_there_go_on_as_they_were(num_workers: int) -> None:
    state = _state_inside(num_workers, 2)
    loader = new(num_workers)
    expected = rest_of(new(num_workers))
    iterator = iter(loader)
    seen = [plain(next(iterator))]
    loader.load_state_dict(state)
    assert seen + [plain(batch) for batch in iterator] == expected
    assert rest_of(loader) == expected[2:]


@every_num_workers
def test_the_state_is_that_of_the_latest_iterator(num_workers: int) -> None:
    loader = new(num_workers, shuffle=False)
    first = iter(loader)
    next(first)
    next(first)
    second = iter(loader)
    next(second)
    next(first)
    state = loader.state_dict()
    assert state["position"] == 3
    assert rest_of(resumed(state, num_workers, shuffle=False)) == [plain(batch) for batch in second]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_has_no_place(copied: Any) -> None:
    loader = new(shuffle=False)
    iterator = iter(loader)
    next(iterator)
    other = copied(loader)
    assert other.state_dict()["position"] == 0
    assert len(rest_of(other)) == 4
    assert loader.state_dict()["position"] == 3


@every_num_workers
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_was_handed_out_is_not_asked_of_the_dataset_again(num_workers: int, shuffle: bool) -> None:
    dataset = Plain(10_000)
    loader = new(num_workers, dataset=dataset, shuffle=shuffle, batch_size=1000)
    iterator = iter(loader)
    seen = list(chain.from_iterable(plain(next(iterator)) for _ in range(9)))
    state = loader.state_dict()

    other = resumed(state, num_workers, length=10_000, shuffle=shuffle, batch_size=1000)
    rest = list(chain(*rest_of(other)))
    assert sorted(seen + rest) == list(range(10_000))
    assert sorted(other.dataset.asked) == sorted(rest)  # type: ignore[attr-defined]


@every_num_workers
def test_a_state_is_as_large_late_as_early(num_workers: int) -> None:
    loader = new(num_workers, length=100_000, batch_size=100, sampler=RandomSampler(range(100_000)))
    sizes = set()
    for number, _ in enumerate(loader):
        if number % 300 == 0:
            state = loader.state_dict()
            state["position"] = state["last_index"] = 0
            sizes.add(len(json.dumps(state)))
    assert len(sizes) == 1
    assert max(sizes) < 64 * 1024


@every_num_workers
@pytest.mark.parametrize("is_loaded", [False, True])
@pytest.mark.parametrize("num_asked", [0, 1])
def test_iterators_die_by_reference_count(num_workers: int, is_loaded: bool, num_asked: int) -> None:
    sampler = custom.Stateful()
    loader = new(num_workers, 11, sampler=sampler, generator=None)
    if is_loaded:
        next(iter(loader))
        loader.load_state_dict(loader.state_dict())
    gc.collect()
    gc.disable()
    try:
        iterator = iter(loader)
        for _ in range(num_asked):
            next(iterator)
            loader.state_dict()
        indices = weakref.ref(iterator._sampler_iter)
        dead = weakref.ref(iterator)
        del iterator
        assert dead() is None
        if num_workers == 0 or not num_asked:  # else a thread may be about to let go of it
            assert indices() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("sampler", ["at once", "torch"])
@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("begins", [False, True])
def test_threads_that_are_kept_begin_an_epoch_again(sampler: str, batch_size: int | None, begins: bool) -> None:
    arguments: dict[str, Any] = {"shuffle": True} if sampler == "torch" else {"sampler": custom.AtOnce("torch")}
    with StageLoader(Drawing(11), batch_size, num_workers=2, persistent_workers=True, **arguments) as loader:
        iterator = iter(loader) if begins else None
        state = loader.state_dict()
        expected = [rest_of(loader) if iterator is None else [plain(batch) for batch in iterator], rest_of(loader)]
        for _ in range(2):
            loader.load_state_dict(state)
            assert [rest_of(loader), rest_of(loader)] == expected


@pytest.mark.parametrize("copied", [lambda loader: pickle.loads(pickle.dumps(loader)), copy.copy, copy.deepcopy])
@every_num_workers
def test_a_copy_of_a_loader_goes_on_where_the_loaded_state_says(num_workers: int, copied: Any) -> None:
    first = new(num_workers, dataset=Drawing(10))
    batches = iter(first)
    next(batches)
    state = through_json(first.state_dict())
    expected = [[plain(batch) for batch in batches], rest_of(first)]
    loader = resumed(state, num_workers, dataset=Drawing(10))
    other = copied(loader)
    assert other.state_dict() == state
    assert [rest_of(other), rest_of(other)] == expected
    assert copied(other)._epoch is None  # that state is used up


def test_a_batch_whose_copy_to_the_device_is_cut_short_is_not_lost(monkeypatch: Any) -> None:
    loader = new(num_workers=0, device="cpu")
    expected = rest_of(new(num_workers=0))
    batches = iter(loader)
    seen = [plain(next(batches))]
    with monkeypatch.context() as patch:

        def pressed(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr("torchstage.transfer.Route.begin", pressed)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    state = through_json(loader.state_dict())
    loader.close()
    other = new(num_workers=0)
    other.load_state_dict(state)
    assert seen + rest_of(other) == expected
