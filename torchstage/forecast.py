"""Forecast: a loader's samplers in, the order of the epoch after this one out, where that is certain already.

Guarantees: neither the samplers nor any random generator notice: copies of them are asked.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler

from torchstage.samplers import ElasticSampler
from torchstage.sampling import DRAWN, UNSEEDED, Sampling

KNOWN = "SequentialSampler, DistributedSampler, torchstage.samplers.ElasticSampler"
AS_IT_GOES = "and torch's random samplers with a generator of their own"


def why_uncertain(sampling: Sampling) -> str | None:
    """Why nobody can tell the order of an epoch before it begins, and what would make it certain; None: it is."""
    sampler = sampling.sampler
    name = type(sampler).__name__
    if sampling.has_own_batches:
        return (
            f"the batches of a batch sampler of your own, a {name}, are not known before it is asked for them. Let the "
            "loader make the batches (batch_size=), with a sampler whose order is certain."
        )
    if type(sampler) in DRAWN:
        if isinstance(sampler.generator, torch.Generator):
            return None
        return (
            f"{name} draws its order from torch's global random generator, from which anybody may draw before the next "
            "epoch begins. Give it a generator of its own: generator=torch.Generator().manual_seed(0) as an argument "
            "of the loader, or of the sampler if you made it; or use torchstage.samplers.ElasticSampler."
        )
    if type(sampler) in UNSEEDED:
        return None
    return f"the order of a {name} is not known before it is asked for. Certain is that of {KNOWN}, {AS_IT_GOES}."


def order_of(sampling: Sampling, epoch: int | None) -> Iterator[Any]:
    """What the loader's samplers will yield in the next epoch, once this one's order has come to its end: batches of
    indices, or one index after another. ``epoch``: its number, if the sampler numbers its epochs."""
    sampler: Any = copy.copy(sampling.sampler)
    if type(sampler) in DRAWN:
        sampler.generator = twin = torch.Generator(sampler.generator.device)
        twin.set_state(sampling.sampler.generator.get_state())
    elif type(sampler) is ElasticSampler:
        sampler.start_at(0)
    if type(sampler) in (DistributedSampler, ElasticSampler) and epoch is not None:
        sampler.set_epoch(epoch)
    if sampling.batch_size is None:
        return iter(sampler)
    return iter(BatchSampler(sampler, sampling.batch_size, sampling.drop_last))
