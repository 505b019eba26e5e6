"""Objects that clean up after themselves: a copy that ends must not end what the user's own still needs."""

import gc
import tempfile
from pathlib import Path
from queue import SimpleQueue

import pytest

from .breaking_handles import RECORD_BYTES, Seeking, records
from .breaking_state import Shift
from .stories import NUM_SAMPLES, Case, Numbered, caught_warnings, pause, values_of

RIGHT = list(range(NUM_SAMPLES))


def two_epochs(dataset, isolation="auto"):
    with caught_warnings():
        loader = Case(dataset).loader(isolation=isolation)
        for _ in range(2):
            assert values_of(loader) == RIGHT
    del loader
    gc.collect()


@pytest.mark.parametrize("isolation", ["auto", "per_thread", "serial"])
def test_a_temporary_file_is_still_there(isolation, tmp_path, short_switch_interval):
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        file.write(records())
        file.flush()
        two_epochs(Seeking(file), isolation)
        assert Path(file.name).exists()


class Native:
    """As wrappers of C libraries: frees by number what it was given, when it ends."""

    freed: SimpleQueue = SimpleQueue()

    def __init__(self, number):
        self.number = number
        self.position = 0

    def __del__(self):
        self.freed.put(self.number)

    def read(self, index):
        self.position = index
        pause()
        return self.position


class OnNative(Numbered):
    def __init__(self, number):
        self.native = Native(number)

    def __getitem__(self, index):
        return self.native.read(index)


def num_frees(number):
    """How often it was freed since this was asked for the last time."""
    return [Native.freed.get() for _ in range(Native.freed.qsize())].count(number)


@pytest.mark.parametrize(("number", "isolation"), [(1, "auto"), (2, "per_thread"), (3, "serial")])
def test_what_a_finalizer_frees_is_freed_once(number, isolation, short_switch_interval):
    dataset = OnNative(number)
    two_epochs(dataset, isolation)
    assert num_frees(number) == 0
    assert dataset[3] == 3
    del dataset
    gc.collect()
    assert num_frees(number) == 1


class Closing:
    """The usual reader: closes its file when it ends."""

    def __init__(self, path):
        self.file = path.open("rb")

    def __del__(self):
        self.file.close()

    def read(self, index):
        self.file.seek(index * RECORD_BYTES)
        pause()
        return int(self.file.read(RECORD_BYTES))


class OnClosing(Numbered):
    def __init__(self, path):
        self.reader = Closing(path)
        self.shift = Shift()

    def __getitem__(self, index):
        self.shift(index)
        return self.reader.read(index)


@pytest.mark.parametrize("isolation", ["auto", "per_thread", "serial"])
def test_a_reader_that_closes_its_file_leaves_the_users_own_open(isolation, path, short_switch_interval):
    dataset = OnClosing(path)
    two_epochs(dataset, isolation)
    assert not dataset.reader.file.closed
    assert dataset[3] == 3


class Managed(Numbered):
    """A dataset that ends with a context; its copies have none."""

    def __init__(self, path):
        self.file = path.open("rb")
        self.is_open = True

    def __getitem__(self, index):
        assert self.is_open
        self.file.seek(index * RECORD_BYTES)
        pause()
        return int(self.file.read(RECORD_BYTES))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.is_open = False
        self.file.close()


def test_a_dataset_that_is_a_context(path):
    with Managed(path) as dataset:
        two_epochs(dataset)
    assert dataset.file.closed


def test_a_dataset_is_not_kept_alive(path):
    """Neither it nor its copies outlive the loader."""

    class Counted(Seeking):
        alive: SimpleQueue = SimpleQueue()

        def __del__(self):
            self.alive.put(id(self))

    file = path.open("rb")
    loader = Case(Counted(file)).loader()
    with caught_warnings():
        assert values_of(loader) == RIGHT
        del loader
        gc.collect()
    assert Counted.alive.qsize() >= 1
    assert not [held for held in gc.get_objects() if type(held) is Counted]
    file.close()
