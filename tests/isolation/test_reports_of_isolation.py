"""Reports about what threads share: what went wrong for users of other loaders, tried on this one.

Each test cites the report that it answers. UR-076 is also in test_reports_of_use.py.
"""

import functools
import sqlite3
import threading
import time
from contextlib import nullcontext

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from torchstage import StageLoader

from .breaking import STORIES
from .breaking_handles import Frames, Rows, write_rows, write_video
from .stories import NUM_SAMPLES, Case, Numbered, caught_warnings, pause, values_of

NUM_MANY = 5_000  # samples, where a report asks for many


# UR-023: a helper thread that set the number of torch's threads made the whole process single-threaded ---------


def seconds_of_a_product():
    """The fastest of a few: what others do to the machine is not the question."""
    matrix = torch.rand(700, 700)

    def once():
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        return time.perf_counter() - begin

    return min(once() for _ in range(5))


class OnProducts(Numbered):
    def __getitem__(self, index):
        matrix = torch.ones(32, 32)
        return (matrix @ matrix)[0, 0].item(), torch.get_num_threads()


@pytest.mark.timing
@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_ur_023_the_number_of_torchs_threads_stays(isolation):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = seconds_of_a_product()
        for _ in range(2):
            for samples in Case(OnProducts()).loader(isolation=isolation):
                assert [product for product, _ in samples] == [32.0, 32.0]
                assert torch.get_num_threads() == 2
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
        assert seconds_of_a_product() < 3 * alone  # on one core of two it takes twice as long: a rough check
    finally:
        torch.set_num_threads(before)


# UR-031: parameters of one sample, used for another -----------------------------------------------------------


class RandomCrop:
    """Draws into ``params``, waits a little, applies them."""

    def __init__(self):
        self.params = None

    def __call__(self, index):
        drawn = self.params = (int(torch.randint(1000, ())), index)
        if index % 50 == 0:
            pause()
        return drawn == self.params, self.params[1]


class Patches(Numbered):
    def __init__(self):
        self.transform = RandomCrop()

    def __len__(self):
        return NUM_MANY

    def __getitem__(self, index):
        return index, *self.transform(index)


@pytest.mark.parametrize("isolation", ["auto", "per_thread", "serial"])
def test_ur_031_no_sample_is_made_with_anothers_parameters(isolation, short_switch_interval):
    num_samples = 0
    for samples in Case(Patches()).loader(num_workers=8, batch_size=50, isolation=isolation):
        for index, is_the_same, used in samples:
            assert is_the_same
            assert used == index
            num_samples += 1
    assert num_samples == NUM_MANY


# UR-035: the modes of the thread that iterates ----------------------------------------------------------------


class Layered(Numbered):
    """A small network with weights that want gradients, in each sample; with a counter, so that it is copied."""

    def __init__(self, is_counting):
        self.network = torch.nn.Linear(4, 4)
        self.is_counting = is_counting
        self.count = 0

    def __getitem__(self, index):
        if self.is_counting:
            self.count += 1
        return self.network(torch.full((4,), float(index)))


@pytest.mark.parametrize("is_counting", [False, True])
@pytest.mark.parametrize(
    ("mode", "has_graph", "dtype"),
    [
        (nullcontext, True, torch.float32),
        (torch.no_grad, False, torch.float32),
        (torch.inference_mode, False, torch.float32),
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), True, torch.bfloat16),
    ],
)
def test_ur_035_threads_take_the_modes_of_iter(mode, has_graph, dtype, is_counting):
    dataset = Layered(is_counting)
    with mode():
        for batch in StageLoader(dataset, batch_size=4, num_workers=4):
            assert (batch.grad_fn is not None) == has_graph
            assert batch.dtype == dtype
    assert all(weight.grad is None for weight in dataset.network.parameters())


# UR-051: lazily opened images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["auto", "serial", "per_thread"])
def test_ur_051_lazily_opened_images_that_indices_share(isolation, tmp_path, short_switch_interval):
    told = STORIES["lazily_opened_images"]
    with told.opened(tmp_path) as case, caught_warnings():
        loader = case.loader(num_workers=8, isolation=isolation)
        for _ in range(3):
            assert values_of(loader) == told.all_right()


# UR-068: an HDF5 file opened before the workers start -----------------------------------------------------------


class Checksums(Numbered):
    def __init__(self, path):
        self.file = h5py.File(path)

    def __getitem__(self, index):
        return float(np.sum(self.file["rows"][index]))

    def close(self):
        self.file.close()


@pytest.mark.parametrize("isolation", ["auto", "serial", "per_thread"])
@pytest.mark.parametrize("num_workers", [1, 8])
def test_ur_068_every_row_of_an_hdf5_file_is_right(isolation, num_workers, tmp_path, short_switch_interval):
    write_rows(tmp_path / "rows.h5")
    dataset = Checksums(tmp_path / "rows.h5")
    with caught_warnings():
        loader = Case(dataset).loader(num_workers=num_workers, isolation=isolation, shuffle=True)
        for _ in range(5):
            assert sorted(values_of(loader)) == [4.0 * index for index in range(NUM_SAMPLES)]
    assert dataset.file  # the user's own is still open
    dataset.close()


# UR-070: a connection of sqlite made in another thread ----------------------------------------------------------


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "records.db"
    connection = sqlite3.connect(path)
    connection.execute("create table records (place integer, number integer)")
    connection.executemany("insert into records values (?, ?)", [(index, 3 * index) for index in range(NUM_SAMPLES)])
    connection.commit()
    connection.close()
    return path


RIGHT_ROWS = [3 * index for index in range(NUM_SAMPLES)]


def test_ur_070_a_connection_made_in_the_consumers_thread(database):
    """What worked with num_workers=0 works in threads."""
    dataset = Rows(database)
    loader = Case(dataset).loader(num_workers=0)
    assert values_of(loader) == RIGHT_ROWS
    assert values_of(Case(dataset).loader()) == RIGHT_ROWS
    assert dataset[1] == 3
    dataset.close()


def test_ur_070_the_error_where_it_is_shared_names_the_sample(database):
    dataset = Rows(database)
    with pytest.raises(sqlite3.ProgrammingError, match="same thread") as caught:
        list(Case(dataset).loader(isolation="shared"))
    assert "dataset index" in caught.value.__notes__[0]
    dataset.close()


def test_ur_070_worker_init_fn_connects_once_in_each_thread(database):
    connections = []

    def connect(number):
        get_worker_info().dataset.connection = sqlite3.connect(database, check_same_thread=False)
        connections.append(get_worker_info().dataset.connection)

    dataset = Rows(database)
    own = dataset.connection
    assert values_of(Case(dataset).loader(worker_init_fn=connect)) == RIGHT_ROWS
    assert dataset.connection is own
    for connection in [own, *connections]:
        connection.close()


def test_ur_070_a_connection_made_for_the_first_sample(database):
    class Lazily(Rows):
        connection = None

        def __init__(self, path):
            self.path = path

        def __getitem__(self, index):
            if self.connection is None:
                self.connection = sqlite3.connect(self.path)
            return super().__getitem__(index)

    with caught_warnings():
        assert values_of(Case(Lazily(database)).loader()) == RIGHT_ROWS


# UR-071: a cache of decoders -----------------------------------------------------------------------------------


class CachedFrames(Numbered):
    """Decoders by path, in a cache of each dataset."""

    def __init__(self, path):
        self.path = path
        self.decoders = {}

    def __getitem__(self, index):
        if self.path not in self.decoders:
            self.decoders[self.path] = Frames(self.path)
        return self.decoders[self.path][index]

    def close(self):
        for decoder in self.decoders.values():
            decoder.close()


decoder_of = functools.lru_cache(maxsize=4)(Frames)


class FramesOfTheModule(Numbered):
    """Decoders by path, in a cache of the module."""

    def __init__(self, path):
        self.path = path
        decoder_of(path)

    def __getitem__(self, index):
        return decoder_of(self.path)[index]

    def close(self):
        decoder_of(self.path).close()
        decoder_of.cache_clear()


@pytest.mark.parametrize("kind", [CachedFrames, FramesOfTheModule])
def test_ur_071_frames_are_those_of_one_thread(kind, tmp_path):
    write_video(tmp_path / "video.mkv")
    dataset = kind(tmp_path / "video.mkv")
    with caught_warnings():
        loader = Case(dataset).loader(num_workers=8, shuffle=True)
        for _ in range(2):
            assert sorted(values_of(loader)) == [5 * index for index in range(NUM_SAMPLES)]
    dataset.close()


# UR-076: worker info, where each thread has a copy ---------------------------------------------------------------


class Asking(Numbered):
    def __init__(self):
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        info = get_worker_info()
        return info.id, info.num_workers, info.seed, info.dataset is self


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_ur_076_worker_info_of_threads_with_copies(isolation):
    """Eight threads, a DataLoader and the main thread ask at once; each thread's dataset is its copy."""
    processes = DataLoader(Asking(), batch_size=8, num_workers=2, collate_fn=list)
    threads = Case(Asking()).loader(num_workers=8, batch_size=8, isolation=isolation)
    for ours, theirs in zip(threads, processes, strict=True):
        assert get_worker_info() is None
        assert {num_workers for _, num_workers, _, _ in ours} == {8}
        assert {num_workers for _, num_workers, _, _ in theirs} == {2}
        assert all(is_its_own for _, _, _, is_its_own in ours)
        assert all(0 <= number < 8 for number, _, _, _ in ours)
        assert len({seed - number for number, _, seed, _ in ours}) == 1
    assert get_worker_info() is None
