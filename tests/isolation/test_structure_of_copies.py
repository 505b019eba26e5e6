"""What a dataset is made of stays in shape in each thread's copy: types, identities, circles, and who is whose."""

import collections
import dataclasses
import enum
import functools
import threading
import types
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from .stories import NUM_SAMPLES, Case, Numbered, caught_warnings, pause, values_of


class Changing:
    """A part that changes with each sample, so that whatever holds it has to be copied."""

    def __init__(self):
        self.count = 0

    def is_alone(self):
        self.count += 1
        mine = self.count
        pause()
        return self.count == mine


class Shaped(Numbered):
    """Each sample says what is wrong with the dataset that makes it; nothing, it should be."""

    def __init__(self):
        self.part = Changing()

    def __getitem__(self, index):
        wrong = [] if self.part.is_alone() else ["two threads at once"]
        return wrong + [line for line, is_right in self.invariants() if not is_right]

    def invariants(self):
        return []


class Pair(NamedTuple):
    first: Any
    second: Any


class Word(enum.Enum):
    A = 1


class Containers(Shaped):
    def __init__(self):
        super().__init__()
        part = self.part
        self.ordered = collections.OrderedDict(a=part)
        self.default = collections.defaultdict(list, a=part)
        self.bounded = collections.deque([1, part], maxlen=2)
        self.pair = Pair(part, Word.A)
        self.namespace = types.SimpleNamespace(part=part)
        self.counter = collections.Counter(a=3)
        self.chain = collections.ChainMap({"a": part})
        self.array = np.zeros(3)
        self.nested = {"a": [(part,), {"b": [part]}]}

    def invariants(self):
        part = self.part
        yield "OrderedDict", type(self.ordered) is collections.OrderedDict and self.ordered["a"] is part
        yield "defaultdict", type(self.default) is collections.defaultdict and self.default["a"] is part
        yield "default_factory", self.default.default_factory is list
        yield "deque", self.bounded.maxlen == 2 and self.bounded[1] is part
        yield "namedtuple", type(self.pair) is Pair and self.pair.first is part and self.pair.second is Word.A
        yield "namespace", self.namespace.part is part
        yield "Counter", type(self.counter) is collections.Counter and self.counter["a"] == 3
        yield "ChainMap", self.chain["a"] is part
        yield "nested", self.nested["a"][0][0] is part and self.nested["a"][1]["b"][0] is part


class Owned:
    def __init__(self, owner):
        self.owner = owner


class Circles(Shaped):
    def __init__(self):
        super().__init__()
        self.myself = self
        self.child = Owned(self)
        self.children = [Owned(self), Owned(self.child)]
        self.ring = [None]
        self.ring[0] = self.ring
        self.ring.append(self.part)
        self.looped = {"me": self}

    def invariants(self):
        yield "itself", self.myself is self
        yield "child", self.child.owner is self
        yield "children", self.children[0].owner is self and self.children[1].owner is self.child
        yield "ring", self.ring[0] is self.ring and self.ring[1] is self.part
        yield "loop", self.looped["me"] is self


def is_alone_of(part):
    return part.is_alone()


class Callables(Shaped):
    def __init__(self):
        super().__init__()
        self.read = self.part.is_alone
        self.bound = self.own
        self.partial = functools.partial(is_alone_of, self.part)
        self.closure = lambda: self.part
        self.default = self.with_default(self.part)
        self.keyword = self.with_keyword(self.part)
        self.wrapped = functools.wraps(is_alone_of)(lambda: self.part)

    @staticmethod
    def with_default(part):
        def function(given=part):
            return given

        return function

    @staticmethod
    def with_keyword(part):
        def function(*, given=part):
            return given

        return function

    def own(self):
        return self

    def invariants(self):
        part = self.part
        yield "method", self.read.__self__ is part
        yield "own method", self.bound() is self
        yield "partial", self.partial.args[0] is part
        yield "closure", self.closure() is part
        yield "default", self.default() is part
        yield "keyword default", self.keyword() is part
        yield "wrapped", self.wrapped() is part and self.wrapped.__name__ == "is_alone_of"


class Base:
    __slots__ = ("part",)


class Slots(Base):
    __slots__ = ("__dict__", "never", "other")


@dataclasses.dataclass(frozen=True)
class Frozen:
    part: Any
    name: str = "frozen"


@dataclasses.dataclass(slots=True, frozen=True)
class FrozenSlots:
    part: Any


class Guarded:
    """Has ways of its own to get and set attributes."""

    def __init__(self, part):
        object.__setattr__(self, "part", part)

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} cannot be set")

    def __getattr__(self, name):
        return getattr(self.part, name)  # endless, as long as there is no part


class Needy:
    """Cannot be made without arguments, and can be neither copied nor pickled."""

    def __new__(cls, part, *, needed):
        self = super().__new__(cls)
        self.part = part
        return self

    def __init__(self, part, *, needed):
        self.needed = needed

    def __copy__(self):
        raise TypeError("no copies")

    def __deepcopy__(self, memo):
        raise TypeError("no copies")

    def __reduce_ex__(self, protocol):
        raise TypeError("no pickles")


class Objects(Shaped):
    def __init__(self):
        super().__init__()
        part = self.part
        self.slots = Slots()
        self.slots.part, self.slots.other, self.slots.more = part, 3, [part]
        self.frozen, self.frozen_slots = Frozen(part), FrozenSlots(part)
        self.guarded = Guarded(part)
        self.needy = Needy(part, needed=1)

    def invariants(self):
        part = self.part
        yield "slots", self.slots.part is part and self.slots.other == 3 and self.slots.more[0] is part
        yield "unset slot", not hasattr(self.slots, "never")
        yield "frozen", self.frozen.part is part and self.frozen.name == "frozen"
        yield "frozen slots", self.frozen_slots.part is part
        yield "guarded", self.guarded.part is part
        yield "needy", self.needy.part is part and self.needy.needed == 1


class Step(torch.nn.Module):
    """As a transform of torchvision v2; with a buffer that changes."""

    def __init__(self, part):
        super().__init__()
        self.part = part
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("scratch", torch.zeros(2))

    def forward(self, value):
        self.scratch.fill_(value + 1)
        pause()
        return float(self.scratch.sum())


class Modules(Shaped):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Sequential(Step(self.part), torch.nn.Identity()).eval()
        self.weight = self.network[0].linear.weight

    def __getitem__(self, index):
        wrong = super().__getitem__(index)
        return wrong if self.network(float(index)) == 2.0 * (index + 1) else [*wrong, "another sample's buffer"]

    def invariants(self):
        step = self.network[0]
        yield "module", step.part is self.part
        yield "buffer", step.scratch is step._buffers["scratch"]
        yield "parameter", step.linear.weight is self.weight
        yield "mode", not step.training


class Dictionary(dict):
    """A dict with attributes, as configurations are."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __setattr__ = dict.__setitem__


class Steps(list):
    def __init__(self, steps, name):
        super().__init__(steps)
        self.name = name


class Subclasses(Shaped):
    def __init__(self):
        super().__init__()
        self.config = Dictionary(part=self.part, inner=Dictionary(part=self.part))
        self.steps = Steps([self.part, abs], "steps")

    def invariants(self):
        yield "dict", type(self.config) is Dictionary and self.config.part is self.part
        yield "dict in dict", type(self.config.inner) is Dictionary and self.config.inner.part is self.part
        yield "list", type(self.steps) is Steps and self.steps[0] is self.part and self.steps.name == "steps"


class Tools(Shaped):
    """Locks and events are shared: threads of other copies may wait for them."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.condition = threading.Condition()
        self.local = threading.local()
        self.kind = Changing
        self.module = functools
        self.known = [self.lock, self.condition, self.kind, self.module]

    def __getitem__(self, index):
        with self.lock, self.condition:
            self.local.index = index
        return super().__getitem__(index)

    def invariants(self):
        yield "class", self.kind is Changing
        yield "module", self.module is functools
        yield "thread's own", isinstance(self.local.index, int)


class Weak(Shaped):
    """Weak references to oneself, as observers and parents have them."""

    def __init__(self):
        super().__init__()
        self.reference = weakref.ref(self)

    def invariants(self):
        yield "weak reference", self.reference() is not None


class Keyed(Shaped):
    """Keys and members by identity."""

    def __init__(self):
        super().__init__()
        self.table = {self.part: "part"}
        self.members = {self.part}

    def invariants(self):
        yield "key", self.table.get(self.part) == "part"
        yield "member", self.part in self.members


SHAPES = [Containers, Circles, Callables, Objects, Modules, Subclasses, Tools, Weak, Keyed]


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
@pytest.mark.parametrize("kind", SHAPES)
def test_it_keeps_its_shape(kind, isolation, short_switch_interval):
    with caught_warnings() as messages:
        loader = Case(kind()).loader(isolation=isolation)
        for _ in range(2):
            assert values_of(loader) == [[]] * NUM_SAMPLES
    assert messages == []


@pytest.mark.parametrize("kind", SHAPES)
def test_the_story_is_true(kind):
    dataset = kind()
    assert [dataset[index] for index in range(3)] == [[]] * 3


@pytest.mark.parametrize("kind", SHAPES)
def test_the_users_own_keeps_its_shape_and_state(kind):
    dataset = kind()
    with caught_warnings():
        values_of(Case(dataset).loader())
    assert dataset.part.count == 0
    assert dataset[0] == []
