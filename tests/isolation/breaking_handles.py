"""Datasets that hold something which is open. Real files; a pause where a thread must not be interrupted."""

import gzip
import io
import mmap
import os
import sqlite3
import tarfile
import zipfile
from functools import cache

import av
import h5py
import lmdb
import numpy as np
import PIL.Image

from .stories import NUM_SAMPLES, Numbered, pause, story

RECORD_BYTES = 8
MEMBER_BYTES = 100_000  # far above every buffer: each read of a member seeks again and again
NUM_IMAGES = 6
IMAGE_PIXELS = 700  # on a side
CROP = (100, 500, 400, 690)


def records() -> bytes:
    """Numbered records, one a line."""
    return b"".join(b"%7d\n" % number for number in range(NUM_SAMPLES))


def as_it_is(index):
    return index


class Seeking(Numbered):
    """Seek and read on one handle, whatever it is."""

    def __init__(self, file):
        self.file = file

    def __getitem__(self, index):
        self.file.seek(index * RECORD_BYTES)
        pause()
        return int(self.file.read(RECORD_BYTES))

    def close(self):
        self.file.close()


@story(as_it_is, "dataset.file")
def a_binary_file(folder):
    (folder / "records").write_bytes(records())
    return Seeking((folder / "records").open("rb"))


@story(as_it_is, "dataset.file")
def an_unbuffered_file(folder):
    (folder / "records").write_bytes(records())
    return Seeking((folder / "records").open("rb", buffering=0))


@story(as_it_is, "dataset.file")
def a_text_file(folder):
    (folder / "records.txt").write_bytes(records())
    return Seeking((folder / "records.txt").open())


@story(as_it_is, "dataset.file")
def a_gzip_file(folder):
    with gzip.open(folder / "records.gz", "wb") as file:
        file.write(records())
    return Seeking(gzip.open(folder / "records.gz"))  # the dataset closes it


@story(as_it_is, "dataset.file")
def bytes_in_memory(folder):
    return Seeking(io.BytesIO(records()))


@story(as_it_is, "dataset.file", way="either")
def a_memory_map_with_a_position(folder):
    (folder / "records").write_bytes(records())
    with (folder / "records").open("rb") as file:
        return Seeking(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class OpenedForTheFirst(Numbered):
    """Opens its file for the first sample, as one is told to do for worker processes."""

    file = None

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.path.open("rb")
        file = self.file
        file.seek(index * RECORD_BYTES)
        pause()
        return int(file.read(RECORD_BYTES))

    def close(self):
        if self.file is not None:
            self.file.close()


@story(as_it_is, "dataset.file")
def a_file_opened_for_the_first_sample(folder):
    (folder / "records").write_bytes(records())
    return OpenedForTheFirst(folder / "records")


class Readers(Numbered):
    """A reader for each file, made when it is first needed: the dict grows, and what is in it has a position."""

    def __init__(self, path):
        self.path = path
        self.readers = {}

    def __getitem__(self, index):
        if self.path not in self.readers:
            self.readers[self.path] = Seeking(self.path.open("rb"))
        return self.readers[self.path][index]

    def close(self):
        for reader in self.readers.values():
            reader.close()


@story(as_it_is, "readers")
def a_dict_of_readers(folder):
    (folder / "records").write_bytes(records())
    return Readers(folder / "records")


class ZipMember(Seeking):
    """One member of an archive, opened once. (ZipFile itself looks after threads that read different members.)"""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path)
        super().__init__(self.archive.open("records"))

    def close(self):
        super().close()
        self.archive.close()


@story(as_it_is, "dataset.", way="either")
def a_zip_member(folder):
    with zipfile.ZipFile(folder / "records.zip", "w") as archive:
        archive.writestr("records", records())
    return ZipMember(folder / "records.zip")


class TarMembers(Numbered):
    def __init__(self, path):
        self.archive = tarfile.open(path)  # noqa: SIM115  # closed by close

    def __getitem__(self, index):
        data = self.archive.extractfile(f"{index}.bin").read()
        return len(data), min(data), max(data)

    def close(self):
        self.archive.close()


@story(lambda index: (MEMBER_BYTES, index, index), "dataset.archive")
def a_tar_archive(folder):
    with tarfile.open(folder / "members.tar", "w") as archive:
        for index in range(NUM_SAMPLES):
            member = tarfile.TarInfo(f"{index}.bin")
            member.size = MEMBER_BYTES
            archive.addfile(member, io.BytesIO(bytes([index]) * MEMBER_BYTES))
    return TarMembers(folder / "members.tar")


class Rows(Numbered):
    """Rows of a database, through a connection that was made in the consumer's thread."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path)

    def __getitem__(self, index):
        return self.connection.execute("select number from records where place = ?", (index,)).fetchone()[0]

    def close(self):
        self.connection.close()


@story(lambda index: 3 * index, "dataset.connection")
def a_sqlite_connection(folder):
    dataset = Rows(folder / "records.db")
    dataset.connection.execute("create table records (place integer, number integer)")
    rows = [(index, 3 * index) for index in range(NUM_SAMPLES)]
    dataset.connection.executemany("insert into records values (?, ?)", rows)
    dataset.connection.commit()
    return dataset


class H5Rows(Numbered):
    """h5py takes one call at a time; what is between two calls, it does not protect."""

    def __init__(self, path):
        self.file = h5py.File(path)
        self.rows = self.file["rows"]
        self.buffer = np.full(4, -1.0)

    def __getitem__(self, index):
        self.rows.read_direct(self.buffer, np.s_[index])
        pause()
        return self.buffer.tolist()

    def close(self):
        self.file.close()


def write_rows(path):
    with h5py.File(path, "w") as file:
        file["rows"] = np.repeat(np.arange(float(NUM_SAMPLES)), 4).reshape(-1, 4)


def four_times(index):
    return [float(index)] * 4


@story(four_times, "dataset.")
def an_hdf5_file(folder):
    write_rows(folder / "rows.h5")
    return H5Rows(folder / "rows.h5")


class H5Reopened(Numbered):
    """Opens and closes its file for each sample, but keeps it on itself."""

    file = None

    def __init__(self, path):
        self.path = path

    def __getitem__(self, index):
        self.file = h5py.File(self.path)
        pause()
        row = self.file["rows"][index]
        self.file.close()
        return row.tolist()


@story(four_times, "dataset.file")
def an_hdf5_file_opened_for_each_sample(folder):
    write_rows(folder / "rows.h5")
    return H5Reopened(folder / "rows.h5")


class LmdbCursor(Numbered):
    def __init__(self, path):
        self.environment = lmdb.open(str(path), readonly=True, lock=False)
        self.transaction = self.environment.begin()
        self.cursor = self.transaction.cursor()

    def __getitem__(self, index):
        self.cursor.set_key(b"%d" % index)
        pause()
        return int(self.cursor.value())

    def close(self):
        self.cursor.close()
        self.transaction.abort()
        self.environment.close()


@story(lambda index: 5 * index, "dataset.", way="serial")
def an_lmdb_cursor(folder):
    with lmdb.open(str(folder / "lmdb")) as environment, environment.begin(write=True) as transaction:
        for index in range(NUM_SAMPLES):
            transaction.put(b"%d" % index, b"%d" % (5 * index))
    return LmdbCursor(folder / "lmdb")


class Frames(Numbered):
    """One container, kept open: each sample seeks and decodes."""

    def __init__(self, path):
        self.container = av.open(str(path))
        self.stream = self.container.streams.video[0]

    def __getitem__(self, index):
        start = index * int(1 / (10 * self.stream.time_base))  # ten frames a second
        self.container.seek(start, stream=self.stream)
        pause()
        for frame in self.container.decode(self.stream):
            if frame.pts >= start:
                return int(frame.to_ndarray(format="gray").max())
        raise ValueError(f"no frame {index}")

    def close(self):
        self.container.close()


def write_video(path):
    """Frame number k is all of shade 5 k, without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=10)
        stream.width = stream.height = 32
        stream.pix_fmt = "gray"
        for index in range(NUM_SAMPLES):
            shade = np.full((32, 32), 5 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade, format="gray")))
        container.mux(stream.encode())


@story(lambda index: 5 * index, "dataset.", way="either", may_crash=True)
def a_cached_video(folder):
    write_video(folder / "video.mkv")
    return Frames(folder / "video.mkv")


@cache
def pixels(number):
    """Noise: it takes long to decode."""
    return np.random.default_rng(number).integers(0, 256, (IMAGE_PIXELS, IMAGE_PIXELS), np.uint8)


class LazyImages(Numbered):
    """UR-051: images that Pillow opened and did not read yet; several indices share one."""

    def __init__(self, paths):
        self.images = [PIL.Image.open(path) for path in paths]

    def __getitem__(self, index):
        return int(np.asarray(self.images[index % NUM_IMAGES].crop(CROP)).sum())

    def close(self):
        for image in self.images:
            image.close()


def sum_of_crop(index):
    left, upper, right, lower = CROP
    return int(pixels(index % NUM_IMAGES)[upper:lower, left:right].sum())


@story(sum_of_crop, "dataset.images", may_crash=True)
def lazily_opened_images(folder):
    paths = [folder / f"{number}.png" for number in range(NUM_IMAGES)]
    for number, path in enumerate(paths):
        PIL.Image.fromarray(pixels(number)).save(path, compress_level=1)
    return LazyImages(paths)


class RawDescriptor(Numbered):
    """An integer to everybody who looks."""

    def __init__(self, path):
        self.descriptor = os.open(path, os.O_RDONLY)

    def __getitem__(self, index):
        os.lseek(self.descriptor, index * RECORD_BYTES, os.SEEK_SET)
        pause()
        return int(os.read(self.descriptor, RECORD_BYTES))

    def close(self):
        os.close(self.descriptor)


@story(as_it_is)
def a_descriptor(folder):
    (folder / "records").write_bytes(records())
    return RawDescriptor(folder / "records")
