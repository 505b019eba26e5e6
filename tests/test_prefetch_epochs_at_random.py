"""prefetch_epochs: whatever is done with a loader, in whatever order, its batches are those of one that begins no epoch
early."""

import random

import pytest
import torch
from epochs import Noted, both, loader_of, values_of
from torch.utils.data import DistributedSampler

from torchstage.samplers import ElasticSampler

LENGTH = 9
pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. prefetch_epochs=True has begun 3 epochs early in vain")

ORDERS = (
    lambda dataset: {},
    lambda dataset: {"seed": 4},
    lambda dataset: {"shuffle": True, "generator": torch.Generator().manual_seed(5)},
    lambda dataset: {"shuffle": True, "generator": torch.Generator().manual_seed(5), "seed": 4},
    lambda dataset: {"sampler": DistributedSampler(dataset, 2, 0)},
    lambda dataset: {"sampler": ElasticSampler(dataset, 1, 0)},
)


def whole(loader, chance):
    return values_of(loader)


def part(loader, chance):
    batches = iter(loader)
    return values_of(batch for batch, _ in zip(batches, range(chance.randrange(6)), strict=False))


def told(loader, chance):
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(chance.choice([loader.sampler.epoch + 1, chance.randrange(4)]))


def told_the_next(loader, chance):
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(loader.sampler.epoch + 1)
    return values_of(loader)


def changed(loader, chance):
    loader.dataset.listed[1] += 1.0


def asked(loader, chance):
    iter(loader)


def state(loader, chance):
    return loader.state_dict()


def went_back(loader, chance):
    """Some batches, and then again."""
    kept = loader.state_dict()
    batches = part(loader, chance)
    loader.load_state_dict(kept)
    return batches, values_of(loader)


def closed(loader, chance):
    loader.close()


def drawn(loader, chance):
    if loader.generator is not None:
        torch.rand(1, generator=loader.generator)


OFTEN = {whole: 8, told_the_next: 6, part: 3, state: 3}
DEEDS = {**OFTEN, told: 2, changed: 2, asked: 1, went_back: 1, closed: 1, drawn: 1}


@pytest.mark.parametrize("seed", range(24))
def test_whatever_is_done(seed):
    order = ORDERS[seed % len(ORDERS)]
    chance = random.Random(seed)
    deeds = chance.choices(list(DEEDS), list(DEEDS.values()), k=12)
    num_workers, prefetch_factor = chance.choice([1, 2, 4]), chance.choice([1, 2, 4])

    def make(prefetch_epochs):
        dataset = Noted(LENGTH)
        return loader_of(
            dataset,
            prefetch_epochs=prefetch_epochs,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            **order(dataset),
        )

    def story(loader):
        chance = random.Random(seed)
        return [deed(loader, chance) for deed in deeds]

    both(make, story)
