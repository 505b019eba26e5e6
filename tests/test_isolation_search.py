"""Isolation's search: every kind of handle and of random generator is found, and nothing else is.

That it calls no user code and ends soon is told in test_isolation_search_is_harmless.py.
"""

import collections
import functools
import io
import logging
import random
import sqlite3
import sys
import tarfile
import threading
import types
import zipfile
from contextlib import closing

import av
import h5py
import lmdb
import numpy as np
import PIL.Image
import pytest
import torch
import torchvision
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from torchstage import StageLoader
from torchstage.graph import Graph
from torchstage.search import Search


class Holder(Dataset):
    """A dataset that holds what the test is about."""

    def __init__(self, **held):
        self.__dict__.update(held)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def searched(dataset, collate_fn=None) -> Graph:
    return Search(is_first=True).run(dataset=dataset, collate_fn=collate_fn)


def found(dataset, collate_fn=None) -> str | None:
    """The nearest handle and what it is, None if there is none."""
    handles = searched(dataset, collate_fn).handles
    return f"{handles[0].path} is an open {handles[0].kind}" if handles else None


def found_in(**held) -> str | None:
    return found(Holder(**held))


# Handles ---------------------------------------------------------------------------------------------------


def open_text(folder):
    (folder / "text").touch()
    return (folder / "text").open()


def open_unbuffered(folder):
    (folder / "raw").touch()
    return (folder / "raw").open("rb", buffering=0)


def open_tar(folder):
    return tarfile.open(folder / "tar", "w")


def open_zip(folder):
    return zipfile.ZipFile(folder / "zip", "w")


def open_sqlite(folder):
    return sqlite3.connect(folder / "db")


def open_h5(folder):
    return h5py.File(folder / "h5", "w")


def open_lmdb(folder):
    return lmdb.open(str(folder / "lmdb"))


def make_video(path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 16
        for shade in range(4):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 3), 60 * shade, np.uint8))
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def open_video(folder):
    make_video(folder / "video.mp4")
    return av.open(str(folder / "video.mp4"))


def open_memory(folder):
    return io.BytesIO()


def open_image(folder):
    PIL.Image.new("RGB", (4, 4)).save(folder / "image.png")
    return PIL.Image.open(folder / "image.png")  # not loaded yet: reads its file when it is used


OPENERS = [
    open_text,
    open_unbuffered,
    open_tar,
    open_zip,
    open_sqlite,
    open_h5,
    open_lmdb,
    open_video,
    open_memory,
    open_image,
]


@pytest.mark.parametrize("opener", OPENERS)
def test_a_handle_is_found(opener, tmp_path):
    handle = opener(tmp_path)
    with closing(handle):
        (found,) = searched(Holder(reader=types.SimpleNamespace(handle=handle))).handles
    assert found.path == "dataset.reader.handle"
    assert found.value is handle
    assert found.kind == f"{type(handle).__module__}.{type(handle).__qualname__}"


def test_parts_of_an_hdf5_file_and_of_a_video_count_as_well(tmp_path):
    with h5py.File(tmp_path / "h5", "w") as file:
        assert found_in(group=file.create_dataset("numbers", data=[1, 2]))
    with open_video(tmp_path) as container:
        assert found_in(stream=container.streams.video[0])


def test_a_transaction_of_lmdb_counts_as_well(tmp_path):
    with lmdb.open(str(tmp_path / "lmdb")) as environment, environment.begin() as transaction:
        assert found_in(transaction=transaction)


def test_a_cursor_counts_as_well(tmp_path):
    connection = open_sqlite(tmp_path)
    assert found_in(cursor=connection.cursor())
    connection.close()


@pytest.mark.parametrize("opener", [open_text, open_unbuffered, open_memory])
def test_a_closed_file_is_no_handle(opener, tmp_path):
    file = opener(tmp_path)
    file.close()
    assert found_in(file=file) is None


@pytest.mark.parametrize(
    "opener",
    [open_tar, open_zip],
)
def test_a_closed_archive_is_no_handle(opener, tmp_path):
    archive = opener(tmp_path)
    archive.close()
    assert found_in(archive=archive) is None


@pytest.mark.parametrize("is_lazy", [False, True])
def test_frames_of_a_video_are_decoded_right_from_a_container_for_each_thread(is_lazy, tmp_path):
    """Two threads; each sample seeks and decodes on one container, which was opened before or for the first sample."""
    make_video(tmp_path / "video.mp4")

    class Frames(Holder):
        container = None

        def __getitem__(self, index):
            if self.container is None:
                self.container = av.open(str(tmp_path / "video.mp4"))
            self.container.seek(0)
            frames = list(self.container.decode(video=0))
            return int(frames[index % 4].to_ndarray(format="gray").mean()) // 40

    dataset = Frames()
    if not is_lazy:
        dataset.container = av.open(str(tmp_path / "video.mp4"))
    loader = StageLoader(dataset, batch_size=2, num_workers=2)
    shades = [shade for batch in loader for shade in batch.tolist()]
    assert shades == shades[:4] * 2
    assert len(set(shades[:4])) > 1
    if is_lazy:
        assert dataset.container is None
    else:
        dataset.container.close()


# Where it may be held --------------------------------------------------------------------------------------


class Slotted:
    __slots__ = ("file", "never_set")

    def __init__(self, file):
        self.file = file


GLOBAL_FILE = io.BytesIO()


def reads_a_global(index):
    return GLOBAL_FILE.read(index)


class ReadsAGlobal(Holder):
    def __getitem__(self, index):
        return GLOBAL_FILE.read(index)


class OnTheClass(Holder):
    file = io.BytesIO()


@pytest.mark.parametrize(
    ("words", "hide"),
    [
        ("dataset.a['b'][0]", lambda file: {"a": {"b": [file]}}),
        ("dataset.a[3]", lambda file: {"a": (1, 2, 3, file)}),
        ("dataset.a[999]", lambda file: {"a": [*range(999), file]}),
        ("dataset.a[0]", lambda file: {"a": {file}}),
        ("dataset.a[0]", lambda file: {"a": collections.deque([file])}),
        ("dataset.a.file", lambda file: {"a": Slotted(file)}),
        ("dataset.a.func.__defaults__[0]", lambda file: {"a": functools.partial(lambda x, file=file: x)}),
        ("dataset.a.keywords['file']", lambda file: {"a": functools.partial(print, file=file)}),
        ("dataset.a.a.a.a.a", lambda file: {"a": Holder(a=Holder(a=Holder(a=Holder(a=file))))}),
        (
            "dataset.a.datasets[1].dataset.file",
            lambda file: {"a": ConcatDataset([[1], Subset(Holder(file=file), [0])])},
        ),
        ("dataset.a.write", lambda file: {"a": types.SimpleNamespace(write=file)}),
    ],
)
def test_a_handle_is_found_wherever_it_is_held(words, hide):
    assert found_in(**hide(io.BytesIO())) == f"{words} is an open _io.BytesIO"


@pytest.mark.parametrize(
    ("words", "dataset", "collate_fn"),
    [
        ("collate_fn.<global>.GLOBAL_FILE", Holder(), reads_a_global),
        ("dataset.__getitem__.<global>.GLOBAL_FILE", ReadsAGlobal(), None),
        ("dataset.file", OnTheClass(), None),
        ("dataset.transform.file", Holder(transform=OnTheClass()), None),
        ("dataset", io.BytesIO(), None),
    ],
)
def test_a_handle_of_a_class_or_a_module_is_found(words, dataset, collate_fn):
    assert found(dataset, collate_fn) == f"{words} is an open _io.BytesIO"


def test_what_belongs_to_one_dataset_alone_is_told_from_what_is_everyones():
    """Only what is its own can be copied for a thread."""
    own, of_function, of_class = io.BytesIO(), io.BytesIO(), OnTheClass.file
    dataset = OnTheClass(own=own, function=lambda file=of_function: file, reads=reads_a_global)
    graph = searched(dataset)
    assert {id(found.value) for found in graph.handles} == {*map(id, (own, of_function, of_class, GLOBAL_FILE))}
    assert [graph.is_own(id(file)) for file in (own, of_function, of_class, GLOBAL_FILE)] == [True, True, False, False]


def test_all_holders_of_a_shared_object_are_known():
    """A copy of it has to be put into the copies of all of them."""
    shared = Holder()
    one, other = [shared], {"key": shared}
    graph = searched(Holder(one=one, other=other, itself=shared))
    assert {holder for holder, _ in graph.nodes[id(shared)].holders} >= {id(one), id(other)}
    assert len(graph.nodes[id(shared)].holders) == 3


def test_the_nearest_handle_comes_first():
    far, near = io.BytesIO(), io.BytesIO()
    graph = searched(Holder(far=[[[far]]], near=near))
    assert [found.value for found in graph.handles] == [near, far]
    assert [found.path for found in graph.handles] == ["dataset.near", "dataset.far[0][0][0]"]


# Random generators -----------------------------------------------------------------------------------------


class Dice(random.Random):
    """A user's own."""


GENERATORS = {
    "numpy's generator": lambda: np.random.default_rng(0),
    "numpy's old generator": lambda: np.random.RandomState(0),
    "a bit generator": lambda: np.random.PCG64(0),
    "Python's": lambda: random.Random(0),
    "a user's": lambda: Dice(0),
    "torch's": torch.Generator,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_is_found_and_is_no_handle(name):
    generator = GENERATORS[name]()
    graph = searched(Holder(transform=types.SimpleNamespace(rng=generator)))
    assert [(found.path, found.value) for found in graph.generators] == [("dataset.transform.rng", generator)]
    assert graph.handles == []


@pytest.mark.parametrize(
    "generator", [torch.default_generator, random._inst, np.random.mtrand._rand], ids=["torch", "random", "numpy"]
)
def test_the_process_s_own_generators_are_nobodys(generator):
    """Whoever draws from them is sent to the generators of the sample."""
    graph = searched(Holder(generator=generator))
    assert graph.generators == []
    assert id(generator) not in graph.nodes


# What is no handle -----------------------------------------------------------------------------------------


def a_logger_with_a_file(folder):
    logger = logging.Logger("of a test")
    logger.addHandler(logging.FileHandler(folder / "log", delay=True))
    return logger


def a_memory_map(folder):
    return np.memmap(folder / "map", np.uint8, "w+", shape=(64,))


def a_loaded_image(folder):
    image = open_image(folder)
    image.load()
    return image


def an_image_folder(folder):
    (folder / "images" / "cat").mkdir(parents=True)
    PIL.Image.new("RGB", (4, 4)).save(folder / "images" / "cat" / "1.png")
    steps = [torchvision.transforms.RandomResizedCrop(2), torchvision.transforms.ToTensor()]
    return torchvision.datasets.ImageFolder(folder / "images", torchvision.transforms.Compose(steps))


HARMLESS = {
    "a memory map": a_memory_map,
    "a big list of strings": lambda folder: [f"{number}.jpg" for number in range(100_000)],
    "a tensor": lambda folder: torch.zeros(10),
    "a tensor dataset": lambda folder: TensorDataset(torch.zeros(10)),
    "an array of objects": lambda folder: np.array([None, "a"], dtype=object),
    "a logger": a_logger_with_a_file,
    "standard output": lambda folder: sys.stdout,
    "a printer to standard error": lambda folder: functools.partial(print, file=sys.stderr),
    "a thread": lambda folder: threading.main_thread(),
    "a handler of logs": lambda folder: logging.StreamHandler(sys.stderr),
    "a module": lambda folder: sys,
    "a class": lambda folder: io.BytesIO,
    "a class from h5py": lambda folder: h5py.File,
    "a function from av": lambda folder: av.open,
    "an image in memory": lambda folder: PIL.Image.new("RGB", (4, 4)),
    "a loaded image": a_loaded_image,
    "an image folder": an_image_folder,
    "a lock": lambda folder: threading.Lock(),
    "an event": lambda folder: threading.Event(),
    "a thread's own data": lambda folder: threading.local(),
    "a path": lambda folder: folder,
    "a generator": lambda folder: torch.Generator(),
    "a random state": lambda folder: np.random.default_rng(0),
    "a network": lambda folder: torch.nn.Linear(2, 2),
    "another loader": lambda folder: StageLoader(range(4)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_no_handle_is_seen_in(name, tmp_path):
    assert found_in(held=HARMLESS[name](tmp_path)) is None


def test_a_dataset_of_images_is_shared_in_silence(tmp_path):
    dataset = an_image_folder(tmp_path)
    (image, label), *_ = StageLoader(dataset, num_workers=2)
    assert image.shape == (1, 3, 2, 2)
    assert label.tolist() == [0]


@pytest.mark.parametrize("name", sorted(HARMLESS.keys() - {"a generator", "a random state"}))
def test_no_generator_is_seen_in(name, tmp_path):
    assert searched(Holder(held=HARMLESS[name](tmp_path))).generators == []
