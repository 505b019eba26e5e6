"""Files: memory that shows a file is mapped again in a process, never copied; all else is copied as ever."""

import mmap
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from lending import sent

from torchstage.executors import files as files_module
from torchstage.executors.files import Files
from torchstage.executors.parcel import pack
from torchstage.executors.slots import Shared

NUM = 100_000
ROW = np.dtype([("id", "<u4"), ("at", "<f8", (2,))])


def opened(packed):
    """As a process opens it."""
    return Shared.open(None if packed.fd is None else os.dup(packed.fd), sent(packed.parcel))


def shows(value, path):
    """Whether the array's or tensor's memory is a map of that file."""
    address = value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.endswith(str(path))
    return False


def unwarned(array):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has no tensors that cannot be written to
        return torch.from_numpy(array)


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens of a user.bin"
    np.arange(NUM, dtype=np.uint16).tofile(path)
    return path


VIEWS = {
    "whole": lambda whole: whole,
    "slice": lambda whole: whole[7:50_001],
    "single": lambda whole: whole[5:6],
    "strided": lambda whole: whole[3::7],
    "backwards": lambda whole: whole[::-1],
    "transposed": lambda whole: whole.reshape(100, 1000).T[5:, ::-3],
    "fortran": lambda whole: np.ndarray((10, 10), np.uint16, whole.base, order="F"),
    "repeated": lambda whole: np.broadcast_to(whole[:9], (4, 9)),
    "bytes": lambda whole: whole.view(np.uint8)[1:-1].view(np.int16),
    "plain": lambda whole: np.asarray(whole)[10:90_000],
    "no dimension": lambda whole: whole[5:6].reshape(()),
    "memoryview": lambda whole: np.frombuffer(memoryview(whole._mmap)[16:], np.int64),
}


@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize("view", VIEWS)
def test_an_array_of_a_file_shows_the_same_part_of_it_again(tokens, mode, view):
    array = VIEWS[view](np.memmap(tokens, np.uint16, mode))
    packed = Shared.of({"array": array})
    assert packed.fd is None, "nothing was copied"
    found = opened(packed)["array"]
    assert shows(found, tokens)
    assert (type(found), found.dtype, found.shape, found.strides) == (
        type(array),
        array.dtype,
        array.shape,
        array.strides,
    )
    assert found.flags.writeable == array.flags.writeable == (mode == "r+" and view != "repeated")
    assert np.array_equal(found, array)


def test_a_memmap_is_still_one_that_can_be_flushed(tokens):
    whole = np.memmap(tokens, np.uint16, "r+", offset=6)
    found = opened(Shared.of(whole))
    assert (found.filename, found.offset, found.mode) == (whole.filename, 6, "r+")
    found[3] = 77
    found.flush()
    assert whole[3] == 77, "the file is shared"
    assert np.fromfile(tokens, np.uint16)[6] == 77


def test_rows_of_an_npy_file_and_records_arrive(tmp_path):
    rows = np.zeros(500, ROW)
    rows["id"], rows["at"] = np.arange(500), 3.5
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    value = {"rows": mapped, "ids": mapped["id"], "records": mapped.view(np.recarray), "empty": mapped[:0]}
    packed = Shared.of(value)
    assert packed.fd is None
    found = opened(packed)
    for name, part in value.items():
        assert (type(found[name]), found[name].dtype, found[name].strides) == (type(part), part.dtype, part.strides)
        assert np.array_equal(found[name], part)
    assert np.array_equal(found["records"].at, rows["at"])


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_tensors_of_a_file_show_it_again(tokens, mode):
    whole = np.memmap(tokens, np.uint16, mode)
    value = {
        "tensor": unwarned(whole.view(np.int16)),
        "strided": unwarned(whole.view(np.int16)[4:])[::3],
        "one": unwarned(whole[8:9].view(np.int16)),
        "unaligned": unwarned(whole[3:-1].view(np.uint8)[1:9]).view(torch.int32),
    }
    packed = Shared.of(value)
    assert packed.fd is None
    found = opened(packed)
    for name, part in value.items():
        assert shows(found[name], tokens), name
        assert torch.equal(found[name], part)
        assert found[name].stride() == part.stride()


def test_torchs_own_maps_are_shared_where_the_file_is(tokens):
    shared = torch.from_file(str(tokens), shared=True, size=NUM, dtype=torch.int16)
    storage = torch.UntypedStorage.from_file(str(tokens), True, 2 * NUM)
    private = torch.from_file(str(tokens), shared=False, size=NUM, dtype=torch.int16)
    private[0] = 9
    found = opened(Shared.of([shared, private, storage]))
    assert [shows(part, tokens) for part in found[:2]] == [True, False]
    found[0][5] = 1234
    assert (shared[5], storage[10], found[2][10]) == (1234, 1234 & 255, 1234 & 255)
    assert found[1][0] == 9


def test_changes_of_ones_own_are_not_lost(tokens):
    whole = np.memmap(tokens, np.uint16, "c")
    whole[3] = 999
    for value in (whole, np.asarray(whole), whole[::2], torch.from_numpy(whole.view(np.int16))):
        found = opened(Shared.of([value]))[0]
        assert type(found) is type(value)
        assert not shows(found, tokens)
        assert bytes(np.asarray(found)) == bytes(np.asarray(value))


@pytest.mark.parametrize("change", ["deleted", "replaced", "no table"])
def test_what_the_path_does_not_lead_to_is_copied(tokens, change, monkeypatch):
    whole = np.memmap(tokens, np.uint16, "r")
    if change == "no table":
        monkeypatch.setattr(files_module, "_MAPS", "/proc/self/not_there")
    else:
        tokens.unlink()
    if change == "replaced":
        np.zeros(NUM, np.uint16).tofile(tokens)
    found = opened(Shared.of([whole, whole[::3], np.asarray(whole)]))
    assert all(np.array_equal(part, whole[::step]) for part, step in zip(found, (1, 3, 1), strict=True))
    assert not any(shows(part, tokens) for part in found)


def test_a_file_that_stat_knows_by_another_name_is_the_one_that_it_is(tokens, monkeypatch):
    """As on btrfs and on overlays."""
    whole, status = np.memmap(tokens, np.uint16, "r"), os.fstat

    def other(descriptor):
        fields = list(status(descriptor))
        fields[2] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", other)
    packed = Shared.of(whole)
    assert packed.fd is None
    assert shows(opened(packed), tokens)


@pytest.mark.parametrize("change", ["replaced", "cut"])
def test_a_file_that_is_another_one_when_a_process_opens_it_is_an_error(tokens, change):
    whole = np.memmap(tokens, np.uint16, "r")
    packed = Shared.of(whole)
    if change == "replaced":
        tokens.rename(tokens.with_suffix(".old"))
        np.zeros(NUM, np.uint16).tofile(tokens)
    else:
        os.truncate(tokens, 100)
    with pytest.raises(OSError, match=re.escape(f"{tokens} was replaced or cut")):
        opened(packed)


def test_many_arrays_of_a_file_are_in_one_map(tokens):
    whole = np.memmap(tokens, np.uint16, "r")
    documents = [whole[begin : begin + 50] for begin in range(0, NUM, 50)]
    found = opened(Shared.of(documents))
    assert len({id(document.base) for document in found}) == 1
    assert all(np.array_equal(one, other) for one, other in zip(found, documents, strict=True))


def test_what_overlaps_or_lies_beside_memory_arrives_with_it(tokens):
    whole = np.memmap(tokens, np.uint16, "r+")
    value = [whole[:5000], np.arange(5000), whole[2500:9000], torch.arange(5000)]
    found = opened(Shared.of(value))
    found[0][2500] = 4
    assert found[2][0] == whole[2500] == 4
    assert np.array_equal(found[1], value[1])
    assert torch.equal(found[3], value[3])


def test_results_are_copied(tokens):
    """The file may be gone when the parent looks at them."""
    parcel = pack(np.memmap(tokens, np.uint16, "r"))
    assert parcel.files == ()
    assert parcel.num_bytes > 2 * NUM


def test_memory_that_was_mapped_before_is_not_taken_for_the_file(tokens):
    """A table of an earlier moment says nothing of what lies there now."""
    files = Files()
    gone = mmap.mmap(-1, mmap.PAGESIZE)
    assert not files.seem_to_have(np.frombuffer(gone, np.uint8).ctypes.data, 8)
    whole = np.memmap(tokens, np.uint16, "r")
    assert files.place_of(whole.ctypes.data, 8) is None
    files.look()
    assert files.place_of(whole[3:].ctypes.data, 8) == (0, 6)
