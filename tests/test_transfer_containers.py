"""Transfer of containers: whatever a batch is made of, it arrives as what it was, and what was sent stays as it was."""

import dataclasses
import types
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    defaultdict,
    deque,
    namedtuple,
)
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from fake_accelerator import FakeAccelerator, arrival
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from torchstage.nested import DESCEND, replaced
from torchstage.transfer import Transfer


@pytest.fixture
def fake() -> FakeAccelerator:
    return FakeAccelerator()


@pytest.fixture
def arrived(fake):
    return arrival(fake)


def ones() -> torch.Tensor:
    return torch.ones(2)


Point = namedtuple("Point", "x y")


class Named(NamedTuple):
    image: torch.Tensor
    label: int = 3


class Attributed(Point):
    """A named tuple that takes one argument, and has attributes."""

    def __new__(cls, x):
        return super().__new__(cls, x, "y")


class Listed(list):
    """A list with attributes."""


class Strict(list):
    """A list that nobody may change."""

    def __setitem__(self, key, value):
        raise TypeError("it is frozen")

    append = extend = __setitem__


class Dictionary(dict):
    """A dict with attributes and methods."""

    def images(self) -> torch.Tensor:
        return self["image"]


class Frozen(dict):
    """A dict that nobody may change."""

    def __setitem__(self, key, value):
        raise TypeError("it is frozen")

    update = setdefault = __setitem__


class Wrapper(MutableMapping):
    """A mapping whose elements lie in a dict of its own: a shallow copy shares it."""

    def __init__(self, name):
        self.name = name
        self.store = {}

    def __getitem__(self, key):
        return self.store[key]

    def __setitem__(self, key, value):
        self.store[key] = value

    def __delitem__(self, key):
        del self.store[key]

    def __iter__(self):
        return iter(self.store)

    def __len__(self):
        return len(self.store)


class Immutable(Mapping):
    __slots__ = ("_pairs",)

    def __init__(self, pairs):
        self._pairs = tuple(dict(pairs).items())

    def __getitem__(self, key):
        return dict(self._pairs)[key]

    def __iter__(self):
        return iter(dict(self._pairs))

    def __len__(self):
        return len(self._pairs)


class Row(MutableSequence):
    """A sequence whose elements lie in a list of its own."""

    def __init__(self, first, second):
        self.elements = [first, second]

    def __getitem__(self, key):
        return self.elements[key]

    def __setitem__(self, key, value):
        self.elements[key] = value

    def __delitem__(self, key):
        del self.elements[key]

    def insert(self, index, value):
        self.elements.insert(index, value)

    def __len__(self):
        return len(self.elements)


class Aliased(OrderedDict):
    """Its elements are its attributes too, as in the outputs of a well-known library of models."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.__dict__[key] = value


@dataclasses.dataclass
class Data:
    image: torch.Tensor
    label: int = 1
    more: list = dataclasses.field(default_factory=list)
    area: int = dataclasses.field(init=False, default=7)


@dataclasses.dataclass(frozen=True)
class FrozenData:
    image: torch.Tensor
    nested: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class SlottedData:
    image: torch.Tensor
    label: int = 1


@dataclasses.dataclass
class Checked:
    """May be made in one way only."""

    image: torch.Tensor
    token: dataclasses.InitVar[str]
    made: int = dataclasses.field(init=False)

    def __post_init__(self, token):
        assert token == "open"
        self.made = 1


def with_attributes(container: Any) -> Any:
    container.name = "kept"
    container.sizes = [1, 2]
    return container


def wrapper() -> Wrapper:
    made = Wrapper("kept")
    made.update(image=ones(), label=1)
    return made


CONTAINERS = {
    "list": lambda: [ones(), 1, "a"],
    "tuple": lambda: (ones(), None),
    "dict": lambda: {"image": ones(), 3: b"x"},
    "ordered dict": lambda: OrderedDict(b=ones(), a=ones()),
    "default dict": lambda: defaultdict(list, {"image": ones()}),
    "counter": lambda: Counter({"image": ones()}),
    "user dict": lambda: with_attributes(UserDict({"image": ones()})),
    "user list": lambda: with_attributes(UserList([ones()])),
    "deque": lambda: deque([ones(), 2], maxlen=5),
    "named tuple": lambda: Point(ones(), "y"),
    "typed named tuple": lambda: Named(ones()),
    "named tuple with attributes": lambda: with_attributes(Attributed(ones())),
    "list with attributes": lambda: with_attributes(Listed([ones(), [ones()]])),
    "list that forbids changes": lambda: with_attributes(Strict([ones()])),
    "dict with attributes": lambda: with_attributes(Dictionary(image=ones())),
    "dict that forbids changes": lambda: with_attributes(Frozen(image=ones())),
    "mapping of the user's own": wrapper,
    "immutable mapping": lambda: Immutable({"image": ones(), "label": 2}),
    "proxy": lambda: types.MappingProxyType({"image": ones()}),
    "chain of mappings": lambda: ChainMap({"image": ones()}, {"label": 1}),
    "sequence of the user's own": lambda: Row(ones(), "a"),
    "elements that are attributes": lambda: Aliased(image=ones()),
    "result of sort": lambda: torch.tensor([3.0, 1.0]).sort(),
    "dataclass": lambda: Data(ones(), 2, [ones()]),
    "frozen dataclass": lambda: FrozenData(ones(), (ones(),)),
    "dataclass with slots": lambda: SlottedData(ones()),
    "dataclass that checks its arguments": lambda: Checked(ones(), "open"),
    "nested": lambda: {"a": [Point(Data(ones()), (ones(),))], "b": Listed([{"c": ones()}])},
}


def assert_alike(got: Any, sent: Any, fake: FakeAccelerator) -> None:
    """The same types, attributes, order and values; every tensor on the device."""
    assert type(got) is type(sent)
    if isinstance(sent, torch.Tensor):
        assert fake.is_there(got)
        assert torch.equal(got, sent)
    elif isinstance(sent, Mapping):
        assert list(got) == list(sent)
        for key in sent:
            assert_alike(got[key], sent[key], fake)
    elif isinstance(sent, Sequence) and not isinstance(sent, str | bytes):
        assert len(got) == len(sent)
        for one, other in zip(got, sent, strict=True):
            assert_alike(one, other, fake)
    elif dataclasses.is_dataclass(sent):
        for field in dataclasses.fields(sent):
            assert_alike(getattr(got, field.name), getattr(sent, field.name), fake)
    else:
        assert got is sent
    for name in ("name", "sizes", "maxlen", "default_factory"):
        assert getattr(got, name, None) == getattr(sent, name, None)


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in CONTAINERS.items()])
def test_a_container_arrives_as_what_it_was(fake, arrived, make):
    sent = make()
    assert_alike(arrived(sent), sent, fake)


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    replaced(value, lambda inner: found.append(inner) or inner if isinstance(inner, torch.Tensor) else DESCEND)
    return found


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in CONTAINERS.items()])
def test_what_was_sent_stays_as_it_was(fake, arrived, make):
    sent = make()
    before = tensors_in(sent)
    arrived(sent)
    assert before
    assert all(one is other for one, other in zip(tensors_in(sent), before, strict=True))
    assert not any(fake.is_there(tensor) for tensor in before)


def test_a_packed_sequence_moves_itself_and_keeps_its_sizes_in_host_memory(fake):
    route = Transfer("cpu").route()
    sent = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    got = route.end(route.begin(route.pin(sent)))
    assert type(got) is PackedSequence
    assert all(torch.equal(one, other) for one, other in zip(got, sent, strict=True))


def test_an_attribute_that_is_an_element_is_the_new_one_too(arrived):
    got = arrived(Aliased(image=ones()))
    assert got.image is got["image"]
    noted = Listed([ones()])
    noted.first, noted.other = noted[0], ones()
    got = arrived(noted)
    assert got.first is got[0]
    assert got.other is noted.other


def test_a_container_in_which_nothing_moves_is_not_made_anew(arrived):
    for same in ([1, "a"], {"a": None}, ("a", [2.0]), range(3), Listed("ab"), Data("no tensor"), Immutable({"a": 1})):
        assert arrived(same) is same


@pytest.mark.parametrize(
    "value", [None, 3, 2.5, 1j, True, "text", b"bytes", bytearray(2), np.ones(2), object(), torch.float32, {1, 2}, ones]
)
def test_what_is_no_tensor_passes_untouched(arrived, value):
    assert arrived(value) is value
    assert arrived([value, ones()])[0] is value


def test_what_occurs_twice_is_one_thing_twice(fake, arrived):
    tensor, inner = ones(), [ones()]
    got = arrived({"a": tensor, "b": [tensor, inner], "c": inner})
    assert got["a"] is got["b"][0]
    assert got["b"][1] is got["c"]
    assert fake.log.count("copy on side") == 2


class Fresh(Sequence):
    """Makes its elements when they are asked for: no two may be taken for one, however often an address comes again."""

    def __len__(self):
        return 50

    def __getitem__(self, index):
        if index >= 50:
            raise IndexError
        return torch.tensor([float(index)])


def test_a_sequence_that_cannot_be_made_again_is_an_error_that_tells_what_to_do(arrived):
    with pytest.raises(TypeError, match=r"Fresh cannot be made again .* Give the class a method to\(device"):
        arrived(Fresh())


def test_elements_made_on_the_way_are_told_apart():
    seen: list[float] = []

    def give(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            seen.append(value.item())
            return value.clone()
        return DESCEND

    replaced([Fresh(), Fresh(), Fresh()], give, must=False)
    assert seen == 3 * list(range(50))


def test_one_that_cannot_be_made_again_can_still_come_from_ordinary_memory(fake):
    sent = Fresh()
    assert Transfer("cpu", lambda device: fake).route().pin(sent) is sent


def test_a_batch_that_contains_itself_ends_in_an_error_and_not_in_a_hang(arrived):
    circle: list[Any] = [ones()]
    circle.append(circle)
    with pytest.raises(RecursionError):
        arrived(circle)
