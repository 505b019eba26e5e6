"""Datasets: everything that torch takes as a map-style dataset, with the calls that torch makes to it."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split

from .compare import assert_same, story
from .datasets import Bulk, Indices, Made, as_given
from .ways import INLINE, lists, on_all, on_both, on_staged, on_workers

DATASETS: dict[str, Callable[[], Any]] = {
    "list": lambda: [5, 6, 7, 8, 9, 10, 11],
    "tuple": lambda: (5, 6, 7, 8, 9, 10, 11),
    "range": lambda: range(5, 12),
    "str": lambda: "letters",
    "bytes": lambda: b"letters",
    "array": lambda: np.arange(14).reshape(7, 2),
    "tensor": lambda: torch.arange(14).reshape(7, 2),
    "dict": lambda: dict(enumerate("letters")),
    "tensors": lambda: TensorDataset(torch.arange(7), torch.rand(7, 2, generator=torch.Generator().manual_seed(0))),
    "subset": lambda: Subset(Indices(20), [3, 1, 4, 1, 5, 9, 2]),
    "subset of a subset": lambda: Subset(Subset(Indices(20), range(10, 20)), [3, 1, 4, 1, 5, 9, 2]),
    "subset of bulk": lambda: Subset(Bulk(20), [3, 1, 4, 1, 5, 9, 2]),
    "split": lambda: random_split(Indices(10), [7, 3], torch.Generator().manual_seed(0))[0],
    "concatenated": lambda: ConcatDataset([Indices(3), Made(2, lambda i: -i), [10, 11]]),
    "sum": lambda: Indices(3) + Made(4, lambda i: -i),
    "stacked tuple": lambda: StackDataset(Indices(7), Bulk(7)),
    "stacked dict": lambda: StackDataset(a=Indices(7), b=[*"letters"]),
    "bulk": lambda: Bulk(7),
}


BATCHINGS = [{"batch_size": 3}, {"batch_size": None}, {"batch_size": 2, "drop_last": True}]


@pytest.mark.parametrize("arguments", BATCHINGS, ids=str)
@on_staged
def test_a_dataset_of_any_kind_gives_torch_s_batches(make_loader: Any, arguments: dict[str, Any]) -> None:
    for kind, make in DATASETS.items():
        dataset = make()
        assert_same(list(make_loader(dataset, **arguments)), list(INLINE(dataset, **arguments)), kind)


@on_workers
def test_datasets_of_all_kinds_at_once_give_torch_s_batches(make_loader: Any) -> None:
    dataset = StackDataset(**{kind.replace(" ", "_"): make() for kind, make in DATASETS.items()})
    assert_same(list(make_loader(dataset, batch_size=3)), list(INLINE(dataset, batch_size=3)))


@on_both
def test_keys_may_be_anything_that_the_sampler_yields(make_loader: Any) -> None:
    dataset = {"cat": 3, ("a", 1): 5, None: 7, 2.5: 9}
    assert lists(make_loader(dataset, batch_size=3, sampler=list(dataset))) == [[3, 5, 7], [9]]
    assert list(make_loader(dataset, batch_size=None, sampler=list(dataset))) == [3, 5, 7, 9]
    assert lists(make_loader(dataset, batch_sampler=[["cat"], [None, 2.5]])) == [[3], [7, 9]]


@on_both
def test_a_dataset_needs_no_length_if_the_sampler_knows_the_way(make_loader: Any) -> None:
    class Endless:
        def __getitem__(self, index: int) -> int:
            return index * 10

    assert lists(make_loader(Endless(), batch_size=2, sampler=[3, 1, 2])) == [[30, 10], [20]]


@on_both
def test_indices_arrive_unchanged(make_loader: Any) -> None:
    keys = [object(), [1, 2], {"a": 1}, slice(1, 3), torch.tensor(3), np.int64(4), True]
    batches = list(make_loader(Indices(0), batch_size=2, sampler=keys, collate_fn=as_given))
    assert all(one is key for one, key in zip(itertools.chain(*batches), keys, strict=True))
    got = list(make_loader(Indices(0), batch_size=None, sampler=keys, collate_fn=as_given))
    assert_same(got, keys)
    unchanging = [0, 3, 5, 6]  # what a sampler could change later is copied, as if it were a batch
    assert all(got[position] is keys[position] for position in unchanging)


@on_both
def test_slices_take_whole_batches_where_batching_is_off(make_loader: Any) -> None:
    data = torch.arange(10)
    loader = make_loader(data, batch_size=None, sampler=[slice(0, 4), slice(4, 8), [9, 8]])
    assert lists(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [9, 8]]


class Recording(Indices):
    """Writes down what it was asked for in bulk."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.asked: list[Any] = []

    def __getitems__(self, indices: Any) -> Any:
        self.asked.append(indices)
        return list(indices)


@on_both
def test_a_dataset_that_takes_batches_is_asked_once_a_batch(make_loader: Any) -> None:
    dataset = Recording(7)
    assert lists(make_loader(dataset, batch_size=3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert sorted(dataset.asked) == [[0, 1, 2], [3, 4, 5], [6]]


@on_both
def test_a_dataset_that_takes_batches_is_asked_one_by_one_where_batching_is_off(make_loader: Any) -> None:
    dataset = Recording(3)
    assert list(make_loader(dataset, batch_size=None)) == [0, 1, 2]
    assert dataset.asked == []


class Named(list):
    """A batch of indices that knows more than its indices."""


@on_both
def test_a_dataset_that_takes_batches_gets_the_sampler_s_own_type(make_loader: Any) -> None:
    for indices in ([1, 2], (1, 2), range(2), {1: "a", 2: "b"}, torch.tensor([1, 2]), np.array([1, 2])):
        dataset = Recording(3)
        list(make_loader(dataset, batch_sampler=[indices]))
        assert_same(dataset.asked, [indices])


@on_both
def test_a_dataset_that_takes_batches_gets_all_that_the_sampler_s_list_knows(make_loader: Any) -> None:
    dataset, batch = Recording(3), Named([1, 2])
    batch.name = "cats"
    list(make_loader(dataset, batch_sampler=[batch]))
    assert_same(dataset.asked, [batch])
    assert dataset.asked[0].name == "cats"


@on_all
def test_what_a_dataset_gave_in_bulk_goes_to_collate_as_it_is(make_loader: Any) -> None:
    class Columns(Indices):
        def __getitems__(self, indices: list[int]) -> dict[str, Any]:
            return {"indices": torch.tensor(indices), "count": len(indices)}

    batches = list(make_loader(Columns(3), batch_size=2, collate_fn=as_given))
    assert_same(batches, [{"indices": torch.tensor([0, 1]), "count": 2}, {"indices": torch.tensor([2]), "count": 1}])


@on_both
def test_a_bulk_method_that_is_switched_off_is_not_called(make_loader: Any) -> None:
    for nothing in (None, False, 0, ()):
        dataset = Indices(3)
        dataset.__getitems__ = nothing
        assert lists(make_loader(dataset, batch_size=2)) == [[0, 1], [2]]


@on_all
def test_a_bulk_method_that_cannot_be_called_fails_batch_by_batch(make_loader: Any) -> None:
    dataset = Indices(3)
    dataset.__getitems__ = "not callable"
    errors = story(make_loader(dataset, batch_size=2))
    assert [type(error) for error in errors] == [TypeError, TypeError]
    assert "'str' object is not callable" in str(errors[0])


@on_both
def test_a_bulk_method_may_be_an_attribute_of_the_object(make_loader: Any) -> None:
    dataset = Indices(3)
    dataset.__getitems__ = lambda indices: [index + 100 for index in indices]
    assert lists(make_loader(dataset, batch_size=2)) == [[100, 101], [102]]


@on_both
def test_a_bulk_method_found_by_getattr_counts(make_loader: Any) -> None:
    class Wrapper(Dataset):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]

        def __len__(self) -> int:
            return len(self.inner)

    assert lists(make_loader(Wrapper(Bulk(3)), batch_size=2)) == [[0, -1], [-2]]
    assert lists(make_loader(Wrapper(Indices(3)), batch_size=2)) == [[0, 1], [2]]


@on_both
def test_the_dataset_is_the_user_s_own_object(make_loader: Any) -> None:
    dataset = Indices(3)
    assert make_loader(dataset).dataset is dataset


@on_both
def test_a_dataset_that_grows_is_sampled_as_long_as_it_was(make_loader: Any) -> None:
    """SequentialSampler asks for the length when the epoch's first index is taken."""
    dataset = [1, 2, 3]
    iterator = iter(make_loader(dataset, batch_size=2))
    dataset.append(4)
    first = next(iterator)
    dataset.append(5)
    assert lists([first, *iterator]) == [[1, 2], [3, 4]]
    assert lists(make_loader(dataset, batch_size=2)) == [[1, 2], [3, 4], [5]]
