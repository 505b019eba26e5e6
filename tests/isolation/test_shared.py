"""Datasets that all threads may share are shared: no copy, no warning, and all threads inside at once."""

import threading

import pytest
import torch

from .shared import SHARED
from .stories import (
    NUM_SAMPLES,
    NUM_THREADS,
    Case,
    Watched,
    WatchedBatches,
    breaks,
    caught_warnings,
    innermost,
    seen_datasets,
    values_of,
    with_info,
)


@pytest.mark.parametrize("name", SHARED)
def test_it_is_right_and_nothing_is_said(name, tmp_path, short_switch_interval):
    told = SHARED[name]
    with told.opened(tmp_path) as case:
        with caught_warnings() as messages:
            loader = case.loader(num_workers=8)
            for _ in range(2):
                assert values_of(loader) == told.all_right()
        assert messages == []


@pytest.mark.parametrize("name", SHARED)
def test_it_really_may_be_shared(name, tmp_path, short_switch_interval):
    told = SHARED[name]
    with told.opened(tmp_path) as case:
        assert not breaks(told, case, num_rounds=3)


@pytest.mark.parametrize("name", SHARED)
def test_no_thread_gets_a_copy(name, tmp_path):
    with SHARED[name].opened(tmp_path) as case:
        loader = case.loader(collate_fn=with_info)
        for _ in range(2):
            assert all(dataset is case.dataset for _, dataset in seen_datasets(loader))


@pytest.mark.parametrize("name", SHARED)
def test_all_threads_are_inside_at_once(name, tmp_path):
    """Each waits, from a quarter of the epoch on, until all are inside: with fewer threads it fails."""
    told = SHARED[name]
    with told.opened(tmp_path) as case:
        takes_batches = hasattr(case.dataset, "__getitems__") and name != "a_subset_of_a_big_array"
        watched = (WatchedBatches if takes_batches else Watched)(case.dataset, NUM_THREADS)
        loader = Case(watched, with_info).loader()
        values = [value for samples, _ in loader for value in samples]
        assert values == told.all_right()
        names = {watched.inside.arrivals.get_nowait() for _ in range(watched.inside.arrivals.qsize())}
        assert len(names) == NUM_THREADS
        assert threading.current_thread().name not in names


@pytest.mark.parametrize("name", ["a_big_array", "a_big_tensor", "a_memory_mapped_array", "a_subset_of_a_big_array"])
@pytest.mark.parametrize("isolation", ["auto", "shared", "per_thread", "serial"])
def test_big_arrays_are_never_copied(name, isolation, tmp_path):
    with SHARED[name].opened(tmp_path) as case:
        array = innermost(case.dataset).array
        loader = case.loader(collate_fn=with_info, isolation=isolation)
        for _, dataset in seen_datasets(loader):
            seen = innermost(dataset).array
            assert seen is array or (isinstance(seen, torch.Tensor) and seen.data_ptr() == array.data_ptr())


@pytest.mark.parametrize("name", SHARED)
def test_it_is_right_with_copies_as_well(name, tmp_path):
    told = SHARED[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        assert values_of(case.loader(isolation="per_thread")) == told.all_right()
    assert messages == []


def test_what_was_loaded_for_the_first_sample_is_kept(tmp_path):
    """The user's own dataset gets the index that is loaded once, and the cache that only grows."""
    with SHARED["an_index_loaded_once"].opened(tmp_path) as case:
        values_of(case.loader())
        assert len(case.dataset.contents) == NUM_SAMPLES
    with SHARED["a_cache_that_grows"].opened(tmp_path) as case:
        values_of(case.loader())
        assert len(case.dataset.cache) == NUM_SAMPLES


def test_there_are_enough_of_them():
    assert len(SHARED) >= 8
