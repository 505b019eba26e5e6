"""Stage: what is refused and in which words, names, async functions, and one sample's way in words."""

import asyncio
import pickle
from collections import OrderedDict, namedtuple
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass
from functools import partial, wraps

import numpy as np
import pytest
import torch
from PIL import Image

from torchstage.stage import MAX_LETTERS, SampleTrace, Stage, StageTrace, described, is_coroutine_function, named


def decode(value):
    return value


async def fetch(index, prefix=""):
    return f"{prefix}{index}"


class Reader:
    def read(self, index):
        return index

    async def read_later(self, index):
        return index

    @staticmethod
    async def anywhere(index):
        return index

    @classmethod
    async def of_the_class(cls, index):
        return index


class Resize:
    def __call__(self, value):
        return value


class Client:
    async def __call__(self, index):
        return index


@wraps(fetch)
def only_looks_async(index):
    return index


# names


@pytest.mark.parametrize(
    ("fn", "label"),
    [
        (decode, "decode"),
        (lambda value: value, "lambda"),
        (Reader().read, "read"),
        (partial(decode), "decode"),
        (partial(partial(Reader().read)), "read"),
        (Resize(), "Resize"),
        (partial(Resize()), "Resize"),
        (int, "int"),
        (len, "len"),
        (torch.nn.Flatten(), "Flatten"),
        (torch.from_numpy, "from_numpy"),
    ],
)
def test_a_stage_has_the_name_of_its_function(fn, label):
    assert Stage(fn).label == label


def test_a_given_name_is_kept_as_it_was_given():
    assert (Stage(decode, "jpeg").name, Stage(decode, "jpeg").label) == ("jpeg", "jpeg")
    assert Stage(decode).name is None


def test_two_stages_of_one_name_get_different_ones():
    stages = [Stage(decode), Stage(decode), Stage(fetch), Stage(decode), Stage(int, "decode-2")]
    assert named(stages) == ("decode", "decode-3", "fetch", "decode-4", "decode-2")
    assert named([]) == ()


# async


@pytest.mark.parametrize(
    "fn",
    [
        fetch,
        partial(fetch, prefix="a"),
        partial(partial(fetch, prefix="a")),
        Reader().read_later,
        partial(Reader().read_later),
        Reader.anywhere,
        Reader().anywhere,
        Reader.of_the_class,
        Client(),
        partial(Client()),
        Client().__call__,
    ],
)
def test_a_function_that_gives_a_coroutine_is_async(fn):
    assert is_coroutine_function(fn)
    assert Stage(fn).is_async
    coroutine = fn(1)
    assert asyncio.run(coroutine) in (1, "1", "a1")


@pytest.mark.parametrize("fn", [decode, partial(decode), Reader().read, Resize(), Client, int, only_looks_async])
def test_any_other_function_is_not(fn):
    assert not Stage(fn).is_async


def test_an_async_function_in_an_executor_is_refused():
    with ThreadPoolExecutor() as pool, pytest.raises(ValueError, match="async") as caught:
        Stage(fetch, executor=pool)
    assert str(caught.value) == (
        "Stage 'fetch': an async function runs on the loader's event loop, not in ThreadPoolExecutor. Leave executor "
        "out, or pass a function that is not async."
    )


# what is refused


def test_a_concurrency_below_one_is_refused():
    with pytest.raises(ValueError, match="concurrency") as caught:
        Stage(decode, concurrency=0)
    assert str(caught.value) == (
        "Stage 'decode': concurrency must be at least 1, got 0. Use num_workers=0 to run every stage inline."
    )


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"fn": "decode"}, TypeError, "Stage: fn must be a function of one value, got 'decode'."),
        ({"fn": decode, "name": ""}, TypeError, "name must be a string with at least one letter, or None, got ''"),
        ({"fn": decode, "name": 3}, TypeError, "name must be a string with at least one letter, or None, got 3"),
        ({"fn": decode, "concurrency": True}, TypeError, "'decode': concurrency must be an int or None, got True"),
        ({"fn": decode, "concurrency": 1.5}, TypeError, "concurrency must be an int or None, got 1.5"),
        ({"fn": decode, "concurrency": -1}, ValueError, "concurrency must be at least 1, got -1"),
        ({"fn": decode, "executor": "threads"}, TypeError, "must be 'thread', 'process' or a concurrent.futures.Exec"),
        ({"fn": decode, "executor": None}, TypeError, "must be 'thread', 'process' or a concurrent.futures.Executor"),
        ({"fn": decode, "executor": ThreadPoolExecutor}, TypeError, "(the object, not its class)"),
    ],
)
def test_what_cannot_run_is_refused_with_what_came(arguments, error, words):
    with pytest.raises(error) as caught:
        Stage(**arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_any_standard_executor_is_taken(kind):
    with kind(1) as pool:
        assert Stage(decode, executor=pool, concurrency=2).executor is pool


def test_a_stage_cannot_be_changed_and_pickles():
    stage = Stage(decode, "jpeg", concurrency=3)
    with pytest.raises(FrozenInstanceError):
        stage.concurrency = 0
    assert pickle.loads(pickle.dumps(stage)) == stage


# one sample in words

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Photo:
    pixels: torch.Tensor
    label: int


class Broken:
    @property
    def __len__(self):
        raise RuntimeError("no")

    def __repr__(self):
        raise RuntimeError("no")


class BrokenMapping(dict):
    def items(self):
        raise RuntimeError("no")


class BytesType(bytes):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(3, 2, dtype=torch.uint8), "Tensor uint8 (3, 2)"),
        (torch.zeros(()), "Tensor float32 ()"),
        (torch.empty(2, device="meta"), "Tensor float32 (2,) on meta"),
        (torch.nn.Parameter(torch.zeros(1)), "Parameter float32 (1,)"),
        (np.zeros((2, 1), np.int16), "ndarray int16 (2, 1)"),
        (Image.new("RGB", (500, 375)), "Image RGB 500 x 375"),
        (b"1234567", "bytes of length 7"),
        (BytesType(b"1"), "BytesType of length 1"),
        ("word", "str of length 4"),
        (None, "None"),
        (3, "int"),
        (True, "bool"),
        (np.float32(1), "float32"),
        ((), "tuple of ()"),
        ((torch.zeros(2), 1), "tuple of (Tensor float32 (2,), int)"),
        ([1, "ab"], "list of [int, str of length 2]"),
        ([1] * 300, "list of [300 x int]"),
        ([1] * 8 + ["a"], "list of [int, int, int, int, int, int, int, int, and 1 more]"),
        ([[[[1]]]], "list of [list of [list of [1 items]]]"),
        ({"image": b"12", 3: None}, "dict of {'image': bytes of length 2, 3: None}"),
        (OrderedDict(a=1), "OrderedDict of {'a': int}"),
        (dict.fromkeys(range(100)), "and 92 more}"),
        (Point(1, 2.0), "Point of (x=int, y=float)"),
        (Photo(torch.zeros(1), 2), "Photo of (pixels=Tensor float32 (1,), label=int)"),
        ({1, 2}, "set of length 2"),
        (Broken(), "Broken"),
        (BrokenMapping(a=1), "BrokenMapping"),
        (Reader, "type"),
    ],
)
def test_a_value_is_put_into_words(value, words):
    assert described(value).endswith(words)


def test_the_words_stay_short():
    deep = {f"a rather long name of a field, number {i}": [torch.zeros(1)] * 20 for i in range(20)}
    assert len(described(deep)) == MAX_LETTERS
    assert described(deep).endswith("...")
    itself = []
    itself.append(itself)
    assert described(itself) == "list of [list of [list of [1 items]]]"


def test_a_trace_prints_as_a_table():
    trace = SampleTrace(
        (0, 1),
        (
            StageTrace("fetch", 0.00012, "bytes of length 7012"),
            StageTrace("target_transform", 0.1234567, "tuple of (int, int)"),
        ),
    )
    assert str(trace).splitlines() == [
        "stage                 ms  result",
        "fetch               0.12  bytes of length 7012",
        "target_transform  123.46  tuple of (int, int)",
    ]
    assert str(SampleTrace(1, ())) == "stage  ms  result"
