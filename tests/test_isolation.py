"""Isolation: a dataset that holds a handle is used by one thread at a time; every other one is shared by all.

Which handles are found where is told in test_isolation_search.py; two loaders at one handle, in
test_isolation_between_loaders.py.
"""

import copy
import functools
import pickle
import sqlite3
import sys
import threading
import time

import pytest
from torch.utils.data import Dataset, Subset, default_collate

from torchstage import StageLoader

PATIENCE_SECONDS = 20.0
RECORD_BYTES = 8
NUM_RECORDS = 64


@pytest.fixture
def path(tmp_path):
    """A file of numbered records."""
    path = tmp_path / "records"
    path.write_bytes(b"".join(b"%8d" % number for number in range(NUM_RECORDS)))
    return path


class Records(Dataset):
    """Reads record by record, and counts how many threads are inside at once."""

    def __init__(self, path):
        self.path = path
        self.most = 0
        self.threads = set()
        self._num_inside = 0
        self._lock = threading.Lock()

    def __len__(self):
        return NUM_RECORDS

    def __getitem__(self, index):
        with self._lock:
            self._num_inside += 1
            self.most = max(self.most, self._num_inside)
            self.threads.add(threading.current_thread().name)
        try:
            time.sleep(0.0002)  # lets others in, if they may
            return int(self.read(index))
        finally:
            with self._lock:
                self._num_inside -= 1


class Opened(Records):
    """Opens its file when it is made."""

    def __init__(self, path):
        super().__init__(path)
        self.file = path.open("rb")

    def read(self, index):
        self.file.seek(index * RECORD_BYTES)
        return self.file.read(RECORD_BYTES)


class Lazy(Records):
    """Opens its file for the first sample."""

    file = None

    def read(self, index):
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(index * RECORD_BYTES)
        return self.file.read(RECORD_BYTES)


class Reopening(Records):
    """Opens and closes its file for each sample, as it should."""

    def read(self, index):
        with self.path.open("rb") as file:
            file.seek(index * RECORD_BYTES)
            return file.read(RECORD_BYTES)


class Meeting(Dataset):
    """Its later samples wait for each other: they can be made only by two threads at once."""

    def __init__(self, **held):
        self.__dict__.update(held)
        self._num_inside = 0
        self._lock = threading.Lock()
        self._have_met = threading.Event()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        with self._lock:
            self._num_inside += 1
            if self._num_inside == 2:
                self._have_met.set()
        if index >= 4:
            assert self._have_met.wait(PATIENCE_SECONDS), "no other thread came"
        with self._lock:
            self._num_inside -= 1
        return index


def loader_of(dataset, **arguments) -> StageLoader:
    return StageLoader(dataset, **{"batch_size": 4, "num_workers": 2, **arguments})


def flat(batches):
    return [value for batch in batches for value in batch.tolist()]


ALL = list(range(NUM_RECORDS))


@pytest.mark.parametrize("kind", [Opened, Lazy])
def test_a_dataset_with_an_open_file_is_used_by_one_thread_at_a_time(kind, path):
    dataset = kind(path)
    with pytest.warns(UserWarning, match=r"dataset\.file is an open _io\.BufferedReader"):
        assert flat(loader_of(dataset)) == ALL
    assert dataset.most == 1
    assert len(dataset.threads) == 1
    dataset.file.close()


def test_the_warning_tells_the_ways_out(path):
    dataset = Opened(path)
    with pytest.warns(UserWarning, match="one thread at a time") as caught:
        next(iter(loader_of(dataset)))
    for way in ("__getitem__", "isolation='shared'", "multiprocessing_context='forkserver'"):
        assert way in str(caught[0].message)
    dataset.file.close()


@pytest.mark.parametrize("kind", [Opened, Lazy])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_warns_once_however_many_epochs_it_runs(kind, persistent, path):
    dataset = kind(path)
    loader = loader_of(dataset, persistent_workers=persistent)
    with pytest.warns(UserWarning, match=r"dataset\.file") as caught:
        epochs = [flat(loader) for _ in range(3)]
    assert epochs == [ALL] * 3
    assert len(caught) == 1
    assert dataset.most == 1
    loader.close()
    dataset.file.close()


def test_each_loader_warns_for_itself(path):
    dataset = Opened(path)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"dataset\.file"):
            next(iter(loader_of(dataset)))
    dataset.file.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_where_one_thread_does_everything_there_is_nothing_to_warn_of(num_workers, path):
    dataset = Opened(path)
    assert flat(loader_of(dataset, num_workers=num_workers)) == ALL
    dataset.file.close()


def test_a_dataset_that_opens_what_it_needs_is_shared(path):
    dataset = Reopening(path)
    assert flat(loader_of(dataset)) == ALL
    assert dataset.most > 1


def test_all_threads_share_a_dataset_without_handles():
    assert flat(loader_of(Meeting())) == list(range(16))


def test_shared_means_that_the_user_knows_better(path):
    with path.open("rb") as file:
        assert flat(loader_of(Meeting(file=file), isolation="shared")) == list(range(16))


def test_serial_means_one_thread_at_a_time_and_no_warning(path):
    dataset = Reopening(path)
    assert flat(loader_of(dataset, isolation="serial")) == ALL
    assert dataset.most == 1


def test_serial_holds_from_epoch_to_epoch_and_between_iterators(path):
    dataset = Reopening(path)
    loader = loader_of(dataset, isolation="serial")
    for pair in zip(loader, loader, strict=True):
        assert pair[0].tolist() == pair[1].tolist()
    assert flat(loader) == ALL
    assert dataset.most == 1


@pytest.mark.parametrize("isolation", ["per_thread", "", None, "AUTO", 1])
def test_an_unknown_isolation_is_refused_with_those_that_are_known(isolation):
    with pytest.raises(ValueError, match="isolation must be one of 'auto', 'shared', 'serial'"):
        StageLoader(range(4), isolation=isolation)


@pytest.mark.parametrize("isolation", ["auto", "shared", "serial"])
def test_isolation_can_be_read_and_survives_copy_and_pickle(isolation):
    loader = StageLoader(range(4), num_workers=2, isolation=isolation)
    for other in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.isolation == isolation
        assert flat(other) == [0, 1, 2, 3]


def test_isolation_may_be_changed_between_epochs(path):
    dataset = Reopening(path)
    loader = loader_of(dataset)
    assert flat(loader) == ALL
    assert dataset.most > 1
    dataset.most = 0
    loader.isolation = "serial"
    assert flat(loader) == ALL
    assert dataset.most == 1
    loader.isolation = "nonsense"
    with pytest.raises(ValueError, match="isolation must be one of"):
        iter(loader)


# What the guard is for -------------------------------------------------------------------------------------


class Racing(Opened):
    """Seek and read with nothing in between but what a thread switch puts there."""

    def __getitem__(self, index):
        file = self.file
        for _ in range(20):
            file.seek(index * RECORD_BYTES)
            value = int(file.read(RECORD_BYTES))
            if value != index:
                return value
        return index


@pytest.fixture
def short_switch_interval():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_without_the_guard_one_handle_gives_wrong_data(path, short_switch_interval):
    dataset = Racing(path)
    try:
        for _ in range(3):
            for _ in range(20):
                try:
                    values = flat(loader_of(dataset, isolation="shared"))
                except ValueError:  # half a number, or none: as wrong as another one
                    return
                if values != ALL:
                    return
        pytest.skip("the race did not show in three tries")
    finally:
        dataset.file.close()


def test_with_the_guard_the_same_dataset_gives_right_data(path, short_switch_interval):
    dataset = Racing(path)
    loader = loader_of(dataset)
    with pytest.warns(UserWarning, match=r"dataset\.file"):
        assert [flat(loader) for _ in range(5)] == [ALL] * 5
    dataset.file.close()


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


def test_a_connection_that_was_made_for_the_first_sample_stays_with_its_thread(database):
    dataset = Rows(database)
    with pytest.warns(UserWarning, match=r"dataset\.connection is an open sqlite3\.Connection"):
        assert flat(loader_of(dataset)) == ALL
    assert len(dataset.threads) == 1


def test_a_connection_made_in_the_main_thread_fails_loudly(database):
    dataset = Rows(database)
    dataset.connection = sqlite3.connect(database)
    iterator = iter(loader_of(dataset))
    with (
        pytest.warns(UserWarning, match=r"dataset\.connection"),
        pytest.raises(sqlite3.ProgrammingError, match="same thread") as caught,
    ):
        next(iterator)
    assert caught.value.__notes__ == ["torchstage: raised in stage 'fetch', dataset index 0, batch 0"]
    dataset.connection.close()


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
        self.file.seek(index * RECORD_BYTES)
        return int(self.file.read(RECORD_BYTES))

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
def test_a_handle_is_found_and_its_place_is_named(place, path):
    with path.open("rb") as file:
        dataset, collate_fn = PLACES[place](file)
        with pytest.warns(UserWarning, match=rf"StageLoader: {place} is an open _io\.BufferedReader"):
            assert flat(loader_of(dataset, collate_fn=collate_fn)) == ALL
        records = dataset.dataset if isinstance(dataset, Subset) else dataset
        assert records.most == 1
