"""Permutation: every index once, every order alike, the same for good. Both as a table and computed by index."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchstage.samplers import permutation
from torchstage.samplers.permutation import MAX_TABLE, NUM_ROUNDS, Permutation, random_words, scattered

SEEDS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(0, 1000)
BY_INDEX = MAX_TABLE + 1021  # the smallest orders that have no table


def order_of(length, seed=0, epoch=0):
    return Permutation(length, seed, epoch).at(np.arange(length, dtype=np.uint64)).astype(np.int64)


def places_of(order, indices):
    """The inverse, for orders that have no table: the rounds undone, the last one first."""
    places = undone(order, indices)
    while (outside := places >= np.uint64(order.length)).any():
        places[outside] = undone(order, places[outside])
    return places


def undone(order, indices):
    num_rows, num_columns = np.uint64(order.num_rows), np.uint64(order.num_columns)
    rows, columns = np.divmod(indices, num_columns)
    for number in reversed(range(NUM_ROUNDS // 2)):
        row_key, column_key = order.keys[2 * number], order.keys[2 * number + 1]
        columns = (columns + num_columns - scattered(rows, column_key, num_columns)) % num_columns
        rows = (rows + num_rows - scattered(columns, row_key, num_rows)) % num_rows
    return rows * num_columns + columns


def chi_square(counts, expected):
    """How far counts are from what is expected, in standard deviations of the chi-square distribution."""
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    degrees = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees)


FAR = 5.0  # standard deviations: the seeds are fixed, so a test passes for good or never


# A permutation -----------------------------------------------------------------------------------------------


@given(length=st.one_of(st.integers(1, 50), st.integers(1, 3000)), seed=SEEDS, epoch=EPOCHS)
def test_every_index_comes_once(length, seed, epoch):
    assert sorted(order_of(length, seed, epoch)) == list(range(length))


@given(length=st.integers(1, 3000), seed=SEEDS)
def test_computed_by_index_every_index_comes_once_however_few_there_are(length, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "MAX_TABLE", 0)
        assert sorted(order_of(length, seed)) == list(range(length))


@pytest.mark.parametrize("length", [MAX_TABLE - 1, MAX_TABLE, MAX_TABLE + 1, 257 * 257, 257 * 257 + 1, 10**6])
def test_every_index_comes_once_where_table_and_rounds_meet_and_beyond(length):
    assert (np.sort(order_of(length, seed=5)) == np.arange(length)).all()


@given(data=st.data(), seed=SEEDS, epoch=EPOCHS)
def test_of_many_every_index_leads_back_to_its_place(data, seed, epoch):
    length = data.draw(st.one_of(st.integers(MAX_TABLE + 1, 2**63 - 1), st.integers(2**40, 2**41)))
    order = Permutation(length, seed, epoch)
    places = np.array(data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=50)), np.uint64)
    indices = order.at(places)
    assert (indices < np.uint64(length)).all()
    assert (places_of(order, indices) == places).all()


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 3_037_000_500**2 - 1, 10**9 + 7])
def test_no_two_of_many_places_meet(length):
    order, many = Permutation(length, 1, 2), 250_000
    for begin in (0, length // 2, length - many):
        places = np.arange(many, dtype=np.uint64) + np.uint64(begin)
        indices = order.at(places)
        assert np.unique(indices).size == many
        assert (places_of(order, indices) == places).all()


@given(length=st.sampled_from([1000, BY_INDEX, 10**12]), seed=SEEDS, data=st.data())
def test_an_index_does_not_depend_on_what_is_asked_with_it(length, seed, data):
    places = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    order = Permutation(length, seed, 0)
    alone = [int(order.at(np.array([place], np.uint64))[0]) for place in places]
    assert order.at(np.array(places, np.uint64)).tolist() == alone


def test_places_are_left_as_they_were():
    for length in (10, BY_INDEX):
        places = np.arange(10, dtype=np.uint64)
        Permutation(length, 0, 0).at(places)
        assert places.tolist() == list(range(10))


# Uniform -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_equally_likely(length):
    num_seeds = 100 * math.factorial(length)
    counts = Counter(tuple(order_of(length, seed).tolist()) for seed in range(num_seeds))
    orders = list(itertools.permutations(range(length)))
    assert abs(chi_square([counts[order] for order in orders], [100] * len(orders))) < FAR


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_equally_likely_over_epochs_too(length):
    num_epochs = 100 * math.factorial(length)
    counts = Counter(tuple(order_of(length, 7, epoch).tolist()) for epoch in range(num_epochs))
    orders = list(itertools.permutations(range(length)))
    assert abs(chi_square([counts[order] for order in orders], [100] * len(orders))) < FAR


@pytest.mark.parametrize(("length", "num_seeds"), [(60, 3000), (1000, 1000), (BY_INDEX, 2000), (10**15, 2000)])
def test_a_place_has_any_index(length, num_seeds):
    places = np.array([0, 1, length // 3, length - 1], np.uint64)
    orders = np.stack([Permutation(length, seed, 0).at(places) for seed in range(num_seeds)]).astype(float)
    for indices in orders.T:
        counts = np.histogram(indices, bins=20, range=(0, length))[0]
        assert abs(chi_square(counts, [num_seeds / 20] * 20)) < FAR


@pytest.mark.parametrize(("length", "num_seeds"), [(1000, 400), (MAX_TABLE, 10), (BY_INDEX, 40)])
@pytest.mark.parametrize("apart", ["neighbours", "a column", "two columns"])
def test_how_far_two_places_lead_apart_tells_nothing(length, num_seeds, apart):
    """Places of one column of the sheet are what four rounds alone cannot tell apart well enough."""
    num_columns = Permutation(length, 0, 0).num_columns
    lag = {"neighbours": 1, "a column": num_columns, "two columns": 2 * num_columns}[apart]
    counts = np.zeros(64)
    for seed in range(num_seeds):
        order = order_of(length, seed)
        counts += np.bincount(((order[lag:] - order[:-lag]) % length - 1) * 64 // length, minlength=64)
    share = np.bincount(np.arange(length - 1) * 64 // length, minlength=64) / (length - 1)  # never 0 apart
    assert abs(chi_square(counts, counts.sum() * share)) < FAR


@pytest.mark.parametrize("length", [MAX_TABLE, BY_INDEX])
def test_pairs_of_neighbours_are_spread_evenly(length):
    counts = np.zeros((16, 16))
    for seed in range(20):
        sixteenth = order_of(length, seed) * 16 // length
        np.add.at(counts, (sixteenth[:-1], sixteenth[1:]), 1)
    assert abs(chi_square(counts.ravel(), np.full(256, counts.sum() / 256))) < FAR


@pytest.mark.parametrize(("length", "num_seeds"), [(10, 3000), (1000, 2000), (BY_INDEX, 100)])
def test_one_index_stays_in_its_place_on_the_average(length, num_seeds):
    fixed = [(order_of(length, seed) == np.arange(length)).sum() for seed in range(num_seeds)]
    assert abs(np.mean(fixed) - 1) < FAR / math.sqrt(num_seeds)
    assert abs(np.var(fixed) - 1) < FAR * math.sqrt(3 / num_seeds)


@pytest.mark.parametrize("length", [5000, BY_INDEX])
def test_another_seed_epoch_or_length_is_another_order(length):
    first = order_of(length, 1, 1)
    for other in (order_of(length, 2, 1), order_of(length, 1, 2), order_of(length, 2**62, 1), order_of(length, 11, 1)):
        assert (first == other).sum() < 10
        assert abs(np.corrcoef(first, other)[0, 1]) < FAR / math.sqrt(length)
    assert (first[:4000] == order_of(length + 1, 1, 1)[:4000]).sum() < 10


def test_seed_and_epoch_are_not_added():
    """As torch does it, epoch 1 of seed 0 is epoch 0 of seed 1."""
    assert order_of(100, 0, 1).tolist() != order_of(100, 1, 0).tolist()
    assert order_of(100, 1, 11).tolist() != order_of(100, 11, 1).tolist()


def test_numbers_that_are_not_all_different_are_drawn_anew(monkeypatch):
    keys = []

    def drawn(count, key):
        keys.append(key)
        return np.zeros(count, np.uint64) if len(keys) == 1 else random_words(count, key)

    monkeypatch.setattr(permutation, "random_words", drawn)
    assert sorted(order_of(50)) == list(range(50))
    assert len(set(keys[:2])) == 2


# For good ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "indices"),
    [
        (10, [4, 3, 7, 1, 5]),
        (1000, [61, 663, 54, 259, 65]),
        (MAX_TABLE, [1558, 15153, 59883, 35379, 16535]),
        (10**6, [462977, 67870, 609738, 925848, 196642]),
        (10**9, [754365061, 531393126, 139433711, 849989598, 453617191]),
        (
            2**62,
            [
                2405359099277836810,
                3087261784073377014,
                1117270820276219905,
                4236699832764902621,
                2348820582313515896,
            ],
        ),
    ],
)
def test_the_order_never_changes(length, indices):
    """A resumed run, another machine, another release: written down once, and right for good."""
    assert Permutation(length, 7, 2).at(np.arange(5, dtype=np.uint64)).tolist() == indices
