"""Parcels: what comes out is what went in, with or without a slot."""

import datetime
import os
import pickle
import threading
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from lending import sent, through

from torchstage.executors.contents import MIN_BUFFER_BYTES
from torchstage.executors.desk import Desk
from torchstage.executors.parcel import pack, unpack
from torchstage.executors.slots import Slots

Pair = namedtuple("Pair", "left right")


class Metres(np.ndarray):
    pass


@dataclass
class Sample:
    image: torch.Tensor
    label: int


@pytest.fixture(params=["carried", "slot", "copied from a slot"])
def travel(request):
    """Sends a value to where the user gets it."""
    if request.param == "carried":
        yield lambda value: unpack(sent(pack(value)))
        return
    slots, desk = Slots(8 if request.param == "slot" else 1), Desk()
    yield lambda value: through(slots, desk, lambda: value)
    slots.close()
    desk.close()


def test_structures_of_all_kinds(travel):
    value = {
        "list": [1, 2.5, "three", b"four", None, True, 1j, ...],
        "nested": (Pair(torch.arange(3), {"x": np.arange(4)}), OrderedDict(a=1)),
        "dataclass": Sample(torch.ones(2, 2), 7),
        "date": datetime.date(2020, 1, 2),
        "set": {1, 2},
    }
    got = travel(value)
    assert got["list"] == value["list"]
    assert type(got["nested"][0]) is Pair
    assert torch.equal(got["nested"][0].left, torch.arange(3))
    assert got["nested"][0].right["x"].tolist() == [0, 1, 2, 3]
    assert got["nested"][1] == OrderedDict(a=1)
    assert type(got["nested"][1]) is OrderedDict
    assert torch.equal(got["dataclass"].image, torch.ones(2, 2))
    assert (got["dataclass"].label, got["date"], got["set"]) == (7, value["date"], {1, 2})


SIZES = [3, 100, MIN_BUFFER_BYTES, 300_000]


@pytest.mark.parametrize("size", SIZES)
def test_bytes_and_text(travel, size):
    value = [b"x" * size, bytearray(b"y" * size), "z" * size, "ä" * size]
    got = travel(value)
    assert got == value
    assert list(map(type, got)) == [bytes, bytearray, str, str]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "make",
    [
        lambda n: np.arange(n, dtype=np.int16),
        lambda n: np.arange(4 * n, dtype=np.float32).reshape(n, 4),
        lambda n: np.asfortranarray(np.arange(6 * n).reshape(n, 3, 2)),
        lambda n: np.arange(4 * n).reshape(n, 4)[:, ::2],
        lambda n: np.arange(n)[::-1],
        lambda n: np.array([(i, i / 2) for i in range(n)], dtype=[("a", "<i4"), ("b", ">f8")]),
        lambda n: np.array(["word"] * n),
        lambda n: np.array([{"x": i} for i in range(min(n, 50))], dtype=object),
        lambda n: np.arange(n).astype("datetime64[s]"),
        lambda n: np.ma.masked_less(np.arange(n), 2),
        lambda n: np.arange(n).view(Metres),
        lambda n: np.zeros((n, 0)),
        lambda n: np.float64(n),
    ],
    ids=[
        *("short", "rows", "fortran", "strided", "reversed", "structured", "words", "objects", "dates", "masked"),
        *("metres", "empty", "scalar"),
    ],
)
def test_arrays(travel, make, size):
    value = make(size)
    got = travel(value)
    assert type(got) is type(value)
    assert (got.dtype, got.shape) == (value.dtype, value.shape)
    assert (got == value).all()
    if isinstance(value, np.ndarray):
        pickled = pickle.loads(pickle.dumps(value, 5))
        assert (got.flags.f_contiguous, got.flags.writeable) == (pickled.flags.f_contiguous, True)


@pytest.mark.parametrize("size", SIZES)
def test_an_array_that_may_not_be_written_may_not_be_written_there(travel, size):
    value = np.arange(size)
    value.flags.writeable = False
    got = travel([value, np.arange(size)])
    assert (got[0].flags.writeable, got[1].flags.writeable) == (False, True)
    assert (got[0] == value).all()


def test_a_memory_mapped_file_arrives_as_its_values(travel, tmp_path):
    np.save(tmp_path / "values.npy", np.arange(5000))
    value = np.load(tmp_path / "values.npy", mmap_mode="r")
    got = travel(value)
    assert type(got) is np.memmap
    assert (got == np.arange(5000)).all()


@pytest.mark.parametrize("size", [8, 300])
def test_pictures(travel, size):
    image = pytest.importorskip("PIL.Image")
    value = image.fromarray(np.arange(size * size * 3, dtype=np.uint8).reshape(size, size, 3))
    got = travel(value)
    assert (got.mode, got.size, got.tobytes()) == (value.mode, value.size, value.tobytes())


class Offering:
    """Offers its memory to pickle."""

    def __init__(self, content):
        self.content = content

    def __reduce_ex__(self, protocol):
        return Offering, (pickle.PickleBuffer(self.content),)


@pytest.mark.parametrize("size", SIZES)
def test_objects_that_offer_their_memory(travel, size):
    got = travel([Offering(bytearray(b"ab" * size)), Offering(b"cd" * size)])
    assert [bytes(each.content) for each in got] == [b"ab" * size, b"cd" * size]


def test_an_object_that_is_there_twice_is_there_twice(travel):
    tensor, array = torch.arange(9), np.arange(5000)
    got = travel([tensor, array, tensor, array, {"again": tensor}])
    assert got[0] is got[2] is got[4]["again"]
    assert got[1] is got[3]


def test_a_value_that_contains_itself(travel):
    value = [torch.arange(20_000)]
    value.append(value)
    got = travel(value)
    assert got[1] is got
    assert torch.equal(got[0], torch.arange(20_000))


def test_what_cannot_be_pickled_says_what_pickle_says(travel):
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        travel({"tensor": torch.arange(3), "lock": threading.Lock()})
    assert travel([torch.arange(3)])[0].tolist() == [0, 1, 2]  # and nothing is left of it


class Told:
    def __init__(self, words):
        self.words = words


def test_what_multiprocessing_was_told_to_send_is_sent_like_that():
    ForkingPickler.register(Told, lambda told: (Told, (told.words + ", as told",)))
    try:
        assert unpack(sent(pack([Told("here")])))[0].words == "here, as told"
    finally:
        del ForkingPickler._extra_reducers[Told]


def test_a_parcel_without_a_slot_that_says_it_has_one_is_refused():
    slots, desk = Slots(1), Desk()
    slot = slots.take()
    desk.take(slot.number, os.dup(slot.fd))
    parcel = desk.pack(torch.zeros(100_000))
    with pytest.raises(ValueError, match=r"open it with Slot\.open"):
        unpack(parcel)
    slot.drop()
    slots.close()
    desk.close()
