"""Waits: the histogram of waits, at the edges of its own bins."""

import pytest

from torchstage.engine.histogram import bin_of
from torchstage.waits import waits_of

from .feeding import loader_of, take_all


def loader_that_waited(*seconds):
    loader = loader_of()
    steps = loader.ledger.steps(loader)
    for one in seconds:
        steps.waits[bin_of(one)] += 1
    return loader


@pytest.mark.parametrize("edge", [2.0**-13, 2.0**-5, 1.0, 64.0])
def test_a_wait_a_little_shorter_than_an_edge_is_below_it_and_a_longer_one_is_not(edge):
    below, above = (dict(waits_of(loader_that_waited(edge * factor).stats())) for factor in (0.999, 1.001))
    assert (below[edge], above[edge]) == (1, 0)
    assert below[float("inf")] == above[float("inf")] == 1


def test_waits_that_are_shorter_or_longer_than_all_edges_count():
    waits = waits_of(loader_that_waited(1e-9, 1e-6, 1000.0, 1e6).stats())
    assert waits[0] == (2.0**-13, 2)
    assert waits[-2:] == [(64.0, 2), (float("inf"), 4)]


def test_all_waits_but_the_first_are_there():
    loader = loader_of()
    assert {number for _, number in waits_of(loader.stats())} == {0}
    take_all(loader)
    take_all(loader)
    waits = waits_of(loader.stats())
    assert waits[-1] == (float("inf"), 2 * 9)
    assert [number for _, number in waits] == sorted(number for _, number in waits)
