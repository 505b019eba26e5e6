"""Ctrl-C and errors at awkward moments: whatever was not handed out comes again."""

import _thread
import gc
import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import StageLoader

from .streams import Itself, OfDataset, OfIterator, Plain, Walk, drawing, through_a_file

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning")


class Fuse:
    """Burns down with the samples that are read; then reading is interrupted, once."""

    left = -1

    @classmethod
    def burn(cls) -> None:
        cls.left -= 1
        if cls.left == -1:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def no_fuse() -> None:
    Fuse.left = -1


class FusedPlain(Plain):
    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            Fuse.burn()
            yield sample


class FusedOfDataset(OfDataset):
    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            Fuse.burn()
            yield sample


class FusedWalk(Walk):
    def __next__(self) -> Any:
        sample = super().__next__()
        Fuse.burn()
        return sample


class FusedOfIterator(OfIterator):
    def __iter__(self) -> FusedWalk:
        return FusedWalk()


class FusedItself(Itself):
    def __next__(self) -> Any:
        sample = super().__next__()
        Fuse.burn()
        return sample


FUSED = [FusedPlain, FusedOfDataset, FusedOfIterator, FusedItself]


def made(dataset: Any, **chosen: Any) -> StageLoader[Any]:
    torch.manual_seed(3)
    return StageLoader(dataset(), **{"batch_size": 4, "seed": 5, "collate_fn": drawing, **chosen})


def given_until_interrupted(iterator: Iterator[Any]) -> list[Any]:
    given: list[Any] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # it comes whenever it comes
        for batch in iterator:
            given.append(batch)
    return given


@pytest.mark.parametrize("num_samples", [0, 2, 4, 9, 11, 26])
@pytest.mark.parametrize("is_dropped", [False, True])
@pytest.mark.parametrize("dataset", FUSED)
def test_ctrl_c_inside_a_batch_loses_none_of_it(dataset: Any, is_dropped: bool, num_samples: int) -> None:
    whole = list(made(dataset))
    loader = made(dataset)
    Fuse.left = num_samples
    iterator = iter(loader)
    given = given_until_interrupted(iterator)
    assert len(given) == num_samples // 4
    if is_dropped:
        del iterator
        gc.collect()
    state = through_a_file(loader.state_dict())
    again = made(dataset) if is_dropped else loader  # as in a notebook
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert given + list(again) == whole


@pytest.mark.parametrize("dataset", FUSED)
def test_ctrl_c_again_and_again_each_time_in_a_run_that_goes_on(dataset: Any) -> None:
    whole = list(made(dataset))
    given: list[Any] = []
    state: Any = None
    for num_samples in (5, 5, 11):
        loader = made(dataset)
        if state is not None:
            loader.load_state_dict(state)
        Fuse.left = num_samples + 4 * len(given)  # which are read once more
        given += given_until_interrupted(iter(loader))
        state = through_a_file(loader.state_dict())
    assert 2 < len(given) < len(whole)
    loader = made(dataset)
    loader.load_state_dict(state)
    assert given + list(loader) == whole


@pytest.mark.parametrize("dataset", FUSED)
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("num_samples", [0, 3])
def test_a_state_is_not_used_up_by_an_iterator_that_was_interrupted_before_its_first_batch(
    dataset: Any, seed: int | None, num_samples: int
) -> None:
    """Also while it reads once more what was handed out."""
    chosen: dict[str, Any] = {"seed": seed, "collate_fn": partial(map, lambda sample: sample[:-1])}

    def whole_of(loader: Any) -> list[list[Any]]:
        return [list(batch) for batch in loader]

    loader = made(dataset, **chosen)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = through_a_file(loader.state_dict())
    rest = whole_of(iterator)
    loader = made(dataset, **chosen)
    loader.load_state_dict(state)
    Fuse.left = num_samples
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        list(next(iterator)), next(iterator)
    if dataset is FusedPlain:
        with pytest.raises(RuntimeError, match=r"interrupted on its way .* Call iter\(loader\)"):
            next(iterator)
    assert loader.state_dict() == state
    assert whole_of(loader) == rest


# Lanes -----------------------------------------------------------------------------------------------------------


class Signalling(OfDataset):
    """Interrupts the caller when it waits for the batch that this sample is in; once."""

    at_sample: ClassVar[int] = -1
    is_awaited: ClassVar[threading.Event] = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            if sample[2] == self.at_sample and get_worker_info().id == 1:
                assert self.is_awaited.wait(20)
                type(self).at_sample = -1
                _thread.interrupt_main()
            yield sample


@pytest.mark.parametrize("at_sample", [0, 5])
@pytest.mark.parametrize("is_kept", [False, True])
def test_ctrl_c_while_the_caller_waits_for_a_lane_loses_no_batch(at_sample: int, is_kept: bool) -> None:
    chosen: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "persistent_workers": is_kept}
    with made(Signalling, **chosen) as loader:
        whole = list(loader)
    Signalling.is_awaited.clear()
    Signalling.at_sample = at_sample
    num_before = 2 * (at_sample // 2) + 1
    with made(Signalling, **chosen) as loader:
        iterator = iter(loader)
        given = list(itertools.islice(iterator, num_before))
        Signalling.is_awaited.set()
        given += given_until_interrupted(iterator)
        state = through_a_file(loader.state_dict())
        rest = list(iterator)
        assert given + rest == whole
    with made(Signalling, **chosen) as again:
        again.load_state_dict(state)
        assert list(again) == rest


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_state_is_not_used_up_by_lanes_that_were_interrupted_before_their_first_batch(is_kept: bool) -> None:
    chosen: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "persistent_workers": is_kept}
    with made(Signalling, **chosen) as loader:
        iterator = iter(loader)
        given = list(itertools.islice(iterator, 3))
        assert len(given) == 3
        state = through_a_file(loader.state_dict())
        rest = list(iterator)
        second = list(loader)
    Signalling.is_awaited.set()
    Signalling.at_sample = 3
    with made(Signalling, **chosen) as again:
        again.load_state_dict(state)
        with pytest.raises(KeyboardInterrupt):
            next(iter(again))
        assert again.state_dict() == state
        assert list(again) == rest
        assert list(again) == second


class Failing(IterableDataset):
    """A generator: its first error is its end."""

    def __iter__(self) -> Iterator[int]:
        number = get_worker_info().id
        for at in range(8):
            if number == 1 and at == 5:
                raise ValueError(at)
            yield 10 * number + at


def refusing(samples: list[int]) -> list[int]:
    if 3 in samples:
        raise ValueError(3)
    return samples


def all_of(iterator: Iterator[Any], num_batches: int = 1000) -> list[Any]:
    found: list[Any] = []
    while len(found) < num_batches:
        try:
            found.append(next(iterator))
        except ValueError as error:
            found.append(error.args)
        except StopIteration:
            break
    return found


def test_a_lane_of_which_a_batch_failed_goes_on_after_it_or_has_ended_as_it_had() -> None:
    chosen: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "collate_fn": refusing}
    with made(Failing, **chosen) as loader:
        whole = all_of(iter(loader))
    assert (3,) in whole
    assert whole[-2:] == [(5,), [6, 7]]
    for at in range(len(whole)):
        with made(Failing, **chosen) as loader:
            iterator = iter(loader)
            assert all_of(iterator, at) == whole[:at]
            state = loader.state_dict()
        with made(Failing, **chosen) as again:
            again.load_state_dict(state)
            assert all_of(iter(again)) == whole[at:]
