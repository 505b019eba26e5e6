"""Split: what the stages of torch's, bulk and users' datasets give, and who is left alone."""

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import assert_same
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split

from torchstage.split import Split, split
from torchstage.stage import Stage
from torchstage.staged import StagedDataset

from .outcomes import (
    ODD_INDICES,
    assert_same_outcome,
    assert_split_is_the_same,
    call,
    composed,
    outcome,
    seed,
)


class Squares(Dataset):
    """Draws as well, so that a call too many or too few shows."""

    def __init__(self, length: int = 4) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        if index >= self.length:
            raise IndexError(f"no square of {index}")
        return index * index, torch.rand(())


class Bulk(Squares):
    """As Hugging Face's datasets do it."""

    def __getitems__(self, indices: Any) -> list[Any]:
        return [self[index] for index in indices]


class Words(StagedDataset):
    def __init__(self, length: int = 3) -> None:
        self.words = [chr(97 + i) for i in range(length)]
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.words)

    def fetch(self, index: Any) -> bytes:
        return self.words[index].encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class LaterWords(Words):
    async def fetch(self, index: Any) -> bytes:
        return self.words[index].encode()


class ManyWords(Words):
    def fetch_many(self, indices: Any) -> list[bytes]:
        return [self.fetch(index) for index in indices]


def tensors() -> TensorDataset:
    return TensorDataset(torch.arange(8).view(4, 2), torch.arange(4) / 2)


DATASETS: dict[str, Any] = {
    "list": lambda: ["a", "b", "c"],
    "dict": lambda: {1: "a", "1": "b", None: "c"},
    "squares": Squares,
    "bulk": Bulk,
    "tensors": tensors,
    "no tensors": TensorDataset,
    "subset": lambda: Subset(Squares(), [3, 1, 2]),
    "subset of a subset": lambda: Subset(Subset(Squares(), [3, 1, 2]), range(2)),
    "subset of a list": lambda: Subset(["a", "b", "c"], [2, 0]),
    "subset of bulk": lambda: Subset(Bulk(), [3, 1, 2]),
    "subset of tensors": lambda: Subset(tensors(), [3, 1, 2, 0]),
    "subset by an array": lambda: Subset(tensors(), np.array([3, 1, 2, 0])),
    "subset by a tensor": lambda: Subset(Squares(), torch.tensor([3, 1, 2])),
    "subset of words": lambda: Subset(Words(), [2, 1]),
    "subset of later words": lambda: Subset(LaterWords(), [2, 1]),
    "subset of many words": lambda: Subset(ManyWords(), [2, 1]),
    "subset beyond the end": lambda: Subset(Squares(), [3, 77, -1]),
    "random split": lambda: random_split(Squares(9), [6, 3])[1],
    "concat": lambda: ConcatDataset([Squares(2), Squares(3)]),
    "concat of one": lambda: ConcatDataset([Squares(2)]),
    "concat with an empty one": lambda: ConcatDataset([Squares(2), [], Squares(3)]),
    "concat of words": lambda: ConcatDataset([Words(2), Words(3)]),
    "concat of later words": lambda: ConcatDataset([LaterWords(2), LaterWords(1)]),
    "concat of words and squares": lambda: ConcatDataset([Squares(2), Words(2), tensors()]),
    "concat of now and later": lambda: ConcatDataset([Words(2), LaterWords(2)]),
    "concat of many words": lambda: ConcatDataset([ManyWords(2), Words(2)]),
    "concat of bulk": lambda: ConcatDataset([Bulk(2), Bulk(2)]),
    "concat of concats": lambda: ConcatDataset([ConcatDataset([Words(2), Squares(1)]), Words(2)]),
    "concat of subsets": lambda: ConcatDataset([Subset(Words(3), [2, 0]), Subset(Squares(), [1])]),
    "subset of a concat": lambda: Subset(ConcatDataset([Words(2), Squares(2)]), [3, 0, -1]),
    "stack": lambda: StackDataset(Squares(), ["a", "b", "c", "d"]),
    "stack by name": lambda: StackDataset(square=Squares(), word=Words(4)),
    "stack of bulk": lambda: StackDataset(Bulk(), Bulk()),
    "words": Words,
    "later words": LaterWords,
    "many words": ManyWords,
}


@pytest.mark.parametrize("name", DATASETS)
def test_the_stages_together_are_the_dataset_itself(name):
    for index in ODD_INDICES:
        if name not in ASKED_IN_BULK or type(index) is not list:  # there torch itself does not ask for one sample
            assert_split_is_the_same(DATASETS[name](), index)


ASKED_IN_BULK = {"subset of bulk", "subset of many words"}


@pytest.mark.parametrize("name", DATASETS)
def test_stages_pickle_with_their_dataset(name):
    parts = split(DATASETS[name]())
    seed()
    expected = outcome(composed, parts, 1)
    seed()
    assert_same_outcome(outcome(composed, pickle.loads(pickle.dumps(parts)), 1), expected)


BATCHES: list[Any] = [[0, 1], [1, 0, 1], [], [0, 99], [-1, 0], (0, 1), [True], torch.tensor([0, 1]), ["a"], [[0]]]


@pytest.mark.parametrize("indices", BATCHES, ids=str)
@pytest.mark.parametrize(
    "name", ["bulk", "subset of bulk", "stack", "stack by name", "stack of bulk", "many words", "subset of many words"]
)
def test_a_batch_taken_at_once_is_what_torch_would_take(name, indices):
    parts = split(DATASETS[name]())

    def taken() -> list[Any]:
        values = parts.fetch_many(indices)
        for stage in parts.stages:
            values = [stage.fn(value) for value in values]
        return values

    seed()
    got = outcome(taken)
    seed()
    assert_same_outcome(got, outcome(DATASETS[name]().__getitems__, indices))


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("list", "fetch"),
        ("squares", "fetch"),
        ("bulk", ""),
        ("tensors", "fetch"),
        ("subset", "fetch"),
        ("subset of bulk", ""),
        ("subset of words", "fetch decode transform"),
        ("subset of many words", "decode transform"),
        ("concat", "fetch"),
        ("concat of words", "fetch decode transform"),
        ("concat of later words", "fetch decode transform"),
        ("concat of words and squares", "fetch decode transform"),
        ("concat of now and later", "fetch"),
        ("concat of bulk", "fetch"),
        ("concat of concats", "fetch decode transform"),
        ("stack", ""),
        ("words", "fetch decode transform"),
    ],
)
def test_each_has_these_stages(name, stages):
    parts = split(DATASETS[name]())
    assert [stage.label for stage in parts.stages] == stages.split()
    assert parts.collated == (name == "tensors")
    assert [stage.label for stage in parts.stages if stage.is_async] == ["fetch"] * ("later words" in name)


def test_a_concat_of_bulk_datasets_is_asked_sample_by_sample_as_torch_does():
    assert split(ConcatDataset([Bulk(), Bulk()])).fetch_many is None


# who is left alone


class OwnSubset(Subset):
    def __getitem__(self, index):
        return "mine", super().__getitem__(index)

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class NamedSubset(Subset):
    """Overrides nothing that counts."""

    name = "validation"


class OwnConcat(ConcatDataset):
    def __getitem__(self, index):
        return "mine", super().__getitem__(index)


class OwnTensors(TensorDataset):
    def __getitem__(self, index):
        return ("mine", *super().__getitem__(index))


class BulkTensors(TensorDataset):
    def __getitems__(self, indices):
        return [("mine", *self[index]) for index in indices]


def test_a_subclass_with_a_getitem_of_its_own_is_asked_for_its_samples():
    assert composed(split(OwnSubset(Words(), [1])), 0) == ("mine", "b")
    assert composed(split(OwnConcat([Words(), Words()])), 4) == ("mine", "b")
    assert composed(split(OwnTensors(torch.arange(3))), 1) == ("mine", torch.tensor(1))
    assert not split(OwnTensors(torch.arange(3))).collated
    assert split(BulkTensors(torch.arange(3))).fetch_many([1]) == [("mine", torch.tensor(1))]
    assert split(NamedSubset(Words(), [1])).stages[-1].label == "transform"


@pytest.mark.parametrize(
    ("kind", "arguments"), [(Subset, (Words(), [1])), (ConcatDataset, ([Words()],)), (TensorDataset, (torch.ones(2),))]
)
def test_a_class_that_was_patched_is_asked_for_its_samples(monkeypatch, kind, arguments):
    dataset = kind(*arguments)
    monkeypatch.setattr(kind, "__getitem__", lambda self, index: "patched")
    monkeypatch.setattr(kind, "__getitems__", lambda self, indices: ["patched" for _ in indices], raising=False)
    assert composed(split(dataset), 0) == "patched"


@pytest.mark.parametrize("dataset", [Subset(Words(), [1]), ConcatDataset([Words()]), tensors(), Squares()])
def test_an_object_that_was_patched_is_left_alone(dataset):
    """Python itself does not look for ``__getitem__`` on the object; torch does look there for ``__getitems__``."""
    dataset.__getitems__ = lambda indices: ["patched" for _ in indices]
    assert split(dataset) == Split((), dataset.__getitems__)


class Lazy(Dataset):
    """Passes on what it does not have."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]


def test_a_bulk_method_that_is_only_passed_on_counts_as_torch_counts_it():
    assert split(Lazy(ManyWords())).fetch_many([1]) == ["b"]
    assert split(Lazy(Words())).fetch_many is None


class NoBulk(Bulk):
    __getitems__ = None


def test_a_bulk_method_of_none_is_none():
    assert [stage.label for stage in split(NoBulk()).stages] == ["fetch"]


# what is changed later


def test_what_is_changed_on_the_dataset_later_is_seen():
    words = Words()
    subset = Subset(words, [0, 1])
    concat = ConcatDataset([subset, words])
    parts = [split(dataset) for dataset in (words, subset, concat)]
    words.transform = str.upper
    words.words[1] = "z"
    subset.indices = [2, 1]
    assert [composed(part, 1) for part in parts] == ["Z", "Z", "Z"]
    assert [composed(part, 0) for part in parts] == ["A", "C", "C"]
    words.transform = None
    assert [composed(part, 1) for part in parts] == ["z", "z", "z"]


# users' own


@dataclass
class Recordings:
    names: list[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return f"<{self.names[index]}>"


class Tapes(Recordings):
    pass


@split.register
def _(dataset: Recordings) -> Split:
    return Split((Stage(dataset.names.__getitem__, "find", concurrency=2), Stage("<{}>".format, "wrap")))


def test_users_register_their_own():
    assert [stage.label for stage in split(Tapes(["a"])).stages] == ["find", "wrap"]
    subset = split(Subset(Recordings(["a", "b"]), [1]))
    assert [(stage.label, stage.concurrency) for stage in subset.stages] == [("find", 2), ("wrap", None)]
    assert composed(subset, 0) == "<b>"


def test_a_concat_joins_only_stages_that_run_alike():
    tapes = ConcatDataset([Tapes(["a"]), Tapes(["b"])])
    assert [(stage.label, stage.concurrency) for stage in split(tapes).stages] == [("find", 2), ("wrap", None)]
    assert composed(split(tapes), 1) == "<b>"
    mixed = ConcatDataset([Tapes(["a"]), Words()])
    assert [stage.label for stage in split(mixed).stages] == ["fetch"]
    assert composed(split(mixed), 0) == "<a>"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([Stage(int)],), TypeError, "stages must be a tuple of Stage, got [Stage("),
        (((int,),), TypeError, "stages must be a tuple of Stage, got (<class 'int'>,)"),
        (((),), ValueError, "without fetch_many there must be at least one stage"),
        (((Stage(int),), None, True), ValueError, "collated must be False"),
        (((), list, True), ValueError, "with collated=True there must be stages too"),
    ],
)
def test_a_split_that_makes_no_sample_is_refused(arguments, error, words):
    with pytest.raises(error) as caught:
        Split(*arguments)
    assert words in str(caught.value)


def test_hugging_face_datasets_are_taken_in_bulk():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"word": ["a", "b", "c"], "number": [1, 2, 3]})
    parts = split(Subset(table, [2, 0, 1]))
    assert parts.stages == ()
    assert_same(parts.fetch_many([0, 2]), [table[2], table[1]])


def test_an_async_bulk_method_stays_async_behind_a_subset():
    class Later(Words):
        async def fetch_many(self, indices):
            return [self.fetch(index) for index in indices]

    parts = split(Subset(Later(), [2, 1]))
    assert call(parts.fetch_many, [1, 0, 1]) == [b"b", b"c", b"b"]
    with pytest.raises(IndexError):
        call(parts.fetch_many, [7])
