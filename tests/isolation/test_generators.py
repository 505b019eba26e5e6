"""Generators that a dataset holds: each sample draws the same from them, whichever thread makes it and whenever."""

import copy
import random

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from torchstage import StageLoader

from .stories import NUM_SAMPLES, Case, Numbered, caught_warnings, pause, values_of


class OfNumpy(Numbered):
    def __init__(self, seed=1):
        self.random = np.random.default_rng(seed)

    def __getitem__(self, index):
        first = int(self.random.integers(1 << 40))
        pause()
        return index, first, int(self.random.integers(1 << 40))


class OfNumpyLegacy(Numbered):
    """As MONAI's transforms have one."""

    def __init__(self, seed=1):
        self.R = np.random.RandomState(seed)

    def __getitem__(self, index):
        first = float(self.R.uniform())
        pause()
        return index, first, float(self.R.normal())


class OfNumpyOnTheClass(OfNumpyLegacy):
    """MONAI's own: there is one for all transforms, until somebody seeds this one's."""

    def __init__(self, seed=None):
        if seed is not None:
            super().__init__(seed)


def with_one_on_its_class():
    return type("Fresh", (OfNumpyOnTheClass,), {"R": np.random.RandomState(5)})()


class OfPython(Numbered):
    def __init__(self, seed=1):
        self.random = random.Random(seed)

    def __getitem__(self, index):
        first = self.random.random()
        pause()
        return index, first, self.random.gauss(0, 1)


class OfTorch(Numbered):
    def __init__(self, seed=1):
        self.generator = torch.Generator().manual_seed(seed)

    def __getitem__(self, index):
        first = float(torch.rand((), generator=self.generator))
        pause()
        return index, first, float(torch.randn((), generator=self.generator))


class Nested(Numbered):
    """Two generators of the same seed, deep inside: they must not draw the same."""

    def __init__(self, seed=1):
        self.parts = [OfNumpyLegacy(seed), {"other": OfPython(seed), "another": OfNumpy(seed)}]

    def __getitem__(self, index):
        return index, self.parts[0][index], self.parts[1]["other"][index], self.parts[1]["another"][index]


class Conditional(Numbered):
    """How much it draws depends on what it drew."""

    def __init__(self, seed=1):
        self.random = np.random.default_rng(seed)

    def __getitem__(self, index):
        drawn = [self.random.random()]
        while drawn[-1] > 0.3:
            pause()
            drawn.append(self.random.random())
        return index, drawn


KINDS = [OfNumpy, OfNumpyLegacy, OfPython, OfTorch, Nested, Conditional]


def epoch(dataset, num_workers, **arguments):
    """The samples by index; each knows its own."""
    values = values_of(Case(dataset).loader(num_workers=num_workers, **arguments))
    assert sorted(value[0] for value in values) == list(range(NUM_SAMPLES))
    return sorted(values, key=lambda value: value[0])


@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_draws_the_same_for_every_number_of_threads(kind, short_switch_interval):
    one = epoch(kind(), 1, seed=7)
    for num_workers in (2, 4, 8):
        assert epoch(kind(), num_workers, seed=7) == one
        assert epoch(kind(), num_workers, seed=7, shuffle=True, batch_size=3) == one
        assert epoch(kind(), num_workers, seed=7, in_order=False) == one


@pytest.mark.parametrize("kind", KINDS)
def test_inline_as_well_when_a_seed_is_given(kind):
    assert epoch(kind(), 0, seed=7) == epoch(kind(), 2, seed=7)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_differ_from_each_other_and_from_epoch_to_epoch(kind):
    with Case(kind()).loader(seed=7) as loader:
        first, second = values_of(loader), values_of(loader)
    assert len(set(map(repr, first))) == NUM_SAMPLES
    assert not set(map(repr, first)) & set(map(repr, second))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_other_draws(kind):
    base = epoch(kind(), 2, seed=7)
    assert epoch(kind(), 2, seed=8) != base
    assert epoch(kind(seed=2), 2, seed=7) != base  # the user's own seed counts too


@pytest.mark.parametrize("kind", KINDS)
def test_the_torch_seed_is_enough_of_a_seed(kind):
    torch.manual_seed(11)
    first = epoch(kind(), 2)
    torch.manual_seed(11)
    assert epoch(kind(), 8) == first
    torch.manual_seed(12)
    assert epoch(kind(), 2) != first


@pytest.mark.parametrize("kind", KINDS)
def test_the_users_own_generator_is_not_advanced(kind):
    dataset, twin = kind(), kind()
    epoch(dataset, 4, seed=7)
    assert [dataset[index] for index in range(3)] == [twin[index] for index in range(3)]


def test_a_generator_on_the_class_is_no_other(short_switch_interval):
    with caught_warnings() as messages:
        one = epoch(with_one_on_its_class(), 1, seed=7)
        for num_workers in (2, 8):
            assert epoch(with_one_on_its_class(), num_workers, seed=7) == one
    assert messages == []
    assert len(set(one)) == NUM_SAMPLES


def test_two_generators_of_the_same_seed_do_not_draw_the_same():
    samples = list(epoch(Nested(), 4, seed=7))
    assert len(samples) == NUM_SAMPLES
    for _, legacy, of_python, _ in samples:
        assert legacy[1] != of_python[1]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_said_about_generators(kind):
    with caught_warnings() as messages:
        epoch(kind(), 4)
    assert messages == []


def test_a_generator_shared_with_collate_fn_is_one_generator():
    """One memo: both draw from the copy of the same thread."""
    dataset = OfNumpy()

    def collate(samples, generator=dataset.random):
        return samples, generator is get_worker_info().dataset.random

    loader = StageLoader(dataset, batch_size=2, num_workers=4, collate_fn=collate, seed=7)
    assert all(is_the_same for _, is_the_same in loader)


@pytest.mark.parametrize("kind", KINDS)
def test_without_sample_rng_threads_have_copies_all_the_same(kind, short_switch_interval):
    """As worker processes: each goes on with the generator that it was given."""
    dataset, twin = kind(), copy.deepcopy(kind())
    values = epoch(dataset, 1, sample_rng=False)
    assert values == [twin[index] for index in range(NUM_SAMPLES)]
    before = kind()
    assert [dataset[index] for index in range(3)] == [before[index] for index in range(3)]
