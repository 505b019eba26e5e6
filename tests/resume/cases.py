"""Cases: each way to say which samples come, in which order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from . import custom
from .runs import Case, Drawing, Plain, through_torch


def generator(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _made(
    sampler: Callable[[Any], Any] | None,
    dataset: type = Drawing,
    length: int = custom.LENGTH,
    has_generator: bool = False,
    key: str = "sampler",
    **arguments: Any,
) -> StageLoader[Any]:
    data = dataset(length)
    own: dict[str, Any] = {} if key == "batch_sampler" else {"batch_size": 2}
    if sampler is not None:
        own[key] = sampler(data)
    if has_generator:
        own["generator"] = generator()
    return StageLoader(data, **{**own, **arguments})


def of(sampler: Callable[[Any], Any] | None = None, **arguments: Any) -> Case:
    """Batches of two of what the sampler, which is made of the dataset, yields."""
    known = {name: arguments.pop(name) for name in ("sets_epoch", "ways", "before_epoch") if name in arguments}
    return Case(partial(_made, sampler), arguments={"seed": 3, **arguments}, **known)


def in_batches(batch_sampler: Callable[[Any], Any], **arguments: Any) -> Case:
    return of(batch_sampler, key="batch_sampler", **arguments)


OF_TORCH = {
    "in sequence": of(),
    "shuffled": of(shuffle=True),
    "shuffled, with a generator": of(shuffle=True, has_generator=True),
    "shuffled, full batches": of(shuffle=True, length=12, has_generator=True),
    "shuffled, without the last": of(shuffle=True, drop_last=True, has_generator=True),
    "shuffled, as torch seeds it": of(shuffle=True, drop_last=True),
    "with replacement": of(lambda data: RandomSampler(data, replacement=True, num_samples=34)),
    "with replacement, own generator": of(
        lambda data: RandomSampler(data, replacement=True, num_samples=33, generator=generator())
    ),
    "more than there are": of(lambda data: RandomSampler(data, num_samples=15, generator=generator())),
    "more than there are, by the process": of(lambda data: RandomSampler(data, num_samples=15)),
    "subset": of(lambda data: SubsetRandomSampler(range(3, 10))),
    "subset, own generator": of(lambda data: SubsetRandomSampler(range(3, 10), generator=generator())),
    "weighted": of(lambda data: WeightedRandomSampler([0.1, 0.9] * 5 + [1], 13)),
    "weighted, own generator": of(lambda data: WeightedRandomSampler([0.1, 0.9] * 5 + [1], 13, generator=generator())),
    "distributed": of(lambda data: DistributedSampler(data, 2, 1, seed=4)),
    "distributed, epochs set": of(lambda data: DistributedSampler(data, 2, 1, seed=4), sets_epoch=True),
    "distributed, full batches": of(lambda data: DistributedSampler(data, 1, 0), sets_epoch=True, length=12),
    "elastic": of(lambda data: ElasticSampler(data, 2, 1)),
    "elastic, epochs set": of(lambda data: ElasticSampler(data, 2, 1, seed=4), sets_epoch=True),
    "elastic, alone": of(lambda data: ElasticSampler(data, 1, 0, tail="pad"), sets_epoch=True, length=12),
    "elastic, without the last": of(
        lambda data: ElasticSampler(data, 2, 0, tail="drop"), sets_epoch=True, drop_last=True
    ),
    "batch sampler of torch": in_batches(
        lambda data: BatchSampler(RandomSampler(data, generator=generator()), 3, False)
    ),
}
WITHOUT_BATCHES = {
    "in sequence": of(batch_size=None),
    "shuffled": of(batch_size=None, shuffle=True),
    "shuffled, with a generator": of(batch_size=None, shuffle=True, has_generator=True),
    "distributed": of(lambda data: DistributedSampler(data, 2, 1), batch_size=None, sets_epoch=True),
    "elastic": of(lambda data: ElasticSampler(data, 2, 1), batch_size=None, sets_epoch=True),
    "own generator, at once": of(lambda data: custom.Own("torch", at_once=True), batch_size=None),
    "own generator, as it goes": of(lambda data: custom.Own("numpy", at_once=False), batch_size=None),
    "process's, at once": of(lambda data: custom.AtOnce("torch"), batch_size=None),
    "process's, as it goes": of(lambda data: custom.AsItGoes("torch"), batch_size=None),
    "stateful": of(lambda data: custom.Stateful(), batch_size=None),
    "state with a generator": of(lambda data: custom.StatefulGenerator(), batch_size=None),
    "batches as samples": of(lambda data: BatchSampler(RandomSampler(data), 2, False), batch_size=None, dataset=Plain),
}
LIBRARIES = ("torch", "random", "numpy")
CUSTOM = {
    **{f"at once, {one}": of(partial(lambda one, data: custom.AtOnce(one), one)) for one in LIBRARIES},
    **{f"at first, {one}": of(partial(lambda one, data: custom.AtFirst(one), one)) for one in LIBRARIES},
    **{f"as it goes, {one}": of(partial(lambda one, data: custom.AsItGoes(one), one)) for one in LIBRARIES},
    **{f"no length, {one}": of(partial(lambda one, data: custom.Endless(one), one)) for one in LIBRARIES},
    **{
        f"own {one}, {'at once' if at_once else 'as it goes'}": of(
            partial(lambda one, at_once, data: custom.Own(one, at_once=at_once), one, at_once)
        )
        for one in (*LIBRARIES, "numpy of old")
        for at_once in (True, False)
    },
    "wrapped": of(lambda data: custom.Wrapper(custom.Own("random", at_once=True))),
    "counts epochs at the iterator": of(lambda data: custom.CountsEpochs("iterator")),
    "counts epochs at the first": of(lambda data: custom.CountsEpochs("first")),
    "counts epochs at the end": of(lambda data: custom.CountsEpochs("end")),
    "counts epochs at the iterator, no batches": of(lambda data: custom.CountsEpochs("iterator"), batch_size=None),
}
STATEFUL = {
    "on the sampler": of(lambda data: custom.Stateful()),
    "on the sampler, repeated": of(lambda data: custom.Stateful(with_replacement=True)),
    "a generator": of(lambda data: custom.StatefulGenerator()),
    "on its iterator": of(lambda data: custom.StatefulIterator()),
    "on both": of(lambda data: custom.StatefulBoth()),
    "of batches": in_batches(lambda data: custom.StatefulBatches(custom.Stateful())),
}
BATCH_SAMPLERS = {
    "of the process": in_batches(lambda data: custom.Batches(custom.AtOnce("torch"))),
    "as it goes": in_batches(lambda data: custom.Batches(custom.AsItGoes("numpy"))),
    "own generator": in_batches(lambda data: custom.Batches(custom.Own("numpy", at_once=False))),
    "one list again and again": in_batches(lambda data: custom.ReusedBatches(custom.AtOnce("random"))),
    "counts epochs": in_batches(lambda data: custom.Batches(custom.CountsEpochs("iterator"))),
}


def of_torchdata() -> dict[str, Case]:
    from torchdata.stateful_dataloader import sampler as td

    by_torch: dict[str, Any] = {"ways": (through_torch,)}
    return {
        "random": of(lambda data: td.RandomSampler(data, generator=generator()), **by_torch),
        "random, repeated": of(
            lambda data: td.RandomSampler(data, replacement=True, num_samples=34, generator=generator()), **by_torch
        ),
        "random, by the process": of(lambda data: td.RandomSampler(data), **by_torch),
        "random, no batches": of(
            lambda data: td.RandomSampler(data, generator=generator()), batch_size=None, **by_torch
        ),
        "batches": in_batches(
            lambda data: td.BatchSampler(td.RandomSampler(data, generator=generator()), 2, False), **by_torch
        ),
        "batches in sequence": in_batches(lambda data: td.BatchSampler(range(len(data)), 2, True), **by_torch),
        "distributed": of(lambda data: td.StatefulDistributedSampler(data, 2, 1, seed=4), sets_epoch=True),
        "distributed, epochs not set": of(lambda data: td.StatefulDistributedSampler(data, 2, 1, seed=4)),
    }
