"""Loaders of every kind, drawn at random: threads, processes, and threads that go over to processes at some batch."""

import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, RandomSampler, Subset

from torchstage import Stage, StageLoader
from torchstage.placement.choice import Choice, UnitChoice

from .datasets import AtOnce, Changing, Drawing, WithWords, jittered_batch, with_draws
from .test_same_as_threads import plain

NUM_LOADERS = 14
START_SECONDS = 60.0  # of processes, at the most


def arguments_at_random(number: int) -> dict[str, Any]:
    """What a loader is made of. The same for the same number, but made anew."""
    draw = random.Random(number)
    kinds: list[Any] = [
        lambda: Drawing(110),
        lambda: AtOnce(110),
        lambda: Changing(110),
        lambda: WithWords(110),
        lambda: Subset(Drawing(240), list(range(0, 240, 2))),
        lambda: ConcatDataset([Changing(37), Subset(Changing(90), range(5, 80))]),
    ]
    dataset = draw.choice(kinds)()
    arguments: dict[str, Any] = {"dataset": dataset, "batch_size": draw.choice([3, 4, 5])}
    where: list[Any] = ["thread", "thread", "process"] if draw.random() < 0.5 else ["thread"]
    arguments["stages"] = [Stage(with_draws, executor=draw.choice(where)) for _ in range(draw.randrange(4))]
    order = draw.choice(["shuffled", "replacing", "repeating", "as it is", "batches of its own"])
    if order == "shuffled":
        arguments["shuffle"] = True
    elif order == "replacing":
        arguments["sampler"] = RandomSampler(dataset, replacement=True, num_samples=130)
    elif order == "repeating":
        arguments["sampler"] = [3, 1, 3, 3, 0, 1, 5, 3] * 14
    elif order == "batches of its own":
        del arguments["batch_size"]
        arguments["batch_sampler"] = [[4, 4, 1], [], [0], [5, 4, 3, 2, 1]] * 12
        arguments["collate_fn"] = list
    if order != "batches of its own" and draw.random() < 0.5:
        arguments["collate_fn"] = jittered_batch
    arguments["prefetch_factor"] = draw.choice([1, 2, 4])
    arguments["persistent_workers"] = draw.random() < 0.3
    arguments["isolation"] = draw.choice(["auto", "auto", "per_thread"])
    if draw.random() < 0.5:
        arguments["seed"] = number
    return arguments


def moved(loader: Any, draw: random.Random) -> Choice:
    """Some stages, or all, in processes."""
    numbers = [None, *range(len(loader.stages))]
    some = [number for number in numbers if draw.random() < 0.5]
    chosen = numbers if draw.random() < 0.5 or not some else some
    units = tuple(UnitChoice(("any",), "process" if n in chosen else "thread", "", 1.0, 1.0, None, n) for n in numbers)
    return Choice(units, "thread", 1.0, 1.0)


def begin(loader: Any) -> Any:
    """An iterator that measures nothing."""
    iterator = iter(loader)
    iterator._placement.needs_measuring = lambda *_: False
    return iterator


def go_over(loader: Any, iterator: Any, draw: random.Random) -> None:
    """From the batch after those in flight on, processes make what was chosen."""
    placement = iterator._placement
    placement.choice, placement._is_told = moved(loader, draw), True
    iterator._begin_switch()
    until = time.monotonic() + START_SECONDS
    while (switch := iterator._switch) is not None and not switch.is_ready:
        assert switch.why_not is None, switch.why_not
        assert time.monotonic() < until
        time.sleep(0.001)


def epoch_of(loader: Any, seed: int, *, at: int | None = None, draw: Any = None) -> list[Any]:
    """All batches. ``at``: after so many, others make them."""
    torch.manual_seed(seed)
    batches: list[Any] = []
    iterator = begin(loader)
    for batch in iterator:
        batches.append(plain(batch))
        if len(batches) == at:
            go_over(loader, iterator, draw)
    assert at is None or at == len(batches) or iterator._recipe.line.has_moved
    return batches


@pytest.mark.parametrize("number", range(NUM_LOADERS))
def test_it_does_not_matter_where_batches_are_made(number: int) -> None:
    draw = random.Random(number)
    with StageLoader(num_workers=2, worker_method="thread", **arguments_at_random(number)) as loader:
        expected = [epoch_of(loader, seed) for seed in (1, 2)]
    with StageLoader(num_workers=2, worker_method="multiprocessing", **arguments_at_random(number)) as loader:
        assert [epoch_of(loader, seed) for seed in (1, 2)] == expected
    with StageLoader(num_workers=2, **arguments_at_random(number)) as loader:
        iterator_at = draw.randrange(1, max(2, len(expected[0]) // 2))
        assert [epoch_of(loader, 1, at=iterator_at, draw=draw), epoch_of(loader, 2)] == expected


@pytest.mark.parametrize("number", range(0, NUM_LOADERS, 2))
def test_a_cut_after_the_change_loses_and_repeats_nothing(number: int) -> None:
    draw = random.Random(100 + number)
    with StageLoader(num_workers=2, worker_method="thread", **arguments_at_random(number)) as loader:
        expected = epoch_of(loader, 1)
    change, cut = sorted(draw.randrange(1, len(expected)) for _ in range(2))
    torch.manual_seed(1)
    with StageLoader(num_workers=2, **arguments_at_random(number)) as loader:
        iterator = begin(loader)
        batches = [plain(next(iterator)) for _ in range(change)]
        go_over(loader, iterator, draw)
        batches += [plain(next(iterator)) for _ in range(cut - change)]
        state = loader.state_dict()
    with StageLoader(num_workers=1, worker_method="multiprocessing", **arguments_at_random(number)) as loader:
        loader.load_state_dict(state)
        batches += [plain(batch) for batch in loader]
    assert batches == expected
    assert len(batches) == len(expected)


def test_what_is_plain_is_compared_to_the_bit() -> None:
    assert plain({"a": torch.tensor([0.1])}) != plain({"a": torch.tensor([np.nextafter(np.float32(0.1), 1)])})
