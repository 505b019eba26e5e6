"""Handles of copies: opened for each thread, closed with its copy; and what worker_init_fn opens."""

import gc
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import Subset, get_worker_info
from watching import seconds_until

from .breaking_handles import RECORD_BYTES, Seeking
from .stories import NUM_SAMPLES, Case, Numbered, pause, values_of

# Handles of the copies -------------------------------------------------------------------------------------


def num_open(path: Path) -> int:
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found += descriptor.readlink() == path
        except FileNotFoundError:
            continue
    return found


@pytest.fixture
def reader(path):
    with path.open("rb") as file:
        yield Seeking(file)


def is_only_the_users(path):
    gc.collect()
    return num_open(path) == 1


def test_handles_of_copies_are_closed_at_the_end_of_the_epoch(reader, path):
    iterator = iter(Case(reader).loader())
    next(iterator)
    assert num_open(path) > 1
    for _ in iterator:
        pass
    seconds_until(lambda: is_only_the_users(path))
    assert not reader.file.closed


def test_handles_of_copies_are_closed_when_the_iterator_is_dropped(reader, path):
    iterator = iter(Case(reader).loader())
    next(iterator)
    del iterator
    seconds_until(lambda: is_only_the_users(path))


def test_handles_of_copies_are_closed_by_close(reader, path):
    loader = Case(reader).loader(persistent_workers=True)
    for _ in range(2):
        assert values_of(loader) == list(range(NUM_SAMPLES))
    assert num_open(path) > 1
    loader.close()
    assert is_only_the_users(path)
    assert values_of(loader) == list(range(NUM_SAMPLES))
    loader.close()


def test_handles_of_copies_are_closed_after_an_error(path):
    class Failing(Seeking):
        def __getitem__(self, index):
            if index == 20:
                raise ValueError("20")
            return super().__getitem__(index)

    with path.open("rb") as file:
        loader = Case(Failing(file)).loader()
        with pytest.raises(ValueError, match="20"):
            list(loader)
        seconds_until(lambda: is_only_the_users(path))


def test_a_hundred_epochs_open_no_more_than_one(reader, path):
    loader = Case(reader).loader()
    for _ in range(100):
        next(iter(loader))
    seconds_until(lambda: is_only_the_users(path))


def test_a_copy_begins_where_the_users_own_stands(path):
    """Reading on from a position is what a file of a dataset may be for."""

    class Header(Numbered):
        def __init__(self, file):
            self.file = file
            self.file.seek(5 * RECORD_BYTES)

        def __getitem__(self, index):
            position = self.file.tell()
            value = int(self.file.read(RECORD_BYTES))
            pause()
            self.file.seek(position)
            return value

    with path.open("rb") as file:
        assert values_of(Case(Header(file)).loader()) == [5] * NUM_SAMPLES


def test_a_subset_of_a_dataset_with_a_handle(reader, path):
    subset = Subset(reader, range(0, NUM_SAMPLES, 2))
    assert values_of(Case(subset).loader()) == list(range(0, NUM_SAMPLES, 2))
    seconds_until(lambda: is_only_the_users(path))


# worker_init_fn --------------------------------------------------------------------------------------------


def give_number(number):
    get_worker_info().dataset.number = number


class Numberless(Numbered):
    number = None

    def __init__(self):
        self.array = np.zeros(1000)

    def __getitem__(self, index):
        pause()
        return self.number == get_worker_info().id


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_what_worker_init_fn_sets_is_the_threads_own(isolation):
    dataset = Numberless()
    loader = Case(dataset).loader(worker_init_fn=give_number, isolation=isolation)
    for _ in range(2):
        assert values_of(loader) == [True] * NUM_SAMPLES
        assert "number" not in vars(dataset)


def test_a_file_that_worker_init_fn_opens_is_the_threads_own(path, short_switch_interval):
    """UR-070's first remedy. The user opened these, so the user closes them."""
    opened = []

    def open_file(number):
        get_worker_info().dataset.file = path.open("rb")
        opened.append(get_worker_info().dataset.file)

    dataset = Seeking(None)
    assert values_of(Case(dataset).loader(worker_init_fn=open_file)) == list(range(NUM_SAMPLES))
    assert dataset.file is None
    assert len(set(map(id, opened))) == len(opened)
    for file in opened:
        file.close()
