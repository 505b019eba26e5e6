"""Order: which time an index comes, and which epoch it is."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchstage import StageLoader
from torchstage.order import Placed, Places, can_repeat, samplers_of, seeds_of
from torchstage.seeds import Seeds

DATASET = range(10)


def items_of(places, *batches):
    told = [places.of(batch) for batch in batches]
    return [list(indices) if items is None else items for indices, items in told]


def test_an_index_is_itself_the_first_time_and_counted_from_then_on():
    assert items_of(Places(DATASET), [1, 2, 1], [1, 3]) == [[1, 2, Placed(1, 1)], [Placed(1, 2), 3]]


def test_counting_goes_on_beyond_what_a_byte_holds():
    (items,) = items_of(Places(DATASET), [4] * 600)
    salts = [item.salt if isinstance(item, Placed) else 0 for item in items]
    assert salts == list(range(600))


@pytest.mark.parametrize("index", ["cat", (1, "a"), -1, 10**12, None, 2.5])
def test_what_is_no_small_integer_is_told_apart_too(index):
    (items,) = items_of(Places(DATASET), [index, index])
    assert items[1] != items[0]
    assert items[1].index == index


@pytest.mark.parametrize("index", [object(), torch.arange(3), np.arange(3), {"a": 1}])
def test_an_index_that_does_not_say_which_sample_it_is_has_its_place(index):
    items = [item for batch in items_of(Places(DATASET), [index], [index]) for item in batch]
    assert [item.salt for item in items] == [1, 2]


def test_a_dataset_without_a_length_is_counted_in_another_way():
    assert items_of(Places(object()), [1, 1, 2]) == [[1, Placed(1, 1), 2]]


def test_the_batch_of_numbered_samples_has_a_place_of_its_own():
    places = Places(DATASET)
    first, second, third = (places.of([1, 2])[0] for _ in range(3))
    assert [getattr(batch, "salt", 0) for batch in (first, second, third)] == [0, 3, 5]


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (SequentialSampler(DATASET), False),
        (RandomSampler(DATASET), False),
        (RandomSampler(DATASET, num_samples=5), False),
        (RandomSampler(DATASET, replacement=True), True),
        (RandomSampler(DATASET, num_samples=15), True),
        (DistributedSampler(DATASET, num_replicas=2, rank=0), False),
        (DistributedSampler(DATASET, num_replicas=20, rank=0), True),
        (SubsetRandomSampler([1, 1]), True),
        (WeightedRandomSampler([1.0] * 10, 10), True),
        ([1, 2, 3], True),
    ],
)
def test_which_samplers_can_repeat(sampler, expected):
    assert can_repeat(samplers_of(StageLoader(DATASET, 2, sampler=sampler)), DATASET) is expected
    assert can_repeat(samplers_of(StageLoader(DATASET, None, sampler=sampler)), DATASET) is expected
    batches = BatchSampler(sampler, 2, drop_last=False)
    assert can_repeat(samplers_of(StageLoader(DATASET, batch_sampler=batches)), DATASET) is expected


def test_a_batch_sampler_of_the_users_can_repeat():
    assert can_repeat(samplers_of(StageLoader(DATASET, batch_sampler=[[1], [1]])), DATASET)


class Told:
    def __init__(self, **known):
        self.__dict__.update(known)


def test_the_base_is_the_seed_or_the_samplers_or_torchs():
    begun = Counter()
    assert seeds_of(7, (Told(seed=5),), 99, 0, begun) == Seeds(7, 0, 0)
    assert seeds_of(None, (Told(seed=5),), 99, 0, Counter()) == Seeds(5, 0, 0)
    assert seeds_of(None, (None, Told()), 99, 3, Counter()) == Seeds(99, 0, 3)


def test_epochs_are_the_samplers_and_counted_where_it_does_not_go_on():
    begun, sampler = Counter(), Told(seed=5, epoch=2)
    assert [seeds_of(None, (sampler,), 0, 0, begun) for _ in range(2)] == [Seeds(5, 2, 0), Seeds(5, 2, 1)]
    sampler.epoch = 3
    assert seeds_of(None, (sampler,), 0, 0, begun) == Seeds(5, 3, 0)


def test_a_seed_that_is_no_integer_is_none():
    assert seeds_of(None, (Told(seed=None, epoch="x"), Told(seed=True)), 42, 0, Counter()) == Seeds(42, 0, 0)
