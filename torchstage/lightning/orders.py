"""Orders: a map-style dataset to train with in, the sampler that every rank of any number can share, out.

Guarantees: the order depends on the seed, the epoch and the dataset's length alone; all ranks have as many samples.
"""

import os
from typing import Any

from torchstage.samplers import ElasticSampler


def seed_of_run(seed: int | None) -> int:
    """The seed that was given, or that of Lightning's ``seed_everything``, or 0: alike on all ranks."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0")) if seed is None else seed


def elastic(dataset: Any, seed: int | None, drop_last: bool, *, shuffle: bool = True) -> ElasticSampler:
    """A rank with a step more than others would wait for them for good: the last samples are padded, or dropped."""
    return ElasticSampler(dataset, shuffle=shuffle, seed=seed_of_run(seed), tail="drop" if drop_last else "pad")
