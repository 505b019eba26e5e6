"""Ranks: an epoch's settings in, what each of several ranks yields step by step out, all in one process.

The batches are made by torch's BatchSampler, as DataLoader and StageLoader have it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from torch.utils.data import BatchSampler

from torchstage.samplers import ElasticSampler


@dataclass
class Run:
    """Ranks that have taken some steps. ``steps``: of each step the batch of each rank, [] of one that has ended."""

    samplers: list[ElasticSampler]
    steps: list[list[list[int]]] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        """The state, which all ranks must agree on."""
        states = [sampler.state_dict() for sampler in self.samplers]
        assert all(state == states[0] for state in states), states
        return states[0]

    @property
    def seen(self) -> list[int]:
        """All indices, step by step, in the global order: the first of each rank, the second of each rank, ..."""
        return [index for step in self.steps for index in interleaved(step)]

    @property
    def num_steps(self) -> list[int]:
        """By rank."""
        return [sum(bool(step[rank]) for step in self.steps) for rank in range(len(self.samplers))]


def interleaved(batches: list[list[int]]) -> list[int]:
    """A global batch in the order of its samples."""
    return [index for row in zip_longest(*batches) for index in row if index is not None]


def ranks_of(length: int, num_ranks: int, state: Any = None, **arguments: Any) -> list[ElasticSampler]:
    samplers = [ElasticSampler(range(length), num_ranks, rank, **arguments) for rank in range(num_ranks)]
    if state is not None:
        for sampler in samplers:
            sampler.load_state_dict(state)
    return samplers


def run(samplers: list[ElasticSampler], batch_size: int, num_steps: int | None = None) -> Run:
    """Take as many steps, or all of the epoch. The state is compared between the ranks after each step."""
    batches: list[Iterator[list[int]]] = [iter(BatchSampler(sampler, batch_size, False)) for sampler in samplers]
    done = Run(samplers)
    while num_steps is None or len(done.steps) < num_steps:
        step = [next(rank_batches, []) for rank_batches in batches]
        assert done.state
        if not any(step):
            break
        done.steps.append(step)
    return done
