"""Recount: a loader and its state in, how many of this rank's batches in its epoch were passed, out."""

from typing import Any

from torchstage.samplers import ElasticSampler
from torchstage.sampling import Sampling


def num_passed(loader: Any, state: dict[str, Any]) -> int | None:
    """Counted so that the rest is right: a part of a batch counts with what was passed. None: it has no length."""
    try:
        length = len(loader)
    except TypeError:
        return None
    if state.get("is_boundary", True):
        return length if state.get("is_finished") else 0
    sampling = Sampling.of(loader)
    left = _num_left(sampling, state["position"])
    if sampling.batch_size is not None:
        left = left // sampling.batch_size if sampling.drop_last else -(-left // sampling.batch_size)
    return length - left


def _num_left(sampling: Sampling, position: int) -> int:
    """In samples of this rank, or in batches of the caller's own."""
    sampler = sampling.sampler
    if not isinstance(sampler, ElasticSampler):
        return len(sampler) - position
    same = ElasticSampler(sampler.dataset, sampler.num_replicas, sampler.rank, tail=sampler.tail)
    same.start_at(position)
    return len(same)
