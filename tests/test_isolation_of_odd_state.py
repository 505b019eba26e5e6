"""State in odd places: every sample must come out as with one thread, copied or one at a time, and what is the user's
must stay as it was. Each dataset keeps something for a moment and uses it after a pause in which others run."""

import gzip
import io
import mmap
import shutil
import sqlite3
import tempfile
import time
import warnings
import weakref
from collections import OrderedDict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from torchstage import StageLoader, crew

NUM_SAMPLES = 48


def pause():
    time.sleep(0.0005)


class Base(Dataset):
    def __len__(self):
        return NUM_SAMPLES


class Transform:
    def __init__(self, by):
        self.by = by
        self.value = None

    def __call__(self, value):
        self.value = value + self.by
        pause()
        return self.value


class OrderedTransforms(Base):
    def __init__(self):
        self.transforms = OrderedDict(a=Transform(1), b=Transform(-1))

    def __getitem__(self, index):
        for transform in self.transforms.values():
            index = transform(index)
        return index


class RecentlyUsed(Base):
    """A cache that throws away what was not used for long."""

    def __init__(self):
        self.cache = OrderedDict((key, key) for key in range(3))

    def __getitem__(self, index):
        self.cache[index] = index
        self.cache.move_to_end(index)
        pause()
        if len(self.cache) > 3:
            self.cache.popitem(last=False)
        return self.cache[index]


class AsKeys(Base):
    def __init__(self):
        self.chances = {Transform(0): 1.0}

    def __getitem__(self, index):
        return next(iter(self.chances))(index)


class Views(Base):
    def __init__(self):
        self.canvas = np.zeros((2, 2))
        self.tiles = [self.canvas[0], self.canvas[1]]

    def __getitem__(self, index):
        self.tiles[0][:] = index
        pause()
        return int(self.canvas[0, 0])


class ArrayAndTensor(Base):
    def __init__(self):
        self.array = np.zeros(4)
        self.tensor = torch.from_numpy(self.array)

    def __getitem__(self, index):
        self.array[:] = index
        pause()
        return int(self.tensor[0])


class Bytes(Base):
    def __init__(self):
        self.buffer = bytearray(1)

    def __getitem__(self, index):
        self.buffer[0] = index
        pause()
        return self.buffer[0]


class Pending(Base):
    """Looks unchanged after one sample, and grown after none."""

    def __init__(self):
        self.params = {}

    def __getitem__(self, index):
        self.params["angle"] = index
        pause()
        return self.params["angle"]


class Slots:
    __slots__ = ("at",)

    def __init__(self):
        self.at = 0


class InSlots(Base):
    def __init__(self):
        self.state = Slots()

    def __getitem__(self, index):
        self.state.at = index
        pause()
        return self.state.at


class OfTheClass(Base):
    state = {"at": 0}  # noqa: RUF012  # the fault that is tested

    def __getitem__(self, index):
        self.state["at"] = index
        pause()
        return self.state["at"]


class SetOnTheClass(Base):
    at = 0

    def __getitem__(self, index):
        type(self).at = index
        pause()
        return self.at


class Counter:
    def __init__(self):
        self.at = 0


COUNTER = Counter()


class InAGlobal(Base):
    def __getitem__(self, index):
        COUNTER.at = index
        pause()
        return COUNTER.at


class Child:
    def __init__(self, parent):
        self.parent = weakref.ref(parent)

    def write(self, value):
        self.parent().value = value


class BackReference(Base):
    def __init__(self):
        self.value = None
        self.child = Child(self)

    def __getitem__(self, index):
        self.child.write(index)
        pause()
        return self.value


class Bounded(Base):
    def __init__(self):
        self.last = deque([0], maxlen=1)

    def __getitem__(self, index):
        self.last.append(index)
        pause()
        return self.last[0]


class Slow(Base):
    """The first sample takes longer than the others are kept out for, which is a tenth of a second here."""

    def __init__(self):
        self.at = None

    def __getitem__(self, index):
        self.at = (index,)
        if index == 0:
            time.sleep(0.3)
        pause()
        return self.at[0]


class Failing(Base):
    """The first samples fail."""

    def __init__(self):
        self.at = np.zeros(3)

    def __getitem__(self, index):
        self.at[:] = index
        pause()
        if index < 3:
            raise LookupError(index)
        return int(self.at[0])


STORIES = [
    OrderedTransforms, RecentlyUsed, AsKeys, Views, ArrayAndTensor, Bytes, Pending, InSlots, OfTheClass, SetOnTheClass,
    InAGlobal, BackReference, Bounded, Slow,
]  # fmt: skip


def samples_of(dataset, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* used by one thread at a time")
        return [int(sample) for sample in StageLoader(dataset, None, num_workers=3, worker_method="thread", **options)]


@pytest.mark.parametrize("kind", STORIES)
def test_every_sample_is_as_with_one_thread(kind, monkeypatch):
    if kind is Slow:
        monkeypatch.setattr(crew, "FIRST_SAMPLE_SECONDS", 0.1)
    dataset = kind()
    for _ in range(2):
        assert samples_of(dataset) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("kind", [Pending, RecentlyUsed, Bounded, Bytes, Views, InSlots])
def test_it_breaks_in_threads_that_share(kind):
    def breaks():
        try:
            return samples_of(kind(), isolation="shared") != list(range(NUM_SAMPLES))
        except KeyError:
            return True

    assert any(breaks() for _ in range(20))


def test_samples_that_fail_end_no_trial():
    iterator, got = iter(StageLoader(Failing(), None, num_workers=3, worker_method="thread")), []
    for index in range(NUM_SAMPLES):
        if index < 3:
            with pytest.raises(LookupError):
                next(iterator)
        else:
            got.append(int(next(iterator)))
    assert got == list(range(3, NUM_SAMPLES))


def test_an_ordered_dict_of_the_users_keeps_its_order():
    dataset = RecentlyUsed()
    samples_of(dataset)
    assert list(dataset.cache) == list(dataset.cache.keys()) == [0, 1, 2]


def test_memory_that_processes_share_is_shared():
    class Counts(Base):
        def __init__(self):
            self.seen = torch.zeros(NUM_SAMPLES).share_memory_()

        def __getitem__(self, index):
            self.seen[index] += 1
            return index

    dataset = Counts()
    samples_of(dataset)
    assert dataset.seen.sum() == NUM_SAMPLES


class Cleans(Base):
    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.at = None

    def __getitem__(self, index):
        self.at = (index,)
        pause()
        return self.at[0]

    def __del__(self):
        shutil.rmtree(self.folder)


def test_a_finalizer_of_the_users_does_not_run_for_copies():
    dataset = Cleans()
    with pytest.warns(UserWarning, match="__del__"):
        got = [int(sample) for sample in StageLoader(dataset, None, num_workers=3, worker_method="thread")]
    assert got == list(range(NUM_SAMPLES))
    assert Path(dataset.folder).exists()


# Handles that look like others -----------------------------------------------------------------------------


class Read(Base):
    """Records of eight bytes."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, index):
        self.file.seek(8 * index)
        pause()
        return int(self.file.read(7))


CONTENT = "".join(f"{number:07}\n" for number in range(NUM_SAMPLES))


@pytest.mark.parametrize(
    "opened",
    [
        lambda path: io.BufferedReader(gzip.GzipFile(path, "rb")),
        lambda path: io.TextIOWrapper(gzip.GzipFile(path, "rb")),
        lambda path: gzip.GzipFile(path, "rb"),
        lambda path: io.BytesIO(CONTENT.encode()),
        lambda path: io.StringIO(CONTENT),
    ],
    ids=["buffered gzip", "text gzip", "gzip", "bytes", "text"],
)
def test_a_file_is_read_through_all_that_is_around_it(opened, tmp_path):
    path = tmp_path / "numbers.gz"
    path.write_bytes(gzip.compress(CONTENT.encode()))
    with opened(path) as file:
        assert samples_of(Read(file)) == list(range(NUM_SAMPLES))


def test_a_map_that_is_read_by_position(tmp_path):
    path = tmp_path / "numbers"
    path.write_text(CONTENT)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert samples_of(Read(mapped)) == list(range(NUM_SAMPLES))


def test_a_connection_that_converts(tmp_path):
    class Converted(Base):
        def __init__(self, connection):
            self.connection = connection

        def __getitem__(self, index):
            return self.connection.execute("SELECT n FROM t WHERE n = ?", (index,)).fetchone()[0]

    sqlite3.register_converter("halved", lambda data: int(data) // 2)
    try:
        types = sqlite3.PARSE_DECLTYPES
        connection = sqlite3.connect(tmp_path / "db", detect_types=types, check_same_thread=False)
        connection.execute("CREATE TABLE t (n halved)")
        connection.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(NUM_SAMPLES)])
        connection.commit()
        assert samples_of(Converted(connection)) == [number // 2 for number in range(NUM_SAMPLES)]
        connection.close()
    finally:
        sqlite3.converters.pop("HALVED", None)
