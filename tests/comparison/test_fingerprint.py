"""Fingerprints: equal for equal batches, and never for unequal ones."""

import copy
import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.comparison.values import Box, Point, Slotted, batches, places, with_other
from torchstage.comparison.fingerprint import fingerprint

NAN, OTHER_NAN = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)


@pytest.mark.fuzz
@given(batches)
def test_a_copy_of_a_batch_has_its_fingerprint(batch):
    assert fingerprint(copy.deepcopy(batch)) == fingerprint(batch)


@pytest.mark.fuzz
@given(batches, st.data())
def test_a_batch_with_one_other_leaf_has_another_fingerprint(batch, data):
    place = data.draw(st.sampled_from(places(batch)))
    changed = with_other(batch, place, data.draw)
    assert fingerprint(changed).digest != fingerprint(batch).digest


class Text(str):
    """A string that claims to be another."""

    def __str__(self):
        return "the same"


class Labelled(Mapping):
    """A mapping that holds something beside its items."""

    def __init__(self, items, data):
        self.items_, self.data = items, data

    def __getitem__(self, key):
        return self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


class Noted(np.ndarray):
    """An array with attributes."""

    def __deepcopy__(self, memo):
        return with_note(np.array(self).view(Noted), self._mask)


def with_note(value, note):
    value._mask = note
    return value


ONES = torch.ones(2, 3)
UNEQUAL = {
    "negative zero": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "negative zero in Python": (0.0, -0.0),
    "NaN payload": (NAN.reshape(1), OTHER_NAN.reshape(1)),
    "dtype": (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    "shape of nothing": (torch.zeros(0, 2), torch.zeros(2, 0)),
    "tensor or array": (torch.zeros(2), np.zeros(2, np.float32)),
    "requires_grad": (ONES, ONES.clone().requires_grad_()),
    "parameter": (torch.ones(1, requires_grad=True), torch.nn.Parameter(torch.ones(1))),
    "device": (torch.ones(1), torch.ones(1, device="meta")),
    "int or NumPy's": (1, np.int64(1)),
    "int or NumPy's in a list": ([1, 2], [1, np.int64(2)]),
    "bool or int": (True, 1),
    "float or int": (1.0, 1),
    "byte order": (np.array([1], "<i4"), np.array([1], ">i4")),
    "tuple or list": ((1,), [1]),
    "named tuple": (Point(1, 2), (1, 2)),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dict or OrderedDict": ({"a": 1}, OrderedDict(a=1)),
    "type of a key": ({1: 0}, {True: 0}),
    "None or missing": ({"a": None}, {}),
    "nesting": ([[1], 2], [[1, 2]]),
    "where strings end": (["ab", "c"], ["a", "bc"]),
    "str or bytes": ("a", b"a"),
    "set": ({1, 2}, {1, 3}),
    "set or frozenset": ({1}, frozenset({1})),
    "deque": (deque([ONES]), deque([ONES * 2])),
    "attribute": (Box(1, 2), Box(1, 3)),
    "slot": (Slotted(1), Slotted(2)),
    "sparse values": (ONES.to_sparse(), (2 * ONES).to_sparse()),
    "sparse or dense": (ONES, ONES.to_sparse()),
    "masked": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
    "array of objects": (np.array([[1], None], object), np.array([[2], None], object)),
    "array of fields": (np.array([(1, 2.0)], "i4,f4"), np.array([(1, 3.0)], "i4,f4")),
    "text with a __str__": (Text("a"), Text("b")),
    "range": (range(3), range(4)),
    "slice": (slice(1, 2), slice(1, 3)),
    "mapping with a field called data": (Labelled({"a": 1}, data=1), Labelled({"a": 1}, data=2)),
    "attribute of a tensor": (with_note(torch.ones(1), 1), with_note(torch.ones(1), 2)),
    "attribute of an array": (with_note(np.ones(1).view(Noted), 1), with_note(np.ones(1).view(Noted), 2)),
    "size": (torch.Size([1, 2]), (1, 2)),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_what_is_not_the_same_has_another_fingerprint(name):
    one, other = UNEQUAL[name]
    assert fingerprint(one) == fingerprint(copy.deepcopy(one))
    assert fingerprint(one).digest != fingerprint(other).digest
    assert fingerprint([one]).digest != fingerprint([other]).digest


@pytest.mark.filterwarnings("ignore")  # torch calls all three beta or old
def test_tensors_of_parts_are_compared_part_by_part():
    def ragged(*lengths, layout):
        return torch.nested.nested_tensor([torch.ones(n, 2) for n in lengths], layout=layout)

    def quantized(scale):
        return torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), scale, 0, torch.qint8)

    makers = [
        (lambda: torch.eye(2).to_sparse_csr(), lambda: torch.eye(2).flip(0).to_sparse_csr()),
        (lambda: ragged(1, 3, layout=torch.jagged), lambda: ragged(2, 2, layout=torch.jagged)),
        (lambda: ragged(1, 3, layout=torch.strided), lambda: ragged(2, 2, layout=torch.strided)),
        (lambda: quantized(0.1), lambda: quantized(0.2)),
    ]
    for one, other in makers:
        assert fingerprint(one()) == fingerprint(one())
        assert fingerprint(one()).digest != fingerprint(other()).digest


def test_a_conjugated_or_transposed_view_has_the_fingerprint_of_its_values():
    values = torch.arange(6.0).reshape(2, 3) * 1j
    assert fingerprint(values.conj()) == fingerprint(values.conj().resolve_conj())
    assert fingerprint(values.T) == fingerprint(values.T.contiguous())
    assert fingerprint(values.T, strides=True) != fingerprint(values.T.contiguous(), strides=True)


def test_pictures_are_compared_by_their_pixels_and_palettes():
    image = pytest.importorskip("PIL.Image")
    red, blue = image.new("RGB", (3, 2), "red"), image.new("RGB", (3, 2), "blue")
    assert fingerprint(red) == fingerprint(red.copy())
    assert fingerprint(red).digest != fingerprint(blue).digest
    assert fingerprint(red.convert("P")).digest != fingerprint(blue.convert("P")).digest
    assert fingerprint(red).digest != fingerprint(red.resize((2, 3))).digest


def test_what_torchvision_adds_to_a_tensor_is_compared():
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    boxes = [tv_tensors.BoundingBoxes(torch.ones(1, 4), format="XYXY", canvas_size=size) for size in ((8, 8), (9, 9))]
    assert fingerprint(boxes[0]).digest != fingerprint(boxes[1]).digest
    assert fingerprint(boxes[0]).digest != fingerprint(boxes[0].as_subclass(torch.Tensor)).digest


def test_what_cannot_be_looked_into_is_compared_by_pickle_or_equal_to_nothing():
    [leaf] = fingerprint(torch.Generator().manual_seed(1).get_state().numpy().tobytes()).leaves
    assert leaf.how == ""
    for hidden in (threading.Lock(), hashlib.md5(b"x"), (item for item in [1])):  # what they hold is in C
        assert fingerprint(hidden).leaves[0].how == "nothing"
        assert fingerprint(hidden).digest != fingerprint(hidden).digest
    [leaf] = fingerprint(np.random.default_rng(1).bit_generator).leaves
    assert leaf.how == "pickle"


def test_a_batch_that_holds_itself_is_no_endless_story():
    batch, other = [1, "a"], [1, "a"]
    batch.append(batch)
    other.append([other])
    assert fingerprint(batch) == fingerprint(batch)
    assert fingerprint(batch).digest != fingerprint(other).digest


def test_nothing_is_recorded_for_autograd_nor_changed():
    tensor = torch.ones(2, 2, requires_grad=True)
    before = tensor._version
    fingerprint({"x": tensor, "y": tensor * 2})
    assert tensor._version == before
    assert tensor.grad is None
