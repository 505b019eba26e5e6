"""Datasets that keep on themselves what belongs to one sample."""

import random
from collections import OrderedDict

import numpy as np
import torch

from .stories import NUM_SAMPLES, Numbered, pause, story

SHARD_SAMPLES = 4


def as_it_is(index):
    return index


class Transformed(Numbered):
    """Numbers through a transform."""

    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(index)


class Shift:
    """Draws, keeps what it drew on itself, then applies it: as MONAI's transforms do."""

    def __init__(self):
        self.shift = None

    def randomize(self, index):
        self.shift = 1000 * index + 7

    def __call__(self, index):
        self.randomize(index)
        pause()
        return index + self.shift


def shifted(index):
    return 1001 * index + 7


@story(shifted, "dataset.transform.shift")
def parameters_on_self(folder):
    return Transformed(Shift())


class Crop:
    """UR-031: the drawn parameters of one sample must not be another's."""

    def __init__(self):
        self.R = np.random.RandomState(3)
        self.params = None

    def __call__(self, index):
        drawn = self.params = self.R.uniform(size=2)
        pause()
        return index, bool((self.params == drawn).all())


@story(lambda index: (index, True), "dataset.transform.")
def drawn_parameters_on_self(folder):
    return Transformed(Crop())


class Slotted:
    """Without a ``__dict__``."""

    __slots__ = ("shift",)

    def __init__(self):
        self.shift = None

    def __call__(self, index):
        self.shift = index
        pause()
        return self.shift


@story(as_it_is, "dataset.transform.shift")
def parameters_in_a_slot(folder):
    return Transformed(Slotted())


class Flip:
    """The first draw leaves everything as it was: MONAI's transforms begin with ``_do_transform = True``."""

    def __init__(self):
        self.is_flipped = True

    def __call__(self, index):
        self.is_flipped = index % 2 == 0
        pause()
        return -index if self.is_flipped else index


@story(lambda index: -index if index % 2 == 0 else index, "dataset.transform.is_flipped", way="either")
def a_flag_that_is_first_drawn_as_it_was(folder):
    return Transformed(Flip())


# Generators that are seeded for each sample -----------------------------------------------------------------


class SeededNumpy(Numbered):
    def __init__(self):
        self.random = np.random.RandomState(0)

    def __getitem__(self, index):
        self.random.seed(index)
        pause()
        return int(self.random.randint(1 << 30))


@story(lambda index: int(np.random.RandomState(index).randint(1 << 30)), "dataset.random")
def a_random_state(folder):
    return SeededNumpy()


class SeededPython(Numbered):
    def __init__(self):
        self.random = random.Random(0)

    def __getitem__(self, index):
        self.random.seed(index)
        pause()
        return self.random.random()


@story(lambda index: random.Random(index).random(), "dataset.random")
def a_random_of_python(folder):
    return SeededPython()


class SeededTorch(Numbered):
    def __init__(self):
        self.generator = torch.Generator()

    def __getitem__(self, index):
        self.generator.manual_seed(index)
        pause()
        return torch.rand(3, generator=self.generator).tolist()


def three_of_torch(index):
    return torch.rand(3, generator=torch.Generator().manual_seed(index)).tolist()


@story(three_of_torch, "dataset.generator")
def a_generator_of_torch(folder):
    return SeededTorch()


class SeededGenerator(Numbered):
    def __init__(self):
        self.random = np.random.default_rng(0)

    def __getitem__(self, index):
        self.random.bit_generator.state = np.random.PCG64(index).state
        pause()
        return int(self.random.integers(1 << 30))


@story(lambda index: int(np.random.Generator(np.random.PCG64(index)).integers(1 << 30)), "dataset.random")
def a_generator_of_numpy(folder):
    return SeededGenerator()


# Caches that forget -----------------------------------------------------------------------------------------


def load_shard(number):
    return [number * SHARD_SAMPLES + offset for offset in range(SHARD_SAMPLES)]


class LastShard(Numbered):
    """Keeps the shard it read last: None at first, as an index that is loaded once."""

    def __init__(self):
        self.number = None
        self.shard = None

    def __getitem__(self, index):
        number, offset = divmod(index, SHARD_SAMPLES)
        if number != self.number:
            self.shard = load_shard(number)
            pause()
            self.number = number
        pause()
        return self.shard[offset]


@story(as_it_is, "dataset.shard")
def the_last_shard(folder):
    return LastShard()


class Evicting(Numbered):
    """A cache of two shards: it grows at first, then forgets."""

    def __init__(self):
        self.cache = OrderedDict()

    def __getitem__(self, index):
        number, offset = divmod(index, SHARD_SAMPLES)
        if number not in self.cache:
            if len(self.cache) >= 2:
                self.cache.popitem(last=False)
            self.cache[number] = load_shard(number)
        pause()
        return self.cache[number][offset]


@story(as_it_is, "dataset.cache", way="either")
def a_cache_that_forgets(folder):
    return Evicting()


class Full(Evicting):
    """The same, filled before the first epoch."""

    def __init__(self):
        super().__init__()
        self.cache.update({-1: [], -2: []})


@story(as_it_is, "dataset.cache")
def a_full_cache_that_forgets(folder):
    return Full()


class Counting(Numbered):
    """Takes the number of its call for its own until it is done."""

    def __init__(self):
        self.count = 0

    def __getitem__(self, index):
        self.count += 1
        mine = self.count
        pause()
        return index if self.count == mine else -1


@story(as_it_is, "dataset.count")
def a_counter(folder):
    return Counting()


# What the first samples do not show -------------------------------------------------------------------------


class Late(Numbered):
    """Uses its scratch memory for its later samples alone."""

    def __init__(self):
        self.scratch = None

    def __getitem__(self, index):
        if index < NUM_SAMPLES // 2:
            pause()
            return index
        self.scratch = index
        pause()
        return self.scratch


@story(as_it_is, "dataset.scratch")
def state_of_later_samples(folder):
    return Late()
