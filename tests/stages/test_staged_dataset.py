"""StagedDataset: an ordinary Dataset made of stages, in DataLoader, worker processes, threads and notebooks."""

import asyncio
import copy
import gc
import pickle
import threading
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from torchstage.split import Split, split
from torchstage.staged import StagedDataset

from .outcomes import assert_split_is_the_same, call, composed


class Words(StagedDataset):
    """Tells what was called, in which order."""

    def __init__(self, length: int = 6) -> None:
        self.length = length
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return self.length

    def fetch(self, index: int) -> bytes:
        self.calls.append(("fetch", index))
        if not 0 <= index < self.length:
            raise IndexError(f"there is no word {index}")
        return str(index).encode()

    def decode(self, data: bytes) -> str:
        self.calls.append(("decode", data))
        return data.decode()

    def transform(self, word: str) -> Any:
        self.calls.append(("transform", word))
        return word, torch.full((2,), float(word))


class LaterWords(Words):
    async def fetch(self, index: int) -> bytes:
        await asyncio.sleep(0)
        return Words.fetch(self, index)


class AllLater(LaterWords):
    async def decode(self, data: bytes) -> str:
        await asyncio.sleep(0)
        return Words.decode(self, data)

    async def transform(self, word: str) -> Any:
        await asyncio.sleep(0)
        return Words.transform(self, word)


class Bulk(StagedDataset):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 6

    def fetch_many(self, indices: Any) -> list[str]:
        self.asked.append(indices)
        return [str(index) for index in indices]

    def decode(self, value: str) -> int:
        return int(value) * 10


class LaterBulk(Bulk):
    async def fetch_many(self, indices: Any) -> list[str]:
        await asyncio.sleep(0)
        return Bulk.fetch_many(self, indices)


class OneAndMany(Bulk):
    def fetch(self, index: int) -> str:
        self.asked.append(index)
        return str(index)


class Bare(StagedDataset):
    def fetch(self, index: int) -> int:
        return index


KINDS = [Words, LaterWords, AllLater, Bulk, LaterBulk, OneAndMany, Bare]


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_is_its_stages_one_after_another(kind):
    for index in (0, 1, 5, 6, -1, "a", None):
        assert_split_is_the_same(kind(), index)


@pytest.mark.parametrize("kind", [Words, LaterWords, AllLater])
def test_the_methods_are_called_in_their_order(kind):
    dataset = kind()
    dataset[3]
    assert dataset.calls == [("fetch", 3), ("decode", b"3"), ("transform", "3")]
    composed(split(dataset), 3)
    assert dataset.calls[3:] == dataset.calls[:3]


@pytest.mark.parametrize(
    ("kind", "stages", "later"),
    [
        (Words, "fetch decode transform", ""),
        (LaterWords, "fetch decode transform", "fetch"),
        (AllLater, "fetch decode transform", "fetch decode transform"),
        (Bulk, "decode", ""),
        (LaterBulk, "decode", ""),
        (OneAndMany, "decode", ""),
        (Bare, "fetch", ""),
    ],
)
def test_its_split_has_the_stages_that_are_defined(kind, stages, later):
    parts = split(kind())
    assert [stage.name for stage in parts.stages] == stages.split()
    assert [stage.name for stage in parts.stages if stage.is_async] == later.split()
    assert (parts.fetch_many is not None) == hasattr(kind, "fetch_many")


# in a plain DataLoader


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_dataloader_takes_it(kind, num_workers):
    dataset = kind() if kind is not Bare else Subset(Bare(), range(6))
    expected = [dataset[index] for index in range(6)]  # before the workers are forked
    loaded = list(DataLoader(dataset, batch_size=4, num_workers=num_workers, collate_fn=list))
    assert str([*loaded[0], *loaded[1]]) == str(expected)


def test_torch_sees_a_bulk_method_only_where_there_is_one():
    for kind in KINDS:
        assert hasattr(kind(), "__getitems__") == hasattr(kind, "fetch_many")
    with pytest.raises(AttributeError, match="Bare has no fetch_many, which __getitems__ is made of"):
        Bare().__getitems__  # noqa: B018 - asking for it is the test


@pytest.mark.parametrize("kind", [Bulk, LaterBulk, OneAndMany])
def test_a_plain_dataloader_reads_a_batch_in_one_go(kind):
    dataset = kind()
    batches = [batch.tolist() for batch in DataLoader(dataset, batch_size=4)]
    assert batches == [[0, 10, 20, 30], [40, 50]]
    assert dataset.asked == [[0, 1, 2, 3], [4, 5]]
    list(DataLoader(Subset(dataset, [5, 3]), batch_size=2))
    assert dataset.asked[2:] == [[5, 3]]


def test_one_item_uses_fetch_where_there_is_one():
    dataset = OneAndMany()
    assert (dataset[4], dataset.asked) == (40, [4])


# what is set on the object


class Photos(StagedDataset):
    def __init__(self, transform: Any = None, decode: Any = None) -> None:
        self.transform, self.decode = transform, decode

    def fetch(self, index: int) -> str:
        return f"photo {index}"


def test_functions_may_be_set_on_the_object():
    for dataset in (Photos(), Photos(str.upper), Photos(str.upper, str.title), Photos(None, len)):
        assert_split_is_the_same(dataset, 1)
    assert Photos(str.upper)[1] == "PHOTO 1"


def test_what_is_set_later_is_seen():
    dataset = Photos()
    parts = split(dataset)
    dataset.transform = str.upper
    assert composed(parts, 1) == dataset[1] == "PHOTO 1"
    dataset.transform = None
    assert composed(parts, 1) == dataset[1] == "photo 1"


def test_an_async_function_on_the_object_is_an_async_stage():
    async def later(word: str) -> str:
        return word.title()

    dataset = Photos(later)
    assert [stage.is_async for stage in split(dataset).stages] == [False, False, True]
    assert_split_is_the_same(dataset, 1)


class ByProperty(Photos):
    names = ("title",)

    def __init__(self) -> None:
        pass

    @property
    def transform(self) -> Any:
        return getattr(str, self.names[-1])

    @staticmethod
    def decode(word: str) -> str:
        return word + "!"


def test_properties_and_static_methods_do():
    dataset = ByProperty()
    parts = split(dataset)
    assert composed(parts, 1) == dataset[1] == "Photo 1!"
    dataset.names = ("upper",)
    assert composed(parts, 1) == dataset[1] == "PHOTO 1!"


class Delegating(Bare):
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


def test_what_another_object_could_do_is_not_taken_for_its_own():
    dataset = Delegating(Bulk())
    assert dataset[1] == 1
    assert split(dataset).fetch_many is None


# who is left alone


class Numbered(Words):
    def __getitem__(self, index: int) -> Any:
        return index, super().__getitem__(index)


class OwnBulk(Words):
    def __getitems__(self, indices: Any) -> Any:
        return [("mine", index) for index in indices]


def test_a_subclass_with_a_getitem_of_its_own_is_not_split():
    assert [stage.label for stage in split(Numbered()).stages] == ["fetch"]
    assert composed(split(Numbered()), 2)[0] == 2
    assert split(OwnBulk()).fetch_many([2]) == [("mine", 2)]
    assert list(DataLoader(OwnBulk(), batch_size=6, collate_fn=len)) == [6]


# errors


class Nothing(StagedDataset):
    def decode(self, value: Any) -> Any:
        return value


def test_without_a_way_to_fetch_it_says_what_to_define():
    words = r"^Nothing has neither fetch\(self, index\) nor fetch_many\(self, indices\)\. Define one of them\.$"
    for use in (lambda: Nothing()[0], lambda: split(Nothing())):
        with pytest.raises(TypeError, match=words):
            use()


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        (["a"], ValueError, "Own.fetch_many was given 2 indices and returned 1 values. Return one value for each"),
        ([], ValueError, "was given 2 indices and returned 0 values"),
        (["a"] * 3, ValueError, "was given 2 indices and returned 3 values"),
        (None, TypeError, "Own.fetch_many must return a list, one value for each index in their order, got NoneType"),
        (3, TypeError, "got int"),
        ("ab", TypeError, "got str"),
        (b"ab", TypeError, "got bytes"),
        ({0: "a", 1: "b"}, TypeError, "got dict"),
        ({"a", "b"}, TypeError, "got set"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_bulk_read_of_something_else_is_refused(values, error, words, is_async):
    class Own(StagedDataset):
        if is_async:

            async def fetch_many(self, indices: Any) -> Any:
                return values

        else:

            def fetch_many(self, indices: Any) -> Any:
                return values

    dataset = Own()
    for use in (dataset.__getitems__, partial(call, split(dataset).fetch_many)):
        with pytest.raises(error) as caught:
            use([0, 1])
        assert words in str(caught.value)


@pytest.mark.parametrize("row", [list, tuple, iter, partial(map, str)])
def test_a_bulk_read_may_be_any_row_of_values(row):
    class Own(StagedDataset):
        def fetch_many(self, indices: Any) -> Any:
            return row("ab")

    assert Own().__getitems__([0, 1]) == ["a", "b"]


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"Photos\.transform must be a function of one value, or None, got 'flip'"):
        Photos("flip")[0]
    with pytest.raises(TypeError, match=r"Photos\.decode must be a function of one value, or None, got 7"):
        split(Photos(None, 7))


def test_an_error_shows_the_users_own_lines():
    for kind in (Words, AllLater):
        with pytest.raises(IndexError, match="there is no word 9") as caught:
            kind()[9]
        assert "fetch" in [entry.name for entry in caught.traceback]


# async in any surroundings


def test_an_async_fetch_works_inside_a_running_loop():
    async def cell() -> Any:
        return [dataset[index] for index in range(3)], list(DataLoader(dataset, batch_size=3, collate_fn=len))

    dataset = AllLater()
    items, batches = asyncio.run(cell())
    assert str(items) == str([Words()[index] for index in range(3)])
    assert batches == [3, 3]


class Connected(StagedDataset):
    """Keeps a client for each loop, as an HTTP session must be kept."""

    def __init__(self) -> None:
        self.clients: dict[Any, str] = {}

    async def fetch(self, index: int) -> Any:
        loop = asyncio.get_running_loop()
        return self.clients.setdefault(loop, f"client {len(self.clients)}")


def test_a_client_is_used_again_in_the_same_thread():
    dataset = Connected()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append({dataset[0], dataset[1]})) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert found == [{"client 0"}, {"client 1"}]
    assert {dataset[0], dataset[1]} == {"client 2"}
    assert [loop.is_closed() for loop in dataset.clients] == [True, True, False]
    loops, dataset = list(dataset.clients), None
    gc.collect()
    assert [loop.is_closed() for loop in loops] == [True, True, True]


# copies


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
@pytest.mark.parametrize("kind", KINDS)
def test_it_copies_as_the_users_own_class_does(kind, duplicate):
    dataset = kind()
    before = dict(vars(dataset))
    item = dataset[1]
    assert vars(dataset).keys() == before.keys()  # it keeps nothing of its own on the object
    assert str(duplicate(dataset)[1]) == str(item)
    parts: Split = pickle.loads(pickle.dumps(split(dataset)))
    assert str(composed(parts, 1)) == str(item)


def test_the_stages_are_bound_to_the_object_that_was_split():
    dataset = Words()
    private = copy.deepcopy(dataset)
    composed(split(private), 0)
    assert (dataset.calls, len(private.calls)) == ([], 3)


def test_it_is_an_ordinary_dataset():
    both = Words() + Bulk()
    assert isinstance(Words(), Dataset)
    assert isinstance(both, ConcatDataset)
    assert both[7] == 10
