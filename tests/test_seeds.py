"""Seeds: the same sample gets the same bytes everywhere, no two get the same, and generators follow the bytes."""

import itertools
import random
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchstage import rng, seeds

SEEDS = rng.Seeds(base=7, epoch=2)
Point = namedtuple("Point", "x y")


class Word(str):
    __slots__ = ()

    def __repr__(self):
        return f"<{id(self)}>"


# Digests ---------------------------------------------------------------------------------------------------


def test_the_digest_of_a_sample_never_changes():
    """A resumed run, another machine, another release: written down once, and right for good."""
    assert SEEDS.digest("sample", 5).hex() == "c670afce51339f9a30194ae562d96c6c4bb73b785427767b438675a8633db8b8"
    assert (
        rng.Seeds(-1, 2**70, 3).digest("batch", [("a", 1), b"b", None, 2.5], 4).hex()
        == "10fcd9ecf1d78c5282ab2549e098f6017449b5988433e33c3a3500d5620f1354"
    )


def test_the_digest_is_the_same_in_another_process_whatever_its_hash_seed():
    code = "from torchstage import rng; print(rng.Seeds(7, 2).digest('sample', ('a', 'b', 3)).hex())"
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", code]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=root, env={"PYTHONHASHSEED": "5", "PYTHONPATH": "."}
    )
    assert ended.stdout.strip() == SEEDS.digest("sample", ("a", "b", 3)).hex()


def test_everything_that_tells_samples_apart_counts():
    ways = itertools.product((7, 8), (2, 3), (0, 1), ("sample", "batch"), (5, 6, "5", b"5", None, (5,), [5]), (0, 1))
    digests = [rng.Seeds(base, epoch, repeat).digest(*sample) for base, epoch, repeat, *sample in ways]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    "index", [True, np.int64(1), np.uint8(1), torch.tensor(1), torch.tensor([1]), np.array(1)], ids=repr
)
def test_an_integer_counts_by_its_value_whatever_its_type(index):
    assert rng.is_stable(index)
    assert SEEDS.digest("sample", index) == SEEDS.digest("sample", 1)


@pytest.mark.parametrize(("index", "plain"), [(np.float64(0.5), 0.5), (Word("a"), "a"), (np.str_("a"), "a")])
def test_a_number_or_string_counts_by_its_value_whatever_its_repr(index, plain):
    assert rng.is_stable(index)
    assert SEEDS.digest("sample", index) == SEEDS.digest("sample", plain)


@pytest.mark.parametrize(
    "index", ["a", "\udcff", b"a", 0.5, None, (), [], (1, "a", [2.5, None]), -(2**80), Point(1, 2)], ids=repr
)
def test_an_index_that_says_which_sample_it_is_is_stable(index):
    assert rng.is_stable(index)


@pytest.mark.parametrize(
    "index",
    [object(), {1: 2}, {1, 2}, slice(3), torch.tensor([1, 2]), torch.tensor(1.5), np.array([1, 2]), (1, object()), len],
    ids=lambda index: type(index).__name__,
)
def test_another_index_is_not_and_counts_by_its_salt(index):
    assert not rng.is_stable(index)
    assert SEEDS.digest("sample", index, 3) == SEEDS.digest("sample", object(), 3)
    assert SEEDS.digest("sample", index, 3) != SEEDS.digest("sample", index, 4)


plain_values = st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False)
indices = st.recursive(plain_values, lambda inner: st.lists(inner) | st.lists(inner).map(tuple))


def as_told_apart(index):
    """1 == True == 1.0 in Python; here they differ, but for the integers. -0.0 and 0.0 differ too."""
    if isinstance(index, list | tuple):
        return type(index).__name__, [as_told_apart(part) for part in index]
    return type(index).__name__, repr(index)


@pytest.mark.fuzz
@given(indices, indices)
def test_two_indices_have_the_same_digest_only_if_they_are_equal(one, other):
    is_same = as_told_apart(one) == as_told_apart(other)
    assert (SEEDS.digest("sample", one) == SEEDS.digest("sample", other)) == is_same


def test_the_parts_of_a_digest_do_not_overlap_and_use_it_up():
    parts = (seeds.FOR_TORCH, seeds.FOR_PYTHON, seeds.FOR_NUMPY_LEGACY, seeds.FOR_NUMPY)
    places = [place for part in parts for place in range(seeds.DIGEST_BYTES)[part]]
    assert sorted(places) == list(range(len(SEEDS.digest("sample", 5))))


# Generators ------------------------------------------------------------------------------------------------

GENERATORS = {
    "torch": torch.Generator,
    "random": random.Random,
    "PCG64": lambda: np.random.default_rng(0),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM(0)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(0)),
    "Philox": lambda: np.random.Generator(np.random.Philox(0)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(0)),
    "RandomState": lambda: np.random.RandomState(0),
    "RandomState of PCG64": lambda: np.random.RandomState(np.random.PCG64(0)),
}


def draws(generator):
    """More draws than one, of several kinds: what is kept for a next call must not stay behind."""
    if isinstance(generator, torch.Generator):
        return torch.rand(3, generator=generator).tolist() + torch.randn(3, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.random(), generator.gauss(0, 1), generator.getrandbits(70)]
    if isinstance(generator, np.random.Generator):
        return [*generator.random(3), generator.standard_normal(), generator.integers(9, dtype=np.uint32)]
    return [*generator.rand(3), generator.normal(), generator.randint(9)]


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_generator_that_is_reseeded_draws_what_the_bytes_say_whatever_it_did_before(make):
    one, other = make(), make()
    draws(one)
    for generator in (one, other):
        rng.reseed(generator, b"0123456789abcdef" * 2)
    expected = draws(one)
    assert draws(other) == expected
    rng.reseed(one, b"0123456789abcdef" * 2)
    assert draws(one) == expected
    rng.reseed(one, b"1123456789abcdef" * 2)
    assert draws(one) != expected


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_the_digest_of_a_generator_is_that_of_its_state(make):
    generator = make()
    rng.reseed(generator, b"0123456789abcdef")
    digest = rng.digest_of(generator)
    assert rng.digest_of(generator) == digest
    assert len(digest) == 32
    draws(generator)
    assert rng.digest_of(generator) != digest
    rng.reseed(generator, b"0123456789abcdef")
    assert rng.digest_of(generator) == digest


def test_the_digest_of_a_generator_is_the_same_however_numpy_prints():
    generator = np.random.RandomState(3)
    digest = rng.digest_of(generator)
    with np.printoptions(threshold=5, edgeitems=1):
        assert rng.digest_of(generator) == digest


def test_bits_of_many_samples_look_random():
    """A mean of 0.5 within five standard deviations, and no two alike: of the first draw, over neighbouring samples."""
    scope, firsts = rng.Scope(), {"torch": [], "python": [], "numpy": [], "legacy": []}
    for index in range(4000):
        scope.begin(SEEDS, "sample", index)
        firsts["torch"].append(torch.rand((), generator=scope.torch, dtype=torch.float64).item())
        firsts["python"].append(scope.python.random())
        firsts["numpy"].append(scope.numpy.random())
        firsts["legacy"].append(scope.numpy_legacy.rand())
    for values in firsts.values():
        assert len(set(values)) == 4000
        assert abs(np.mean(values) - 0.5) < 5 * np.sqrt(1 / 12 / 4000)
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 5 / np.sqrt(4000)
    assert np.abs(np.corrcoef(list(firsts.values())) - np.eye(4)).max() < 5 / np.sqrt(4000)
