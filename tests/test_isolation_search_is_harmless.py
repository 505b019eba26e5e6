"""Isolation's search is harmless: it runs no code of the user's, and ends soon however much there is to see."""

import collections.abc
import itertools
import threading
import time
import types
import warnings

import pytest
from torch.utils.data import Dataset

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


def search(dataset) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Guard("auto").must_serialise(dataset, None, warn=True)


# User code -------------------------------------------------------------------------------------------------


class Called(BaseException):
    """User code ran that nobody asked for."""


def trap(*arguments, **keywords):
    raise Called


def with_trap(name, base=object):
    """An object whose method ``name`` must not be called."""
    return type("Trapped", (base,), {name: trap})()


class Slotless:
    __slots__ = ("__weakref__",)

    def __getattr__(self, name):
        raise Called


class LazyList(list):
    """Reads its elements when they are asked for."""

    __getitem__ = __len__ = __iter__ = trap


class LazyDict(dict):
    __getitem__ = __len__ = __iter__ = items = keys = values = trap


class LazyTuple(tuple):
    __getitem__ = __len__ = __iter__ = trap


class LazyMapping(collections.abc.Mapping):
    __getitem__ = __len__ = __iter__ = trap


class LazySequence(collections.abc.Sequence):
    __getitem__ = __len__ = trap


class Key:
    __repr__ = trap


@pytest.mark.parametrize(
    "name",
    ["__getattr__", "__eq__", "__hash__", "__bool__", "__len__", "__iter__", "__repr__", "__call__", "__getitem__"],
)
def test_no_method_of_the_users_is_called(name):
    assert not search(Holder(held=with_trap(name)))


@pytest.mark.parametrize(
    "held",
    [
        Slotless(),
        LazyList([1]),
        LazyDict(a=1),
        LazyTuple([1]),
        LazyMapping(),
        LazySequence(),
        {Key(): 1},
        types.SimpleNamespace(inner=with_trap("__getattr__")),
    ],
    ids=lambda held: type(held).__name__,
)
def test_nothing_that_is_lazy_is_made_to_work(held):
    assert not search(Holder(held=held))


def test_no_property_is_read():
    assert not search(Holder(held=type("Computed", (), {"value": property(trap)})()))


def test_a_stand_in_for_something_lazy_is_not_asked_for_its_class():
    """Lazy objects and proxies, as web frameworks and wrapt have them, are made when this is read."""
    assert not search(Holder(held=type("Proxy", (), {"__class__": property(trap)})()))


def test_the_dataset_itself_may_be_as_lazy():
    """Its own methods are called by the loader, and by nobody else."""

    class Lazy(Holder):
        def __getattr__(self, name):
            if not name.startswith("__"):
                calls.append(name)
            raise AttributeError(name)

    calls: list[str] = []
    assert not search(Lazy())
    assert calls == []


def test_an_unfinished_object_is_no_trouble():
    def recursive():
        return unfilled  # a cell without content

    assert not search(Holder(held=recursive))
    unfilled = None


def test_circles_are_walked_once():
    ring: list = []
    ring.append([ring])
    node = types.SimpleNamespace()
    node.parent = types.SimpleNamespace(child=node)
    dataset = Holder(ring=ring, node=node)
    dataset.myself = dataset
    assert not search(dataset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(StageLoader(dataset, num_workers=2))) == 8


def test_a_container_may_change_under_way():
    """Another thread of the user's fills it: whoever looks sees some of it, and no error."""

    class Changing(dict):
        """Grows while it is looked at."""

    growing = Changing()
    numbers = itertools.count()
    stop = threading.Event()

    def grow():
        while not stop.is_set():
            growing[next(numbers) % 1000] = object()
            growing.pop(next(numbers) % 1000, None)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(200):
            assert not search(Holder(held=growing))
    finally:
        stop.set()
        thread.join()


# Time ------------------------------------------------------------------------------------------------------

NUM_OBJECTS = 1_000_000


class Node:
    __slots__ = ("next",)

    def __init__(self, next_node):
        self.next = next_node


def a_list_of_strings():
    return [str(number) for number in range(NUM_OBJECTS)]


def a_list_of_objects():
    return [object() for _ in range(NUM_OBJECTS)]


def lists_of_lists():
    return [[[object() for _ in range(100)] for _ in range(100)] for _ in range(100)]


def dicts_of_dicts():
    return {a: {b: {c: (a, b, c) for c in range(100)} for b in range(100)} for a in range(100)}


def a_long_chain():
    node = None
    for _ in range(100_000):
        node = Node(node)
    return node


def an_object_of_many_attributes():
    namespace = types.SimpleNamespace()
    namespace.__dict__.update((f"a{number}", number) for number in range(NUM_OBJECTS // 4))
    return namespace


def a_set():
    return set(range(NUM_OBJECTS))


@pytest.mark.parametrize(
    "build",
    [
        a_list_of_strings,
        a_list_of_objects,
        lists_of_lists,
        dicts_of_dicts,
        a_long_chain,
        a_set,
        pytest.param(
            an_object_of_many_attributes,
            marks=pytest.mark.xfail(
                strict=True, reason="the attributes of one object are all listed before the clock is read"
            ),
        ),
    ],
)
def test_a_million_objects_are_searched_in_no_time(build):
    dataset = Holder(held=build())
    guard = Guard("auto")

    def seconds() -> float:
        """Of this thread's CPU: what others do to the machine is not the question."""
        begin = time.thread_time()
        assert not guard.must_serialise(dataset, None, warn=True)
        return time.thread_time() - begin

    assert min(seconds() for _ in range(3)) < 0.06
    guard.is_tried = True  # from the second epoch on, which begins in no time
    assert min(seconds() for _ in range(3)) < 0.01
