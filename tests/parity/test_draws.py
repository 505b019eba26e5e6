"""Draws: a loader takes as many random numbers from every generator as torch's does, at the same moments."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, get_worker_info

from .datasets import Indices, Made
from .ways import INLINE, PROCESSES, STAGED, TWO_THREADS, on, on_both, on_staged, on_workers

NUM_SAMPLES = 400  # more than any window: the sampler is not exhausted after the first batch


class DrawingAtOnce:
    """Draws from every generator when it starts."""

    def __iter__(self) -> Iterator[int]:
        first = [int(torch.randint(NUM_SAMPLES, ())), np.random.randint(NUM_SAMPLES), random.randrange(NUM_SAMPLES)]
        return iter([*first, *range(NUM_SAMPLES - 3)])


class DrawingAsItGoes:
    """Draws from every generator for each index."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(NUM_SAMPLES // 2):
            yield int(torch.randint(NUM_SAMPLES // 2, ())) + (np.random.randint(NUM_SAMPLES) + random.randrange(9)) // 9


ARGUMENTS: dict[str, Callable[[torch.Generator], dict[str, Any]]] = {
    "in order": lambda generator: {"batch_size": 4},
    "in order, with a generator": lambda generator: {"batch_size": 4, "generator": generator},
    "shuffled": lambda generator: {"batch_size": 4, "shuffle": True},
    "shuffled with a generator": lambda generator: {"batch_size": 4, "shuffle": True, "generator": generator},
    "shuffled one by one": lambda generator: {"batch_size": None, "shuffle": True},
    "sampler with a generator": lambda generator: {"sampler": RandomSampler(Indices(NUM_SAMPLES), generator=generator)},
    "sampler and loader share a generator": lambda generator: {
        "sampler": RandomSampler(Indices(NUM_SAMPLES), generator=generator),
        "generator": generator,
    },
    "sampler with replacement": lambda generator: {"sampler": RandomSampler(Indices(NUM_SAMPLES), replacement=True)},
    "sampler that draws at once": lambda generator: {"sampler": DrawingAtOnce(), "batch_size": 4},
    "batch sampler that draws at once": lambda generator: {"sampler": DrawingAtOnce(), "batch_size": None},
}


def states(generator: torch.Generator) -> list[Any]:
    numpy_state = np.random.get_state()
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        (numpy_state[1].tolist(), *numpy_state[2:]),
        generator.get_state().tolist(),
    ]


def seed_all() -> None:
    torch.manual_seed(11)
    np.random.seed(12)
    random.seed(13)


def trail(make_loader: Any, kind: str, **more: Any) -> dict[str, list[Any]]:
    """The states of all generators at every moment that a user can look."""
    seed_all()
    generator = torch.Generator().manual_seed(14)
    seen = {"before": states(generator)}
    loader = make_loader(Indices(NUM_SAMPLES), **ARGUMENTS[kind](generator), **more)
    seen["made"] = states(generator)
    for epoch in range(2):
        iterator = iter(loader)
        seen[f"iter {epoch}"] = states(generator)
        next(iterator)
        seen[f"first batch {epoch}"] = states(generator)
        for _ in iterator:
            pass
        seen[f"end {epoch}"] = states(generator)
    return seen


def differing_moments(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> list[str]:
    return [moment for moment in one if one[moment] != other[moment]]


@pytest.mark.parametrize("kind", ARGUMENTS)
@on_staged
def test_draws_are_torch_s_at_every_moment(make_loader: Any, kind: str) -> None:
    assert differing_moments(trail(make_loader, kind), trail(INLINE, kind)) == []


@pytest.mark.parametrize("kind", ["in order, with a generator", "sampler and loader share a generator"])
def test_draws_of_kept_workers_are_torch_s(kind: str) -> None:
    """The base seed is drawn once for all epochs. torch's processes prefetch inside iter(), ours inside next()."""
    threads = trail(TWO_THREADS, kind, persistent_workers=True)
    processes = trail(PROCESSES, kind, persistent_workers=True)
    differing = differing_moments(threads, processes)
    assert [moment for moment in differing if not moment.startswith("iter")] == []


@on(INLINE, *STAGED)
def test_a_loader_draws_one_base_seed_for_each_iterator(make_loader: Any) -> None:
    seed_all()
    expected = torch.Generator().manual_seed(11)
    loader = make_loader(Indices(9), batch_size=4)
    for _ in range(3):
        iterator = iter(loader)
        torch.empty((), dtype=torch.int64).random_(generator=expected)
        assert torch.get_rng_state().equal(expected.get_state())
        list(iterator)
        assert torch.get_rng_state().equal(expected.get_state())


@on_both
def test_the_base_seed_comes_from_the_given_generator(make_loader: Any) -> None:
    seed_all()
    before = states(torch.Generator())[:3]
    generator, expected = (torch.Generator().manual_seed(5) for _ in range(2))
    list(make_loader(Indices(9), batch_size=4, generator=generator))
    torch.empty((), dtype=torch.int64).random_(generator=expected)
    assert generator.get_state().equal(expected.get_state())
    assert states(torch.Generator())[:3] == before


@on_staged
def test_draws_of_a_sampler_that_draws_as_it_goes_are_torch_s_in_the_end(make_loader: Any) -> None:
    def drawn(make: Any) -> tuple[Any, list[Any]]:
        seed_all()
        loader = make(Indices(0), sampler=DrawingAsItGoes(), batch_size=4)
        return [batch.tolist() for batch in loader], states(torch.Generator())

    assert drawn(make_loader) == drawn(INLINE)


@on_both
def test_copies_of_a_seed_shuffle_alike_whatever_the_number_of_workers(make_loader: Any) -> None:
    """Written down: two epochs of 8 samples, as RandomSampler orders them after these seeds were drawn."""
    loader = make_loader(Indices(8), batch_size=None, shuffle=True)
    torch.manual_seed(0)
    got = [list(loader) for _ in range(2)]
    torch.manual_seed(0)
    expected = []
    for _ in range(2):
        torch.empty((), dtype=torch.int64).random_()  # the base seed
        order = torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        expected.append(torch.randperm(8, generator=order).tolist())
    assert got == expected


@on_both
def test_training_may_draw_between_batches(make_loader: Any) -> None:
    """Dropout and augmentation on the device draw from the generator that the loader drew from."""
    torch.manual_seed(0)
    loader = make_loader(Indices(NUM_SAMPLES), batch_size=100, shuffle=True)
    drawn = [float(torch.rand(())) for _ in loader]
    torch.manual_seed(0)
    torch.empty((), dtype=torch.int64).random_()
    torch.empty((), dtype=torch.int64).random_()
    assert drawn == [float(torch.rand(())) for _ in range(4)]


@on_workers
def test_workers_have_torch_s_seeds(make_loader: Any) -> None:
    def seed_of_this_worker(index: int) -> tuple[int, int]:
        info = get_worker_info()
        assert info is not None
        return info.id, info.seed

    generator = torch.Generator().manual_seed(9)
    dataset = Made(64, seed_of_this_worker)
    seeds = set(make_loader(dataset, batch_size=None, generator=generator, collate_fn=tuple))
    base_seed = torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(9)).item()
    assert seeds <= {(0, base_seed), (1, base_seed + 1)}


def reseed_everything(worker_id: int) -> None:
    torch.manual_seed(worker_id)
    np.random.seed(worker_id)
    random.seed(worker_id)
    torch.rand(3)


@on_workers
def test_a_worker_init_fn_that_reseeds_everything_changes_nothing_here(make_loader: Any) -> None:
    """Lightning and HF install one. In torch it reseeds the worker process only."""
    seed_all()
    loader = make_loader(Indices(9), worker_init_fn=reseed_everything, generator=torch.Generator().manual_seed(0))
    before = states(torch.Generator())
    list(loader)
    assert states(torch.Generator()) == before


@on_staged
def test_order_does_not_depend_on_a_worker_init_fn_that_reseeds(make_loader: Any) -> None:
    def order(make: Any, **arguments: Any) -> list[Any]:
        seed_all()
        return list(make(Indices(50), batch_size=None, shuffle=True, **arguments))

    assert order(make_loader, worker_init_fn=reseed_everything) == order(INLINE)
