"""Watched: loaders by name, and windows that keep none of them."""

import gc
import weakref

import pytest
from torch.utils.data import DataLoader

from torchstage import StageLoader
from torchstage.observe.watched import Windows, named

from .feeding import Numbers, loader_of, take_all


def test_a_loader_alone_has_no_name_and_others_have_theirs():
    loader = loader_of()
    assert named(loader, "it") == {"": loader}
    assert named({"train": loader, 3: loader}, "it") == {"train": loader, "3": loader}


def test_keys_that_read_alike_are_told_apart():
    first, second = loader_of(), loader_of()
    assert named({3: first, "3": second}, "it") == {"3": first, "3_2": second}


@pytest.mark.parametrize(
    ("loaders", "said"),
    [
        (DataLoader(Numbers()), "it needs a StageLoader, or a mapping of names to StageLoaders; got a DataLoader."),
        ({"val": [1]}, "'val' is a list."),
        (StageLoader, "got the class StageLoader."),
        (None, "got a NoneType."),
    ],
)
def test_what_is_no_stage_loader_is_refused(loaders, said):
    with pytest.raises(TypeError) as caught:
        named(loaders, "it")
    assert str(caught.value).endswith(said)


def test_a_window_is_what_was_done_since_the_one_before():
    loader, windows = loader_of(), Windows()
    take_all(loader)
    assert windows.next_of(loader).batches == 10
    assert windows.next_of(loader).batches == 0
    take_all(loader)
    assert windows.next_of(loader).batches == 10


def test_windows_keep_no_loader():
    loader, windows = loader_of(), Windows()
    take_all(loader)
    windows.next_of(loader)
    there = weakref.ref(loader)
    del loader
    gc.collect()
    assert there() is None
