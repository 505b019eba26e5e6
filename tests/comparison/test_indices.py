"""Indices: the dataset index of a sample that differs is named where it is known, and the sampler is left alone."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from tests.comparison.data import Squares
from torchstage import SkipSample, StageLoader, compare


class Backwards(Sampler):
    """Batches of three, from the end."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return -(-self.size // 3)

    def __iter__(self):
        indices = list(range(self.size))[::-1]
        for at in range(0, self.size, 3):
            yield indices[at : at + 3]


ORDERS = {
    "in order": lambda: {"batch_size": 4},
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "shuffle, drop_last": lambda: {"batch_size": 5, "shuffle": True, "drop_last": True},
    "generator": lambda: {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(3)},
    "sampler": lambda: {"batch_size": 4, "sampler": RandomSampler(Squares(), replacement=True, num_samples=60)},
    "list": lambda: {"batch_size": 2, "sampler": [3, 9, 1, 4, 9]},
    "batch sampler": lambda: {"batch_sampler": Backwards(23)},
    "torch's batch sampler": lambda: {"batch_sampler": BatchSampler(SequentialSampler(Squares()), 6, False)},
    "list of batches": lambda: {"batch_sampler": [[1, 9], [2], [9, 9, 9]]},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "sampler of batches": lambda: {
        "batch_size": None,
        "sampler": BatchSampler(SequentialSampler(Squares()), 6, False),
        "dataset": Many(),
    },
    "collate": lambda: {"batch_size": 4, "shuffle": True, "collate_fn": list},
    "collate to rows": lambda: {"batch_size": 4, "shuffle": True, "collate_fn": to_rows},
}


class Many(Squares):
    def __getitem__(self, indices):
        samples = [super(Many, self).__getitem__(index) for index in indices]
        return torch.stack([sample["value"] for sample in samples])


def to_rows(samples):
    return torch.stack([sample["value"] for sample in samples]), [sample["index"] for sample in samples]


def loader_of(order, loader_class, odd=None, **arguments):
    found = {"dataset": Squares(), **ORDERS[order]()}
    found["dataset"].odd = odd
    return loader_class(**found, **arguments)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_index_of_the_sample_that_differs_is_named(order, num_workers):
    one = loader_of(order, DataLoader)
    other = loader_of(order, StageLoader, odd=9, num_workers=num_workers)
    found = compare(one, other, epochs=2, timed_epochs=0, max_differences=100)
    assert {difference.epoch for difference in found.differences} <= {0, 1}
    assert found.differences or "drop_last" in order
    for difference in found.differences:
        assert difference.index == difference.candidate_index == 9, str(difference)


@pytest.mark.parametrize("order", ["shuffle", "batch sampler", "no batches"])
def test_worker_processes_of_torch_have_indices_too(order):
    one, other = loader_of(order, DataLoader, num_workers=2), loader_of(order, StageLoader, odd=9, num_workers=2)
    found = compare(one, other, epochs=1, timed_epochs=0)
    assert {difference.index for difference in found.differences} == {9}


def test_both_indices_are_named_where_orders_differ():
    one = DataLoader(Squares(6), batch_size=3, sampler=[0, 1, 2, 3, 4, 5])
    other = DataLoader(Squares(6), batch_size=3, sampler=[0, 1, 5, 3, 4, 2])
    first = compare(one, other, epochs=1, timed_epochs=0).differences[0]
    assert (first.sample, first.index, first.candidate_index) == (2, 2, 5)
    assert "dataset index 2 and 5" in str(first)


def test_a_sampler_is_of_its_own_class_again_and_gives_what_it_gave():
    sampler = Backwards(5)
    method = Backwards.__iter__
    one = DataLoader(Squares(5), batch_sampler=sampler)
    assert compare(one, StageLoader(Squares(5), batch_sampler=sampler), timed_epochs=0).equal
    assert Backwards.__iter__ is method
    assert "__iter__" not in vars(type("Sub", (Backwards,), {}))
    assert list(sampler) == [[4, 3, 2], [1, 0]]
    assert vars(RandomSampler)["__iter__"].__module__ == "torch.utils.data.sampler"


class Skipping(Squares):
    def __getitem__(self, index):
        if index == 2:
            raise SkipSample
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"on_error": "skip"}, "left out or replaced"),
        ({"in_order": False}, "in which they are ready"),
        ({}, "are not those of the sampler"),
    ],
)
def test_where_batches_may_not_be_the_samplers_no_index_is_guessed(arguments, why):
    one = StageLoader(Skipping(), batch_size=4, num_workers=2, **arguments)
    other = StageLoader(Skipping(odd=9), batch_size=4, num_workers=2, **arguments)
    found = compare(one, other, epochs=1, timed_epochs=0)
    assert not found.equal
    assert {difference.index for difference in found.differences} == {None}
    assert any(why in note for note in found.notes), found.notes


class Reversed(DataLoader):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


def test_a_loader_with_an_order_of_its_own_has_no_indices():
    found = compare(Reversed(Squares(), 4), Reversed(Squares(odd=9), 4), epochs=1, timed_epochs=0)
    assert {difference.index for difference in found.differences} == {None}
    assert any("a Reversed has an order of its own" in note for note in found.notes)


def test_a_batch_of_as_many_fields_as_samples_has_no_sample_that_could_be_meant():
    one, other = [[torch.zeros(2), torch.zeros(2)]], [[torch.zeros(2), torch.ones(2)]]
    [difference] = compare(one, other, epochs=1, timed_epochs=0).differences
    assert (difference.field, difference.sample) == ("[1]", None)
