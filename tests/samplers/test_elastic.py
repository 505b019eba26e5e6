"""ElasticSampler: what it is told, where it begins, and that it is a DistributedSampler."""

import gc
import inspect
import tracemalloc
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from torchstage.samplers import ElasticSampler

WHOLE = list(ElasticSampler(range(20), seed=5))


def sampler_of(length=20, *args, **arguments):
    return ElasticSampler(range(length), *args, **{"seed": 5, **arguments})


# A DistributedSampler -------------------------------------------------------------------------------------------


def test_it_is_a_distributed_sampler_with_its_arguments_in_their_places():
    assert issubclass(ElasticSampler, DistributedSampler)
    theirs = list(inspect.signature(DistributedSampler).parameters.values())
    ours = list(inspect.signature(ElasticSampler).parameters.values())
    assert [(one.name, one.default) for one in ours[: len(theirs)]] == [(one.name, one.default) for one in theirs]


@given(
    length=st.integers(1, 60),
    num_replicas=st.integers(1, 7),
    rank=st.integers(0, 6),
    seed=st.integers(0, 9),
    is_padded=st.booleans(),
    epoch=st.integers(0, 9),
)
def test_with_equal_counts_its_attributes_are_those_of_distributed_sampler(
    length, num_replicas, rank, seed, is_padded, epoch
):
    dataset, rank = range(length), rank % num_replicas
    theirs = DistributedSampler(dataset, num_replicas, rank, seed=seed, drop_last=not is_padded)
    ours = ElasticSampler(dataset, num_replicas, rank, seed=seed, tail="pad" if is_padded else "drop")
    theirs.set_epoch(epoch)
    ours.set_epoch(epoch)
    assert {name: getattr(ours, name) for name in vars(theirs)} == vars(theirs)
    assert len(ours) == len(theirs) == len(list(ours)) == len(list(theirs))


@given(length=st.integers(0, 60), num_replicas=st.integers(1, 7), rank=st.integers(0, 6), shuffle=st.booleans())
def test_exact_its_counts_are_true_too(length, num_replicas, rank, shuffle):
    sampler = sampler_of(length, num_replicas, rank % num_replicas, shuffle)
    counts = sampler.num_samples, len(sampler)
    assert counts == (len(list(sampler)),) * 2
    assert (sampler.total_size, sampler.num_total) == (length, length)


def test_not_shuffled_the_order_is_that_of_distributed_sampler():
    for rank in range(4):
        assert list(sampler_of(21, 4, rank, False, tail="pad")) == list(DistributedSampler(range(21), 4, rank, False))


def test_in_a_data_loader_it_gives_its_samples():
    loader = DataLoader(range(20), batch_size=3, sampler=sampler_of(20, 2, 1))
    assert [index for batch in loader for index in batch.tolist()] == WHOLE[1::2]
    assert len(loader) == 4


def test_without_a_process_group_it_is_alone():
    sampler = sampler_of()
    assert (sampler.num_replicas, sampler.rank) == (1, 0)


def test_with_a_process_group_it_asks_it_even_if_it_is_older(monkeypatch):
    """Lightning begins the group after the user has made the sampler."""
    sampler = sampler_of()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert (sampler.num_replicas, sampler.rank, len(sampler)) == (4, 3, 5)
    assert list(sampler) == WHOLE[3::4]
    assert list(sampler_of(20, 2, 1)) == WHOLE[1::2]  # what was given counts
    with pytest.raises(ValueError, match="rank must be from 0 to 1 with 2 replicas, got 3"):
        sampler_of(20, 2)


# Beginning ------------------------------------------------------------------------------------------------------


def test_epochs_differ_only_if_told():
    sampler = sampler_of()
    assert list(sampler) == list(sampler) == WHOLE
    sampler.set_epoch(1)
    assert sorted(sampler) == sorted(WHOLE)
    assert list(sampler) != WHOLE


def test_the_epoch_counts_that_is_set_when_the_first_index_is_drawn():
    sampler = sampler_of()
    sampler.set_epoch(3)
    third = list(sampler)
    sampler.set_epoch(0)
    indices = iter(sampler)
    sampler.set_epoch(3)
    first = next(indices)
    sampler.set_epoch(4)
    assert [first, *indices] == third


def test_a_dataset_that_grows_is_longer_in_the_next_epoch():
    dataset = list(range(5))
    sampler = ElasticSampler(dataset)
    indices = iter(sampler)
    seen = [next(indices)]
    dataset.append(5)
    assert sorted([*seen, *indices]) == list(range(5))
    assert len(sampler) == sampler.num_samples == sampler.total_size == sampler.num_total == 6
    assert sorted(sampler) == list(range(6))


@given(position=st.integers(0, 20), num_replicas=st.integers(1, 5), rank=st.integers(0, 4))
def test_it_begins_where_it_is_told_and_the_time_after_at_the_beginning(position, num_replicas, rank):
    sampler = sampler_of(20, num_replicas, rank % num_replicas)
    whole = list(sampler)
    assert sampler.position == 0
    sampler.start_at(position)
    assert sampler.position == position
    rest = WHOLE[position + sampler.rank :: num_replicas]
    assert (len(sampler), sampler.total_size) == (len(rest), 20 - position)
    assert list(sampler) == rest
    assert (sampler.position, len(sampler)) == (0, len(whole))
    assert list(sampler) == whole


def test_an_iter_of_which_nothing_is_drawn_does_not_lose_the_position():
    sampler = sampler_of()
    sampler.start_at(8)
    unused = iter(sampler)
    assert (sampler.position, len(sampler)) == (8, 12)
    assert list(sampler) == WHOLE[8:]
    assert list(unused) == WHOLE[8:]  # it was begun there, too
    assert list(sampler) == WHOLE


def test_the_first_index_uses_the_position_up():
    sampler = sampler_of()
    sampler.start_at(8)
    indices = iter(sampler)
    next(indices)
    assert (sampler.position, len(sampler)) == (0, 20)
    assert list(sampler) == WHOLE
    assert list(indices) == WHOLE[9:]


def test_an_end_without_an_index_uses_the_position_up():
    sampler = sampler_of()
    sampler.start_at(20)
    assert (len(sampler), list(sampler)) == (0, [])
    assert list(sampler) == WHOLE


def test_an_older_iterator_does_not_use_up_a_newer_position():
    sampler = sampler_of()
    sampler.start_at(8)
    older = iter(sampler)
    sampler.start_at(12)
    assert next(older) == WHOLE[8]
    assert sampler.position == 12
    assert list(sampler) == WHOLE[12:]


def test_another_epoch_begins_at_the_position_it_was_told():
    sampler = sampler_of()
    sampler.start_at(8)
    sampler.set_epoch(1)
    rest = list(sampler)
    assert rest == list(sampler)[8:]


def test_a_dataset_that_became_too_short_for_the_position_is_an_error():
    dataset = list(range(20))
    sampler = ElasticSampler(dataset)
    sampler.start_at(20)
    del dataset[10:]
    with pytest.raises(ValueError, match="told to start at 20, but the dataset has only 10 samples now"):
        next(iter(sampler))
    assert sampler.position == 20


# Mistakes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_replicas": 0}, ValueError, "num_replicas must be from 1 to 2147483647, got 0"),
        ({"num_replicas": 2.0}, TypeError, "num_replicas must be an integer, got 2.0"),
        ({"num_replicas": True}, TypeError, "num_replicas must be an integer, got True"),
        ({"num_replicas": 4}, ValueError, "num_replicas is 4, but which of them is this process"),
        ({"num_replicas": 4, "rank": 4}, ValueError, "rank must be from 0 to 3 with 4 replicas, got 4"),
        ({"num_replicas": 4, "rank": -1}, ValueError, "rank must be from 0 to 2147483646, got -1"),
        ({"rank": 1}, ValueError, "rank must be from 0 to 0 with 1 replicas, got 1"),
        ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
        ({"seed": -1}, ValueError, "seed must be from 0 to 9223372036854775807, got -1"),
        ({"seed": "a"}, TypeError, "seed must be an integer, got 'a'"),
        ({"drop_last": None}, TypeError, "drop_last must be True or False, got None"),
        ({"tail": "fill"}, ValueError, "tail must be one of 'exact', 'pad', 'drop' or None, got 'fill'"),
        ({"tail": ["pad"]}, ValueError, "tail must be one of"),
        ({"tail": "exact", "drop_last": True}, ValueError, "drop_last=True means tail='drop', got tail='exact' too"),
        ({"dataset": 5}, TypeError, "the dataset must have a length, got int"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        ElasticSampler(**{"dataset": range(20), **arguments})


def test_the_words_for_dropping_mean_the_same():
    assert (sampler_of(drop_last=True).tail, sampler_of(tail="drop").drop_last) == ("drop", True)
    assert (sampler_of(drop_last=True, tail="drop").tail, sampler_of().tail) == ("drop", "exact")
    assert sampler_of(tail="pad").drop_last is False


@pytest.mark.parametrize("position", [-1, 21])
def test_a_position_outside_the_dataset_is_refused(position):
    with pytest.raises(ValueError, match=f"position must be from 0 to 20, got {position}"):
        sampler_of().start_at(position)


def test_an_epoch_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match=r"epoch must be an integer, got 1\.5"):
        sampler_of().set_epoch(1.5)


# Size ---------------------------------------------------------------------------------------------------------------


def test_a_billion_samples_take_no_more_memory_than_a_block_of_them():
    sampler = sampler_of(10**9, 8, 3)
    next(iter(sampler))  # what is imported and kept for good
    gc.collect()
    tracemalloc.start()
    try:
        sampler.start_at(5 * 10**8)
        seen = sum(1 for _ in islice(sampler, 100_000))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == 100_000
    assert peak < 1_000_000
    assert kept < 300_000
