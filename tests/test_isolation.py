"""Isolation: all threads share a dataset; what has one position each has for its own; what cannot be copied is used by
one thread at a time.

Which handles are found where is told in test_isolation_search.py; two loaders at one handle, in
test_isolation_between_loaders.py; what is copied how, in the folder isolation.
"""

import copy
import functools
import pickle
import sqlite3
import threading
from contextlib import closing

import pytest
from crowd import (
    ALL,
    Crowd,
    Lazy,
    LazyByName,
    LazyOfClass,
    Opened,
    Records,
    Reopening,
    open_for_good,
    open_to_copy,
    record_of,
    write_records,
)
from torch.utils.data import Dataset, Subset, default_collate

from torchstage import StageLoader


@pytest.fixture
def path(tmp_path):
    return write_records(tmp_path / "records")


def loader_of(dataset, **arguments) -> StageLoader:
    return StageLoader(dataset, **{"batch_size": 4, "num_workers": 2, **arguments})


def flat(batches):
    return [value for batch in batches for value in batch.tolist()]


def copyable(path):
    return Opened(path, open_to_copy)


def for_good(path):
    return Opened(path, open_for_good)


COPIED = {"opened before": copyable, "opened for the first sample": Lazy}

SERIALISED = {
    r"dataset\.file is an open _io\.BufferedRandom": for_good,
    r"dataset\.file is an open _io\.BufferedReader": LazyOfClass,
    r"belongs to a class": LazyByName,
}


@pytest.mark.parametrize("kind", COPIED)
def test_a_file_is_opened_again_for_each_thread_and_nobody_waits(kind, path):
    with closing(COPIED[kind](path)) as dataset:
        dataset.meets_from = 16
        assert flat(loader_of(dataset)) == ALL
        most, names = dataset.crowd.told()
        assert most == 2
        assert len(names) == 2


def test_the_users_own_file_stays_where_it_is(path):
    with closing(copyable(path)) as dataset:
        own = dataset.file
        own.seek(5)
        for _ in range(2):
            assert flat(loader_of(dataset)) == ALL
        assert dataset.file is own
        assert own.tell() == 5


def test_a_file_that_was_opened_for_the_first_sample_is_not_left_in_the_users_dataset(path):
    dataset = Lazy(path)
    assert flat(loader_of(dataset)) == ALL
    assert dataset.file is None


@pytest.mark.parametrize("words", SERIALISED)
def test_a_dataset_with_what_cannot_be_copied_is_used_by_one_thread_at_a_time(words, path):
    with closing(SERIALISED[words](path)) as dataset:
        with pytest.warns(UserWarning, match=words) as caught:
            assert flat(loader_of(dataset)) == ALL
        assert len(caught) == 1
        most, names = dataset.crowd.told()
        assert most == 1
        assert len(names) == 1


@pytest.mark.parametrize("words", SERIALISED)
def test_the_warning_tells_the_ways_out(words, path):
    with closing(SERIALISED[words](path)) as dataset:
        with pytest.warns(UserWarning, match="so this dataset is used by one thread at a time") as caught:
            next(iter(loader_of(dataset)))
        for way in ("__getitem__", "isolation='shared'", "worker_method='multiprocessing'"):
            assert way in str(caught[0].message).partition("Ways out: ")[2]


@pytest.mark.parametrize("words", SERIALISED)
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_warns_once_however_many_epochs_it_runs(words, persistent, path):
    with closing(SERIALISED[words](path)) as dataset, loader_of(dataset, persistent_workers=persistent) as loader:
        with pytest.warns(UserWarning, match=words) as caught:
            epochs = [flat(loader) for _ in range(3)]
        assert epochs == [ALL] * 3
        assert len(caught) == 1
        assert dataset.crowd.most() == 1


def test_each_loader_warns_for_itself(path):
    with closing(for_good(path)) as dataset:
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"dataset\.file"):
                next(iter(loader_of(dataset)))


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [copyable, for_good, Lazy, LazyOfClass, LazyByName])
def test_where_one_thread_does_everything_there_is_nothing_to_warn_of(num_workers, kind, path):
    with closing(kind(path)) as dataset:
        assert flat(loader_of(dataset, num_workers=num_workers)) == ALL
        if num_workers == 0 and kind is Lazy:
            dataset.file.close()


def test_a_dataset_that_opens_what_it_needs_is_shared(path):
    dataset = Reopening(path)
    dataset.meets_from = 16
    assert flat(loader_of(dataset)) == ALL
    assert dataset.crowd.most() == 2


class Meeting(Dataset):
    """Its later samples wait for each other: they can be made only by two threads at once. Tells whose sample it is."""

    def __init__(self, **held):
        self.__dict__.update(held)
        self.crowd = Crowd()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index >= 4:
            self.crowd.meet()
        return self


def only_one(datasets):
    """Batches are collated to whether they came from this dataset and no copy of it."""
    return set(map(id, datasets))


def test_all_threads_share_a_dataset_without_handles():
    dataset = Meeting()
    assert list(loader_of(dataset, collate_fn=only_one)) == [{id(dataset)}] * 4


def test_shared_means_that_the_user_knows_better(path):
    with open_for_good(path) as file, open_to_copy(path) as other:
        dataset = Meeting(file=file, other=other)
        assert list(loader_of(dataset, collate_fn=only_one, isolation="shared")) == [{id(dataset)}] * 4


def test_serial_means_one_thread_at_a_time_and_no_warning(path):
    dataset = Reopening(path)
    assert flat(loader_of(dataset, isolation="serial")) == ALL
    assert dataset.crowd.most() == 1


def test_serial_holds_from_epoch_to_epoch_and_between_iterators(path):
    dataset = Reopening(path)
    loader = loader_of(dataset, isolation="serial")
    for pair in zip(loader, loader, strict=True):
        assert pair[0].tolist() == pair[1].tolist()
    assert flat(loader) == ALL
    assert dataset.crowd.most() == 1


@pytest.mark.parametrize("isolation", ["", None, "AUTO", "per thread", 1])
def test_an_unknown_isolation_is_refused_with_those_that_are_known(isolation):
    with pytest.raises(ValueError, match="isolation must be one of 'auto', 'shared', 'per_thread', 'serial'"):
        StageLoader(range(4), isolation=isolation)


@pytest.mark.parametrize("isolation", ["auto", "shared", "per_thread", "serial"])
def test_isolation_can_be_read_and_survives_copy_and_pickle(isolation):
    loader = StageLoader(range(4), num_workers=2, isolation=isolation)
    for other in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.isolation == isolation
        assert flat(other) == [0, 1, 2, 3]


def test_isolation_may_be_changed_between_epochs(path):
    dataset = Reopening(path)
    dataset.meets_from = 16
    loader = loader_of(dataset)
    assert flat(loader) == ALL
    assert dataset.crowd.most() == 2
    loader.isolation = "serial"
    dataset.crowd = Crowd()  # in which nobody has met yet
    del dataset.meets_from
    assert flat(loader) == ALL
    assert dataset.crowd.most() == 1
    loader.isolation = "nonsense"
    with pytest.raises(ValueError, match="isolation must be one of"):
        iter(loader)


# What the guard is for -------------------------------------------------------------------------------------


class Racing(Opened):
    """Seek and read with nothing in between but what a thread switch puts there."""

    def __getitem__(self, index):
        file = self.file
        for _ in range(20):
            value = int(record_of(file, index))
            if value != index:
                return value
        return index


def test_with_a_handle_for_each_thread_the_same_dataset_gives_right_data(path, short_switch_interval):
    with closing(Racing(path, open_to_copy)) as dataset:
        loader = loader_of(dataset)
        assert [flat(loader) for _ in range(5)] == [ALL] * 5


def test_one_thread_at_a_time_the_same_dataset_gives_right_data(path, short_switch_interval):
    with closing(Racing(path, open_for_good)) as dataset:
        loader = loader_of(dataset)
        with pytest.warns(UserWarning, match=r"dataset\.file"):
            assert [flat(loader) for _ in range(5)] == [ALL] * 5


# sqlite knows its thread -----------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "records.db"
    connection = sqlite3.connect(path)
    connection.execute("create table records (number integer)")
    connection.executemany("insert into records values (?)", [(number,) for number in ALL])
    connection.commit()
    connection.close()
    return path


class Rows(Records):
    """Connects for the first sample, as one is told to do for worker processes."""

    connection = None

    def read(self, index):
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        return self.connection.execute("select number from records where number = ?", (index,)).fetchone()[0]

    def close(self):
        self.connection.close()


def test_each_thread_has_a_connection_that_it_made_itself(database):
    dataset = Rows(database)
    dataset.meets_from = 16
    assert flat(loader_of(dataset)) == ALL
    assert len(dataset.crowd.told()[1]) == 2
    assert dataset.connection is None


def test_a_connection_made_in_the_main_thread_is_made_again_for_each(database):
    dataset = Rows(database)
    dataset.connection = sqlite3.connect(database)
    dataset.meets_from = 16
    with closing(dataset):
        assert flat(loader_of(dataset)) == ALL
        assert len(dataset.crowd.told()[1]) == 2
        assert dataset.connection.execute("select count(*) from records").fetchone() == (len(ALL),)


def test_a_connection_that_no_thread_here_may_use_fails_loudly(database):
    """It was made in a thread of the user's: not even the loop's own thread may ask it for a copy."""
    dataset = Rows(database)
    may_end, is_made = threading.Event(), threading.Event()

    def connect():
        dataset.connection = sqlite3.connect(database)
        is_made.set()
        may_end.wait(20)
        dataset.connection.close()

    thread = threading.Thread(target=connect)
    thread.start()
    assert is_made.wait(20)
    try:
        iterator = iter(loader_of(dataset))
        with (
            pytest.warns(UserWarning, match=r"dataset\.connection is an open sqlite3\.Connection"),
            pytest.raises(sqlite3.ProgrammingError, match="same thread") as caught,
        ):
            next(iterator)
        assert caught.value.__notes__ == ["torchstage: raised in stage 'fetch', dataset index 0, batch 0"]
    finally:
        may_end.set()
        thread.join()


# Where the handle is held ----------------------------------------------------------------------------------


class Scaled:
    """A transform around another."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, value):
        return self.inner(value)


class Looked:
    """A transform that looks numbers up in a file."""

    def __init__(self, file):
        self.file = file

    def __call__(self, index):
        return int(record_of(self.file, index))

    def collate(self, indices):
        return default_collate([self(index) for index in indices])


class Transformed(Records):
    def __init__(self, transform):
        super().__init__(None)
        self.transform = transform

    def read(self, index):
        return self.transform(index)


def closure_over(file):
    return lambda samples: Looked(file).collate(samples)


def looking(file, samples):
    return Looked(file).collate(samples)


PLACES = {
    r"dataset\.transform\.file": lambda file: (Transformed(Looked(file)), None),
    r"dataset\.transform\.inner\.inner\.file": lambda file: (Transformed(Scaled(Scaled(Looked(file)))), None),
    r"dataset\.transform\[1\]\.file": lambda file: (Transformed(Compose([abs, Looked(file)])), None),
    r"dataset\.dataset\.transform\.file": lambda file: (Subset(Transformed(Looked(file)), ALL), None),
    r"collate_fn\.<closure>\.file": lambda file: (Transformed(int), closure_over(file)),
    r"collate_fn\.args\[0\]": lambda file: (Transformed(int), functools.partial(looking, file)),
    r"collate_fn\.__self__\.file": lambda file: (Transformed(int), Looked(file).collate),
}


class Compose(list):
    """One after another, as torchvision's."""

    def __call__(self, value):
        return functools.reduce(lambda value, transform: transform(value), self, value)


@pytest.mark.parametrize("place", PLACES)
def test_what_cannot_be_copied_is_found_and_its_place_is_named(place, path):
    with open_for_good(path) as file:
        dataset, collate_fn = PLACES[place](file)
        with pytest.warns(UserWarning, match=rf"StageLoader: {place} is an open _io\.BufferedRandom"):
            assert flat(loader_of(dataset, collate_fn=collate_fn)) == ALL
        assert crowd_of(dataset).most() == 1


@pytest.mark.parametrize("place", PLACES)
def test_what_can_be_copied_is_copied_from_there(place, path):
    with open_to_copy(path) as file:
        dataset, collate_fn = PLACES[place](file)
        records = dataset.dataset if isinstance(dataset, Subset) else dataset
        records.meets_from = 16
        assert flat(loader_of(dataset, collate_fn=collate_fn)) == ALL
        assert crowd_of(dataset).most() == 2
        assert file.tell() == 0


def crowd_of(dataset):
    return (dataset.dataset if isinstance(dataset, Subset) else dataset).crowd
