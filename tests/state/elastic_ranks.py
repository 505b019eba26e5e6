"""Elastic ranks: an epoch's settings in, what the loader of each of several ranks hands out step by step out.

All ranks are in one process, each with a state of torch's generator as if it were a process of its own. The loaders'
state is compared between them after each step.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

SEED = 7


@dataclass
class Done:
    """What ranks have done. ``steps``: of each step the batch of each rank, [] of one that has ended; ``states``: after
    each step, the first one before it."""

    steps: list[list[list[int]]] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)

    @property
    def state(self) -> dict[str, Any]:
        return self.states[-1]

    @property
    def seen(self) -> list[int]:
        """All indices in the global order: the first of each rank, the second of each rank, ..."""
        return [index for step in self.steps for index in interleaved(step)]

    @property
    def num_steps(self) -> list[int]:
        """By rank."""
        return [sum(bool(batch) for batch in batches) for batches in zip(*self.steps, strict=True)]


def interleaved(batches: list[list[int]]) -> list[int]:
    """A global batch in the order of its samples."""
    return [index for row in zip_longest(*batches) for index in row if index is not None]


def order_of(length: int, epoch: int = 0, *, shuffle: bool = True) -> list[int]:
    sampler = ElasticSampler(range(length), 1, 0, shuffle, SEED)
    sampler.set_epoch(epoch)
    return list(sampler)


def loader_of(length: int, num_ranks: int, rank: int, batch_size: int | None = 2, **arguments: Any) -> StageLoader[Any]:
    given = {name: arguments.pop(name) for name in ("shuffle", "tail") if name in arguments}
    sampler = ElasticSampler(range(length), num_ranks, rank, seed=SEED, **given)
    return StageLoader(range(length), batch_size, sampler=sampler, **arguments)  # pyright: ignore[reportArgumentType]


@contextmanager
def process_of(loader: StageLoader[Any]) -> Iterator[None]:
    """As in the process of the loader's rank: what the others drew from torch's generator is nothing to it."""
    known = torch.get_rng_state()
    torch.set_rng_state(loader.__dict__.get("draws_of_rank", torch.Generator().manual_seed(1).get_state()))
    try:
        yield
    finally:
        loader.__dict__["draws_of_rank"] = torch.get_rng_state()
        torch.set_rng_state(known)


def loaders_of(
    length: int, num_ranks: int, batch_size: int | None = 2, state: Any = None, **arguments: Any
) -> list[StageLoader[Any]]:
    """A loader for each rank, all of which go on from the same state."""
    loaders = [loader_of(length, num_ranks, rank, batch_size, **arguments) for rank in range(num_ranks)]
    for loader in loaders if state is not None else ():
        with process_of(loader):
            loader.load_state_dict(state)
            assert loader.state_dict() == state
    return loaders


def listed(batch: Any) -> list[int]:
    return batch.tolist() if isinstance(batch, torch.Tensor) else [batch]


def agreed(loaders: list[StageLoader[Any]]) -> dict[str, Any]:
    """The state, which is the same on all ranks, whatever is in it."""
    states: list[dict[str, Any]] = []
    for loader in loaders:
        with process_of(loader):
            states.append(loader.state_dict())
    first = states[0]
    for rank, state in enumerate(states):
        differing = {name: (first[name], state[name]) for name in first if state[name] != first[name]}
        assert not differing, f"rank {rank}"
    return first


def run(loaders: list[StageLoader[Any]], num_steps: int | None = None, epoch: int | None = None) -> Done:
    """Take as many steps, or all of an epoch, whose end all ranks are told."""
    if epoch is not None:
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
    done = Done()
    with ExitStack() as stack:
        iterators: list[Iterator[Any]] = []
        for loader in loaders:
            with process_of(loader):
                iterators.append(iter(stack.enter_context(loader)))
        done.states.append(agreed(loaders))
        while num_steps is None or len(done.steps) < num_steps:
            step: list[list[int]] = []
            for loader, iterator in zip(loaders, iterators, strict=True):
                with process_of(loader):
                    batch = next(iterator, None)
                step.append([] if batch is None else listed(batch))
            if not any(step):
                done.states[-1] = agreed(loaders)
                break
            done.steps.append(step)
            done.states.append(agreed(loaders))
    return done
