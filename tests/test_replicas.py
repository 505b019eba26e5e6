"""Replicas: whole copies of objects, alike in all that can be seen and apart in all that can be changed."""

import collections
import enum
import functools
import io
import mmap
import random
import sqlite3
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from torchstage import replicas as module
from torchstage.copies import CannotCopy
from torchstage.replicas import replicas


def copy_of(value: Any) -> Any:
    (own,) = replicas(1, value=value)
    return own.roots["value"]


class Plain:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("inner", "never")

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class SlottedBelow(Slotted):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.more = [inner]


class Named(NamedTuple):
    first: Any
    second: Any


class Words(list[str]):
    language = "none"


class Color(enum.Enum):
    RED = [1]  # noqa: RUF012


@dataclass
class Fields:
    values: list[int] = field(default_factory=lambda: [1, 2])


class Asking:
    """Answers for any attribute, by asking what is not there yet while it is copied."""

    def __init__(self) -> None:
        self.inner = [1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Pickling:
    """Leaves out what pickle cannot take, and makes it again."""

    def __init__(self) -> None:
        self.kept = [1]
        self.generator = (number for number in range(3))

    def __getstate__(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]
        self.generator = (number for number in range(3))


# What may change is copied ----------------------------------------------------------------------------------

CHANGING = {
    "list": [1, [2], {"a": [3]}],
    "dict": {"a": [1], ("b", 2): {"c": [3]}},
    "set": [{1, 2}, {3}],
    "deque": collections.deque([[1], [2]], maxlen=3),
    "defaultdict": collections.defaultdict(list, {"a": [1]}),
    "counter": collections.Counter("abc"),
    "bytearray": bytearray(b"abc"),
    "array": np.arange(6).reshape(2, 3),
    "small part of an array": np.arange(100)[::7],
    "tensor": torch.arange(6),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "sparse": torch.eye(3).to_sparse(),
    "masked": np.ma.masked_array([1, 2], [True, False]),
    "list of a subclass": Words(["a"]),
}


@pytest.mark.parametrize("name", CHANGING)
def test_what_may_change_is_copied(name: str) -> None:
    value = CHANGING[name]
    twin = copy_of(value)
    assert twin is not value
    assert type(twin) is type(value)
    assert repr(twin) == repr(value)
    assert getattr(twin, "maxlen", None) == getattr(value, "maxlen", None)


def test_no_depth_and_no_length_hides_what_may_change() -> None:
    value: Any = [[number] for number in range(5000)]
    for _ in range(50):
        value = Plain(inner=value)
    twin = copy_of(value)
    while isinstance(value, Plain):
        assert twin is not value
        value, twin = value.inner, twin.inner
    assert twin == value
    assert not any(one is other for one, other in zip(value, twin, strict=True))


def test_attributes_and_slots_are_copied() -> None:
    value = Plain(slotted=Slotted([1]), below=SlottedBelow([2]), fields=Fields(), named=Named([3], 4))
    twin = copy_of(value)
    assert twin.slotted.inner == [1] and twin.slotted.inner is not value.slotted.inner  # noqa: PT018
    assert not hasattr(twin.slotted, "never")
    assert twin.below.more == [[2]] and twin.below.more[0] is twin.below.inner  # noqa: PT018
    assert twin.fields == value.fields and twin.fields.values is not value.fields.values  # noqa: PT018
    assert type(twin.named) is Named
    assert twin.named.first is not value.named.first


def test_what_is_shared_inside_stays_shared_inside() -> None:
    inner = [1]
    (own,) = replicas(1, one=Plain(a=inner, b=[inner]), other=inner)
    one, other = own.roots["one"], own.roots["other"]
    assert one.a is one.b[0] is other
    assert other is not inner


def test_circles_are_copied() -> None:
    value = Plain()
    value.me, value.all = value, [value]
    value.pair = (value, value.all)
    twin = copy_of(value)
    assert twin.me is twin is twin.all[0] is twin.pair[0]
    assert twin.all is twin.pair[1]
    ring: Any = ([],)
    ring[0].append(ring)
    twin = copy_of(ring)
    assert twin[0][0] is twin is not ring


def test_each_replica_is_its_own() -> None:
    one, other = (own.roots["value"] for own in replicas(2, value=[(1, "a")] * 3 + [[2]]))
    one.append(3)
    one[3].append(3)
    assert other == [(1, "a")] * 3 + [[2]]


def test_an_object_s_own_ways_are_followed() -> None:
    class Deep:
        def __deepcopy__(self, memo: Any) -> str:
            return "deep"

    assert copy_of([Deep()]) == ["deep"]
    twin = copy_of(Pickling())
    assert (twin.kept, list(twin.generator)) == ([1], [0, 1, 2])
    assert copy_of(Asking()).append(2) is None
    assert copy_of(Color.RED) is Color.RED


# Functions --------------------------------------------------------------------------------------------------


def counting() -> Any:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    def tell() -> int:
        return count

    return add, tell


def test_functions_take_what_they_close_over_with_them() -> None:
    add, tell = counting()
    add()
    (own,) = replicas(1, add=add, tell=tell)
    assert [own.roots["add"]() for _ in range(3)] == [2, 3, 4]
    assert (own.roots["tell"](), tell()) == (4, 1)


def test_a_function_that_calls_itself_calls_its_copy() -> None:
    seen: list[int] = []

    def down(number: int, *, step: int = 1) -> list[int]:
        seen.append(number)
        return down(number - step) if number else seen

    twin = copy_of(down)
    assert twin(2) == [2, 1, 0]
    assert seen == []
    assert (twin.__name__, twin.__qualname__, twin.__kwdefaults__) == ("down", down.__qualname__, {"step": 1})


def test_defaults_of_functions_made_inside_others_are_copied() -> None:
    part = [1]
    (own,) = replicas(1, bound=lambda number, part=part, *, kept=part: (part, kept), part=part)
    assert own.roots["bound"](0) == ([1], [1])
    assert own.roots["bound"](0)[0] is own.roots["bound"](0)[1] is own.roots["part"]
    assert own.roots["part"] is not part


def test_functions_of_modules_and_classes_are_the_same_for_all() -> None:
    for value in (counting, Plain, len, torch.stack, np.add, sys, functools.lru_cache(counting), str.upper):
        assert copy_of(value) is value


def test_methods_and_partials_follow_their_objects() -> None:
    value = Plain(log=[])
    value.method = functools.partial(Plain.__init__, value)
    bound = Words(["a"]).__contains__
    (own,) = replicas(1, value=value, part=functools.partial(print, value, end=value.log), bound=bound)
    twin = own.roots["value"]
    assert own.roots["part"].args[0] is twin
    assert own.roots["part"].keywords["end"] is twin.log
    assert twin.method.args[0] is twin
    assert copy_of([fields := Fields(), fields.__eq__])[1].__self__ is not fields


# Shared on purpose ------------------------------------------------------------------------------------------


def test_what_does_not_change_is_shared() -> None:
    for value in (
        "a" * 99,
        b"b" * 99,
        (1, "a", (None, 2.5)),
        range(9),
        torch.float32,
        torch.device("cpu"),
        ...,
        object(),
    ):
        assert copy_of(value) is value
    assert copy_of(frozenset({1})) == {1}


def test_mapped_and_shared_memory_and_locks_are_shared(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(8).tofile(path)
    mapped = np.memmap(path, dtype=np.int64, mode="r+")
    with mmap.mmap(-1, 64) as memory:
        buffered = np.frombuffer(memory, dtype=np.int64)
        fixed = np.arange(3)
        fixed.flags.writeable = False
        shared = torch.zeros(3).share_memory_()
        for value in (mapped, mapped[2:], np.asarray(mapped), buffered, fixed, shared, threading.Lock(), sys.stderr):
            assert copy_of([value])[0] is value
        del buffered, value


def test_very_large_arrays_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ARRAY_BYTES", 80)
    small, large = np.zeros(10), np.zeros(11)
    assert copy_of([small])[0] is not small
    assert copy_of([large])[0] is large
    assert copy_of([torch.zeros(21)]) != []
    tensor = torch.zeros(21)
    assert copy_of([tensor])[0] is tensor


def test_events_and_queues_are_apart_though_their_locks_are_not() -> None:
    event = threading.Event()
    twin = copy_of(event)
    twin.set()
    assert twin.wait(0)
    assert not event.is_set()


# Generators and handles -------------------------------------------------------------------------------------


def test_random_generators_are_copied_in_their_state() -> None:
    made = [random.Random(1), np.random.default_rng(1), np.random.RandomState(1), torch.Generator().manual_seed(1)]
    made[0].random()
    twins = copy_of(made)
    draws = [
        lambda g: g.random(),
        lambda g: g.random(),
        lambda g: g.rand(),
        lambda g: float(torch.rand((), generator=g)),
    ]
    for draw, one, twin in zip(draws, made, twins, strict=True):
        assert draw(one) == draw(twin)
        draw(one)
        assert draw(one) != draw(twin)


class OnClass:
    R = np.random.RandomState(1)


class OnClassBelow(OnClass):
    pass


def test_generators_of_a_class_are_given_to_the_copies() -> None:
    """Or all lanes would draw from one, and which of them is first would decide what each gets."""
    one, other = copy_of([OnClass(), OnClassBelow()])
    assert one.R is other.R is not OnClass.R
    assert one.R.rand() == np.random.RandomState(1).rand()
    assert OnClass.R.get_state()[2] == np.random.RandomState(1).get_state()[2]


def test_files_are_opened_again_and_closed_with_their_replica(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abcdef")
    with path.open("rb") as file, sqlite3.connect(":memory:") as database:
        file.seek(2)
        value = Plain(file=file, database=database, bytes=io.BytesIO(b"xyz"))
        (own,) = replicas(1, value=value)
        twin = own.roots["value"]
        assert (twin.file.read(), file.read()) == (b"cdef", b"cdef")
        assert twin.database is not database
        opened = twin.file
        del own, twin
        assert opened.closed
        assert not file.closed
    database.close()


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"inner": [0, {"key": (number for number in range(3))}]}, r"value\.inner\[1\]\['key'\] \(a generator\): "),
        ({"inner": Slotted([sys._getframe()])}, r"value\.inner\.inner\[0\] \(a frame\): cannot pickle"),
    ],
)
def test_what_has_no_copy_is_named(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(CannotCopy, match=message):
        copy_of(Plain(**attributes))


def test_a_file_that_cannot_be_opened_again_is_named(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file, pytest.raises(CannotCopy, match=r"value\.file \(a BufferedWriter\): "):
        copy_of(Plain(file=file))


def test_what_is_nested_without_end_is_named() -> None:
    value: Any = []
    for _ in range(20_000):
        value = [value]
    with pytest.raises(CannotCopy, match="value is nested too deep"):
        copy_of(value)
    while value:  # or its end would be as deep
        value = value[0]


def test_an_error_of_the_object_s_own_is_told() -> None:
    class Refusing:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise ValueError("not me")

    with pytest.raises(CannotCopy, match=r"value\.inner \(a .*Refusing\): not me"):
        copy_of(Plain(inner=Refusing()))
