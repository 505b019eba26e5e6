"""Budget: how many batches may be in flight within so many bytes, by the largest that was measured."""

import time
from collections import OrderedDict, UserList, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from torchstage.budget import MAX_LOOKS, Budget, size_of
from torchstage.engine.gather import announce
from torchstage.engine.pipeline import Pool, Run
from torchstage.engine.ticket import simple_chain

KILO = torch.zeros(1000, dtype=torch.uint8)


@dataclass
class Sample:
    image: torch.Tensor
    label: str


@dataclass
class Slots:
    __slots__ = ("image",)
    image: torch.Tensor


class Plain:
    def __init__(self, image):
        self.image = image


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    ("value", "num_bytes"),
    [
        (torch.zeros(3, 4), 48),
        (torch.zeros(1).expand(5), 20),
        (np.zeros((2, 5)), 80),
        (b"12345", 5),
        ("12345", 5),
        (bytearray(7), 7),
        (memoryview(bytes(9)), 9),
        ([KILO, (KILO, {"a": KILO})], 3000),
        (OrderedDict(a=KILO), 1000),
        (Pair(KILO, KILO), 2000),
        (UserList([KILO]), 1000),
        (Sample(KILO, "cat"), 1003),
        (Slots(KILO), 1000),
        (Plain(KILO), 1000),
        ([], 0),
        ({}, 0),
        ([KILO] * 3000, 3_000_000),
        (dict.fromkeys(range(3000), KILO), 3_000_000),
    ],
)
def test_bytes_of_a_value(value, num_bytes):
    assert size_of(value) == num_bytes


class NoWordsError(Exception):
    def __str__(self):
        raise RuntimeError


class Unwilling:
    @property
    def __dict__(self):
        raise NoWordsError

    def __sizeof__(self):
        raise NoWordsError


class UnwillingList(list):
    def __getitem__(self, index):
        raise NoWordsError

    def __len__(self):
        raise NoWordsError


@pytest.mark.parametrize("value", [Unwilling(), UnwillingList([1])])
def test_what_cannot_be_looked_at_does_not_fail_the_batch(value):
    assert size_of([value, KILO]) >= 1000


def test_what_refers_to_itself_is_looked_at_a_bounded_number_of_times():
    loop = Plain(KILO)
    loop.others = [loop] * 50
    assert size_of(loop) > 1000


@pytest.mark.timing
@pytest.mark.parametrize("value", [list(range(3_000_000)), range(10**12), [[0] * 1000] * 100_000])
def test_a_long_container_costs_little(value):
    """A sample may hold a list of numbers, or refer to its dataset; each batch is measured, and its samples."""
    begin = time.perf_counter()
    size_of(value)
    assert time.perf_counter() - begin < 100e-6 * MAX_LOOKS  # a hundred times what it takes


def test_until_one_was_measured_one_batch_is_in_flight():
    budget = Budget(10_000)
    assert budget.num_batches == 1
    budget.measure(size_of(KILO))
    assert budget.num_batches == 10


def test_the_largest_batch_counts():
    budget = Budget(10_000)
    for batch in (KILO, [KILO] * 3, KILO):
        budget.measure(size_of(batch))
    assert budget.num_batches == 3


def test_a_batch_larger_than_the_budget_passes():
    budget = Budget(10)
    budget.measure(size_of(KILO))
    assert budget.num_batches == 1


def test_a_run_lets_in_as_many_as_the_budget_allows_as_it_learns():
    budget = Budget(4000)
    chain = simple_chain("fetch", str, (), lambda: None)
    pool = Pool(1, "torchstage-test")  # no thread is started: nothing is done but to let batches in
    source = iter([((number,), chain, None) for number in range(20)])
    run = Run(pool, source, lambda batch: budget.num_batches, is_elastic=True)
    run.fill()

    def num_in_flight_after_one():
        announce(next(iter(run.in_flight)), None)
        run.next(None, lambda: 0.05)
        return len(run.in_flight)

    assert len(run.in_flight) == 1
    budget.measure(size_of(KILO))
    assert num_in_flight_after_one() == 4
    budget.measure(size_of([KILO, KILO]))
    # Nothing is taken back, but nothing comes before there is room.
    assert [num_in_flight_after_one() for _ in range(4)] == [3, 2, 2, 2]
