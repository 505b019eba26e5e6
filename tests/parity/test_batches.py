"""Batches: types, sizes and values of what comes out, for every kind of sample and every way to batch them."""

import collections
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from .compare import assert_same
from .datasets import Indices, Made, as_given
from .ways import INLINE, lists, on_all, on_both, on_staged, on_workers


class Point(NamedTuple):
    x: float
    y: torch.Tensor


class ReadOnly(collections.abc.Mapping):
    """A mapping that is no dict, and wants its entries as one argument."""

    def __init__(self, entries: Any) -> None:
        self._entries = dict(entries)

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __iter__(self) -> Any:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


SAMPLES: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "float": lambda i: i / 2,
    "bool": lambda i: i % 2 == 0,
    "str": lambda i: f"sample {i}",
    "bytes": lambda i: bytes([i]),
    "tensor": lambda i: torch.full((2, 3), i, dtype=torch.float32),
    "scalar tensor": lambda i: torch.tensor(i),
    "bfloat16": lambda i: torch.tensor([i], dtype=torch.bfloat16),
    "empty tensor": lambda i: torch.empty(0, 3),
    "complex tensor": lambda i: torch.tensor([complex(i, 1)]),
    "array": lambda i: np.full((2,), i, dtype=np.int16),
    "array of no dimension": lambda i: np.array(i, dtype=np.float32),
    "numpy scalar": lambda i: np.float32(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "tuple": lambda i: (i, str(i), torch.tensor([i])),
    "list": lambda i: [i, [i + 1, i + 2]],
    "empty tuple": lambda i: (),
    "namedtuple": lambda i: Point(i / 2, torch.ones(2) * i),
    "dict": lambda i: {"image": torch.ones(2) * i, "label": i},
    "dict with odd keys": lambda i: {0: i, (1, 2): str(i), None: i / 2},
    "ordered dict": lambda i: collections.OrderedDict(b=i, a=i + 1),
    "default dict": lambda i: collections.defaultdict(int, a=i),
    "mapping": lambda i: ReadOnly({"a": i, "b": [i]}),
    "nested": lambda i: {"pair": (i, {"deep": [Point(i, torch.tensor(i))]}), "name": b"x"},
}
BATCHED = pytest.mark.parametrize("batch_size", [3, None])


@BATCHED
@on_staged
def test_a_sample_of_any_kind_becomes_torch_s_batch(make_loader: Any, batch_size: int | None) -> None:
    for kind, make in SAMPLES.items():
        dataset = Made(7, make)
        expected = list(INLINE(dataset, batch_size=batch_size))
        assert_same(list(make_loader(dataset, batch_size=batch_size)), expected, kind)


@on_workers
def test_samples_of_all_kinds_at_once_become_torch_s_batch(make_loader: Any) -> None:
    dataset = Made(7, lambda i: {kind: make(i) for kind, make in SAMPLES.items()})
    assert_same(list(make_loader(dataset, batch_size=3)), list(INLINE(dataset, batch_size=3)))


@on_all
def test_numbers_and_words_become_tensors_and_lists(make_loader: Any) -> None:
    """The same once more, written down: the comparisons above would not see what both do wrong."""
    dataset = Made(3, lambda i: (i, i / 2, f"<{i}>", {"pixels": np.full((1, 2), i, dtype=np.uint8)}))
    first, second = make_loader(dataset, batch_size=2)
    halves, pixels = torch.tensor([0, 0.5], dtype=torch.float64), torch.tensor([[[0, 0]], [[1, 1]]], dtype=torch.uint8)
    assert_same(first, [torch.tensor([0, 1]), halves, ("<0>", "<1>"), {"pixels": pixels}])
    one, pixels = torch.tensor([1.0], dtype=torch.float64), torch.tensor([[[2, 2]]], dtype=torch.uint8)
    assert_same(second, [torch.tensor([2]), one, ("<2>",), {"pixels": pixels}])


@on_both
@pytest.mark.parametrize(
    ("batch_size", "drop_last", "expected"),
    [
        (1, False, [[0], [1], [2], [3], [4], [5], [6]]),
        (3, False, [[0, 1, 2], [3, 4, 5], [6]]),
        (3, True, [[0, 1, 2], [3, 4, 5]]),
        (7, False, [[0, 1, 2, 3, 4, 5, 6]]),
        (7, True, [[0, 1, 2, 3, 4, 5, 6]]),
        (8, False, [[0, 1, 2, 3, 4, 5, 6]]),
        (8, True, []),
        (1000, False, [[0, 1, 2, 3, 4, 5, 6]]),
        (None, False, [0, 1, 2, 3, 4, 5, 6]),
    ],
)
def test_batches_have_their_sizes(make_loader: Any, batch_size: Any, drop_last: bool, expected: Any) -> None:
    loader = make_loader(Made(7, torch.tensor), batch_size=batch_size, drop_last=drop_last)
    assert lists(loader) == expected
    assert len(loader) == len(expected)


@on_both
def test_no_samples_make_no_batches(make_loader: Any) -> None:
    for arguments in ({}, {"batch_size": 3}, {"batch_size": None}, {"sampler": []}, {"batch_sampler": []}):
        assert list(make_loader(Indices(0), **arguments)) == []


@dataclass(eq=False)
class Picture:
    pixels: torch.Tensor
    name: str


@dataclass(eq=False)
class Album:
    pixels: torch.Tensor
    names: list[str]

    @classmethod
    def of(cls, pictures: list[Picture]) -> "Album":
        return cls(torch.stack([picture.pixels for picture in pictures]), [picture.name for picture in pictures])


@on_all
def test_a_user_s_collate_function_makes_a_user_s_batch(make_loader: Any) -> None:
    loader = make_loader(Made(3, lambda i: Picture(torch.tensor([i]), str(i))), batch_size=2, collate_fn=Album.of)
    albums = list(loader)
    assert [type(album) for album in albums] == [Album, Album]
    assert [album.pixels.tolist() for album in albums] == [[[0], [1]], [[2]]]
    assert [album.names for album in albums] == [["0", "1"], ["2"]]


@on_all
def test_collate_gets_a_list_of_samples_or_one_sample(make_loader: Any) -> None:
    def look(samples: Any) -> Any:
        return type(samples).__name__, samples

    dataset = Made(4, lambda i: (i, i))
    batched = make_loader(dataset, batch_size=3, collate_fn=look)
    assert list(batched) == [("list", [(0, 0), (1, 1), (2, 2)]), ("list", [(3, 3)])]
    one_by_one = make_loader(dataset, batch_size=None, collate_fn=look)
    assert list(one_by_one) == [("tuple", (i, i)) for i in range(4)]


@on_both
def test_samples_come_as_the_objects_that_the_dataset_gave(make_loader: Any) -> None:
    items = [object() for _ in range(5)]
    assert all(got is item for got, item in zip(make_loader(items, batch_size=None), items, strict=True))
    (batch,) = make_loader(items, batch_size=5, collate_fn=as_given)
    assert all(got is item for got, item in zip(batch, items, strict=True))


@on_both
def test_a_batch_is_the_object_that_collate_made(make_loader: Any) -> None:
    made = []

    def collate(samples: list[int]) -> object:
        made.append(object())
        return made[-1]

    assert {*map(id, make_loader(Indices(9), batch_size=3, collate_fn=collate))} == {*map(id, made)}
    assert len(made) == 3


@on_both
def test_gradients_flow_through_a_batch(make_loader: Any) -> None:
    weight = torch.ones(2, requires_grad=True)
    (batch,) = make_loader(Made(2, lambda i: weight * i), batch_size=2)
    batch.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1, 1]


@on_all
def test_none_is_data(make_loader: Any) -> None:
    nothing = Made(4, lambda i: None)
    assert list(make_loader(nothing, batch_size=None)) == [None] * 4
    assert list(make_loader(nothing, batch_size=3, collate_fn=as_given)) == [[None] * 3, [None]]
    assert list(make_loader(Indices(4), batch_size=2, collate_fn=lambda samples: None)) == [None, None]


class Constant:
    """A function that returns the same whatever it gets."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, _: Any) -> Any:
        return self.value


@on_both
def test_what_looks_like_a_signal_is_data(make_loader: Any) -> None:
    for value in (False, 0, "", (), [], StopIteration, StopIteration(), ValueError("data")):
        dataset = Made(3, Constant(value))
        assert list(make_loader(dataset, batch_size=None, collate_fn=as_given)) == [value] * 3
        assert list(make_loader(dataset, batch_size=2, collate_fn=as_given)) == [[value] * 2, [value]]
        assert list(make_loader(Indices(3), collate_fn=Constant(value))) == [value] * 3


@on_both
def test_each_sample_is_fetched_once(make_loader: Any) -> None:
    lock, fetched = threading.Lock(), collections.Counter()

    def fetch(index: int) -> int:
        with lock:
            fetched[index] += 1
        return index

    assert lists(make_loader(Made(50, fetch), batch_size=7)) == [[*range(i, min(i + 7, 50))] for i in range(0, 50, 7)]
    assert fetched == dict.fromkeys(range(50), 1)


@on_both
def test_an_index_that_comes_twice_is_fetched_twice(make_loader: Any) -> None:
    fetched: list[int] = []
    dataset = Made(3, lambda i: fetched.append(i) or i)
    assert lists(make_loader(dataset, batch_size=4, sampler=[1, 1, 2, 1, 1])) == [[1, 1, 2, 1], [1]]
    assert sorted(fetched) == [1, 1, 1, 1, 2]


@on_staged
def test_torch_s_own_collate_makes_the_same_as_if_called_here(make_loader: Any) -> None:
    dataset = Made(10, SAMPLES["nested"])
    expected = [default_collate([dataset[i] for i in indices]) for indices in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]
    assert_same(list(make_loader(dataset, batch_size=4)), expected)


@on_staged
def test_batches_lie_in_memory_of_their_own(make_loader: Any) -> None:
    """Threads need no shared memory: collating into it would cost files and a copy."""
    assert not any(batch.is_shared() for batch in make_loader(Made(6, torch.tensor), batch_size=2))


@on_both
def test_a_profiler_sees_each_batch(make_loader: Any) -> None:
    with torch.autograd.profiler.profile() as profile:
        assert lists(make_loader(Indices(3))) == [[0], [1], [2]]
    marks = [event for event in profile.function_events if event.name.startswith("enumerate(DataLoader)#")]
    assert len(marks) == 4  # three batches and the end
