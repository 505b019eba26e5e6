"""Stores: one sample may set an attribute to what it was; the code tells that it is set."""

import pytest
from torch.utils.data import Dataset

from torchstage import StageLoader
from torchstage.search import Search
from torchstage.stores import stored_to


class Remembers(Dataset):
    """Keeps the index where it stood at 0, so that the first sample changes nothing."""

    def __init__(self):
        self.at = 0

    def __len__(self):
        return 400

    def __getitem__(self, index):
        self.at = index
        return [0 for _ in range(30)] and self.at


class ByAMethod(Remembers):
    def __getitem__(self, index):
        return self.kept(index)

    def kept(self, index):
        self.at = index
        return [0 for _ in range(30)] and self.at


class InATransform(Dataset):
    def __init__(self):
        self.transform = Draws()

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return self.transform(index)


class Draws:
    def __init__(self):
        self.drawn = 0

    def __call__(self, value):
        self.randomize(value)
        return [0 for _ in range(30)] and self.drawn

    def randomize(self, value):
        self.drawn = value


class ByAnInnerFunction(Remembers):
    def __getitem__(self, index):
        def keep():
            self.at = index

        keep()
        return self.at


class SetElsewhere(Dataset):
    """Only somebody outside sets it."""

    def __init__(self):
        self.at = 0

    def __getitem__(self, index):
        return index

    def set_epoch(self, epoch):
        self.at = epoch


class SetsWhatIsNotPlain(Remembers):
    """Setting a list again gives another list, which is seen."""

    def __init__(self):
        self.at = [0]


def paths(dataset):
    return [node.path for node in stored_to(Search(is_first=True).run(dataset=dataset))]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Remembers, ["dataset"]),
        (ByAMethod, ["dataset"]),
        (ByAnInnerFunction, ["dataset"]),
        (InATransform, ["dataset.transform"]),
        (SetElsewhere, []),
        (SetsWhatIsNotPlain, []),
    ],
)
def test_objects_whose_plain_attributes_a_sample_sets(kind, expected):
    assert paths(kind()) == expected


@pytest.mark.parametrize("kind", [Remembers, ByAMethod, ByAnInnerFunction, InATransform])
def test_the_first_sample_may_set_what_is_there_already(kind, switching_often):
    for _ in range(5):
        assert [int(x) for x in StageLoader(kind(), batch_size=None, num_workers=2)] == list(range(400))


def test_an_object_without_code_of_its_own_is_no_trouble():
    assert paths(object()) == []
    assert paths([1, {"a": (2,)}]) == []


@pytest.fixture
def switching_often():
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
