"""Unpicklable: what pickle refuses is named by where it is, what it is and what to do."""

import functools
import multiprocessing
import multiprocessing.pool
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from torchstage.executors.contents import gathered, refuse
from torchstage.executors.unpicklable import NotPicklable, explain

h5py = pytest.importorskip("h5py")


class Holder:
    """Holds what it is given."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def method(self):
        pass


class Slotted:
    __slots__ = ("part",)

    def __init__(self, part):
        self.part = part


class Guarded:
    def __init__(self, part):
        self._part = part

    def __getstate__(self):
        return {"kept": self._part}


def named(value):
    return explain(value, {"dataset": value}, TypeError("pickle's own words"))


def local_class():
    class Local:
        pass

    return Local()


def local_function():
    def inner():
        pass

    return inner


@pytest.mark.parametrize(
    ("value", "path", "what", "way"),
    [
        (Holder(fn=lambda x: x), "dataset.fn", rf"a lambda at {__file__}:\d+", "function at the top of a module"),
        (
            Holder(transform=Holder(transforms=[len, Holder(), lambda x: x])),
            "dataset.transform.transforms[2]",
            "a lambda",
            "function at the top",
        ),
        (Holder(fn=local_function()), "dataset.fn", "local_function.<locals>.inner at", "function at the top"),
        (Holder(by={"a": {3: local_class()}}), "dataset.by['a'][3]", "a class inside a function", "class at the top"),
        ((1, Holder(it=iter(x for x in "ab"))), "dataset[1].it", "a generator", "Make it in the process"),
        (Holder(lock=threading.Lock()), "dataset.lock", "for threads (_thread.lock)", "__setstate__"),
        (Slotted(threading.local()), "dataset.part", "_thread._local", "__setstate__"),
        (Holder(os=os), "dataset.os", "the module os", "Import it in the function"),
        (functools.partial(print, 1, Holder(f=lambda: 0)), "dataset.args[1].f", "a lambda", "top of a module"),
        (Holder(call=Holder(x=lambda: 0).method), "dataset.call.__self__.x", "a lambda", "top of a module"),
        (Guarded(lambda: 0), "dataset.kept", "a lambda", "top of a module"),
        ({lambda: 0}, "dataset{...}", "a lambda", "top of a module"),
    ],
    ids=lambda part: part[:30] if isinstance(part, str) else None,
)
def test_the_deepest_part_that_fails_is_named(value, path, what, way):
    error = named(value)
    assert type(error) is NotPicklable
    assert error.path == path
    assert what.replace(rf"{__file__}:\d+", __file__) in error.what
    assert way in str(error)
    assert "worker_method='thread'" in str(error)


def test_open_files_and_databases_are_to_be_opened_in_the_process(tmp_path):
    connection = sqlite3.connect(":memory:")
    with Path(__file__).open() as file, h5py.File(tmp_path / "rows.h5", "w") as rows:
        for handle, what in ((file, __file__), (connection, "sqlite3.Connection"), (rows, "rows.h5")):
            error = named(Holder(handle=handle))
            assert error.path == "dataset.handle"
            assert what in error.what
            assert "__getstate__" in str(error)
            assert "worker_init_fn" in str(error)
    connection.close()


class LikeRawValue:
    """As what ctypes makes in shared memory: its class is not one of multiprocessing's."""

    def __reduce__(self):
        multiprocessing.context.assert_spawning(self)


@pytest.mark.parametrize(
    "make", [multiprocessing.Lock, multiprocessing.Event, multiprocessing.Queue, LikeRawValue], ids=lambda f: f.__name__
)
def test_what_only_forked_processes_share_is_not_to_be_opened_once_more_in_each(make):
    value = Holder(shared=make())
    with pytest.raises(RuntimeError) as caught:
        gathered(value, refuse)
    error = explain(value, {"dataset": value}, caught.value)
    assert error.path == "dataset.shared", "not a part of it"
    assert "multiprocessing_context='fork'" in str(error)
    assert "multiprocessing.Manager()" in str(error)
    assert "at its first use" not in str(error)


def test_a_pool_is_to_be_made_in_the_process():
    with multiprocessing.pool.ThreadPool(1) as pool:
        error = named(Holder(pool=pool))
    pool.join()
    assert "belongs to one process" in error.what
    assert "Make it in the process" in str(error)


def test_a_value_in_a_circle_is_gone_through_once():
    holder = Holder(fn=lambda: 0)
    holder.me = holder
    assert named(holder).path == "dataset.fn"


@pytest.mark.timing
def test_a_large_container_costs_a_bounded_time():
    begin = time.monotonic()
    error = named(Holder(many=[Holder(number=number) for number in range(5_000)] + [lambda: 0]))
    assert time.monotonic() - begin < 20
    assert error.path.startswith("dataset.many")


def test_an_error_of_the_objects_own_is_told():
    class_error = named(Holder(part=Angry()))
    assert class_error.path == "dataset.part"
    assert "Angry" in class_error.what


class Angry:
    def __reduce__(self):
        raise ValueError("not me")
