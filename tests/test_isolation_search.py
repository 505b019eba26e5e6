"""Isolation's search: every kind of handle is found, nothing else is, no user code is called, and it ends soon."""

import collections
import functools
import io
import logging
import sqlite3
import sys
import tarfile
import threading
import types
import warnings
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
from torchstage.isolation import Guard


class Holder(Dataset):
    """A dataset that holds what the test is about."""

    def __init__(self, **held):
        self.__dict__.update(held)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


def found(dataset, collate_fn=None) -> str | None:
    """What the guard says it found, None if nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        must_serialise = Guard("auto").must_serialise(dataset, collate_fn, warn=True)
    assert must_serialise == bool(caught)
    return str(caught[0].message) if caught else None


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
        message = found_in(reader=types.SimpleNamespace(handle=handle))
    assert message is not None
    assert message.startswith("StageLoader: dataset.reader.handle")


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


def test_frames_of_a_video_are_decoded_right_behind_the_guard(tmp_path):
    """Opened for the first sample; four threads; each sample seeks and decodes on the one container."""

    class Frames(Holder):
        container = None

        def __getitem__(self, index):
            if self.container is None:
                make_video(tmp_path / "video.mp4")
                self.container = av.open(str(tmp_path / "video.mp4"))
            self.container.seek(0)
            frames = list(self.container.decode(video=0))
            return int(frames[index % 4].to_ndarray(format="gray").mean()) // 40

    dataset = Frames()
    loader = StageLoader(dataset, batch_size=2, num_workers=2)
    with pytest.warns(UserWarning, match=r"dataset\.container is an open av\."):
        shades = [shade for batch in loader for shade in batch.tolist()]
    assert shades == shades[:4] * 2
    assert len(set(shades[:4])) > 1
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
    message = found_in(**hide(io.BytesIO()))
    assert message is not None
    assert message.startswith(f"StageLoader: {words} is an open _io.BytesIO")


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
    message = found(dataset, collate_fn)
    assert message is not None
    assert message.startswith(f"StageLoader: {words} is an open _io.BytesIO")


def test_the_nearest_handle_is_named():
    message = found_in(far=[[[io.BytesIO()]]], near=io.BytesIO())
    assert message is not None
    assert message.startswith("StageLoader: dataset.near is")


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
