"""Copies: a loader can be pickled and copied, before and after it was iterated; an iterator cannot."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchstage import StageLoader

from .compare import assert_same
from .datasets import Indices, as_given
from .ways import FOUR_THREADS, INLINE, TWO_THREADS, lists, on, on_all, on_both, on_workers


def through_pickle(loader: Any) -> Any:
    return pickle.loads(pickle.dumps(loader))


WAYS_TO_COPY = pytest.mark.parametrize("copied", [through_pickle, copy.copy, copy.deepcopy])
Copied = Callable[[Any], Any]


@WAYS_TO_COPY
@on_both
def test_a_copy_gives_the_same_batches(make_loader: Any, copied: Copied) -> None:
    loader = make_loader(Indices(7), batch_size=3, sampler=[5, 4, 3, 2, 1], drop_last=True)
    double = copied(loader)
    assert type(double) is type(loader)
    assert lists(double) == lists(loader) == [[5, 4, 3]]


@WAYS_TO_COPY
@on_both
def test_a_loader_that_was_iterated_can_be_copied(make_loader: Any, copied: Copied) -> None:
    loader = make_loader(Indices(4), batch_size=2)
    expected = lists(loader)
    assert lists(copied(loader)) == expected


@WAYS_TO_COPY
@on_both
def test_a_loader_can_be_copied_in_the_middle_of_an_epoch(make_loader: Any, copied: Copied) -> None:
    loader = make_loader(Indices(4))
    iterator = iter(loader)
    first = next(iterator)
    assert lists(copied(loader)) == [[0], [1], [2], [3]]
    assert lists([first, *iterator]) == [[0], [1], [2], [3]]


@WAYS_TO_COPY
@on_both
def test_a_copy_of_a_copy_keeps_every_argument(make_loader: Any, copied: Copied) -> None:
    arguments = {"batch_size": 2, "collate_fn": as_given, "worker_init_fn": as_given, "in_order": False}
    loader = make_loader(Indices(3), **arguments)
    double = copied(copied(loader))
    for name, value in arguments.items():
        assert getattr(double, name) == value, name
    with pytest.raises(ValueError, match="should not be set after"):
        double.batch_size = 3


@WAYS_TO_COPY
@on(FOUR_THREADS)
def test_a_copy_keeps_our_own_arguments(make_loader: Any, copied: Copied) -> None:
    assert copied(make_loader(Indices(3), isolation="serial")).isolation == "serial"


@on_both
def test_generator_and_order_are_copied_with_a_deep_copy(make_loader: Any) -> None:
    loader = make_loader(Indices(20), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    double = copy.deepcopy(loader)
    assert_same(list(double), list(loader))
    assert double.generator is not loader.generator


@WAYS_TO_COPY
@on(FOUR_THREADS)
def test_closing_a_copy_leaves_the_original_at_work(make_loader: Any, copied: Copied) -> None:
    loader = make_loader(Indices(6), persistent_workers=False)
    iterator = iter(loader)
    batches = [next(iterator)]
    double = copied(loader)
    assert next(iter(double)).tolist() == [0]
    double.close()
    batches.extend(iterator)
    assert lists(batches) == [[0], [1], [2], [3], [4], [5]]


@on_workers
def test_a_loader_that_keeps_its_workers_can_be_pickled_only_before_it_is_iterated(make_loader: Any) -> None:
    loader = make_loader(Indices(4), batch_size=2, persistent_workers=True)
    assert lists(through_pickle(loader)) == lists(loader)
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(loader)
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        copy.deepcopy(loader)


@on_all
def test_an_iterator_can_neither_be_pickled_nor_copied(make_loader: Any) -> None:
    iterator = iter(make_loader(Indices(4)))
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        pickle.dumps(iterator)
    with pytest.raises(NotImplementedError, match="cannot be pickled"):
        copy.copy(iterator)


@on_both
def test_what_cannot_be_pickled_fails_as_it_would_alone(make_loader: Any) -> None:
    with pytest.raises(Exception, match=r"Can't (pickle|get) local object") as alone:
        pickle.dumps(local_function())
    with pytest.raises(type(alone.value), match=r"Can't (pickle|get) local object"):
        pickle.dumps(make_loader(Indices(3), collate_fn=local_function()))


def local_function() -> Any:
    return lambda samples: samples


@on(INLINE, TWO_THREADS)
def test_a_loader_can_be_sent_to_another_process(make_loader: Any) -> None:
    loader = make_loader(Indices(4), batch_size=2)
    context = torch.multiprocessing.get_context("fork")
    with context.Pool(1) as pool:
        length = pool.apply(len, (loader,))
        pool.close()
        pool.join()
    assert length == 2


def test_a_copied_loader_still_finds_its_handles(tmp_path: Any) -> None:
    """The lock around an unsafe dataset stays behind; the copy makes one of its own."""
    path = tmp_path / "numbers"
    path.write_text("0 1 2 3")
    with path.open("r+") as file:  # of a file that is open for writing there are no copies
        dataset = Indices(4)
        dataset.file = file
        loader = StageLoader(dataset, num_workers=2)
        with pytest.warns(UserWarning, match=r"dataset\.file is an open"):
            assert lists(loader) == [[0], [1], [2], [3]]
        double = copy.copy(loader)
        assert lists(double) == [[0], [1], [2], [3]]
        del dataset.file
        assert lists(through_pickle(loader)) == [[0], [1], [2], [3]]
