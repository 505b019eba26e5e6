"""For all samplers, sizes, cuts and numbers of threads: the rest of a run, in or out of order, is what it would be."""

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .runs import Drawing, plain, reseed, through_json

SAMPLERS: dict[str, Any] = {
    "sequential": lambda data: None,
    "random": lambda data: RandomSampler(data),
    "own": lambda data: RandomSampler(data, generator=torch.Generator().manual_seed(2)),
    "repeated": lambda data: RandomSampler(data, replacement=True, num_samples=len(data) + 3),
    "more": lambda data: RandomSampler(data, num_samples=2 * len(data) + 1),
    "subset": lambda data: SubsetRandomSampler(range(0, len(data), 2)),
    "weighted": lambda data: WeightedRandomSampler([1.0] * len(data), len(data)),
    "distributed": lambda data: DistributedSampler(data, 2, 0),
    "elastic": lambda data: ElasticSampler(data, 1, 0),
}

draws = st.fixed_dictionaries(
    {
        "name": st.sampled_from(sorted(SAMPLERS)),
        "length": st.integers(1, 40),
        "batch_size": st.integers(1, 9) | st.none(),
        "drop_last": st.booleans(),
        "threads": st.lists(st.sampled_from([0, 1, 2, 4, 8]), min_size=1, max_size=4),
        "steps": st.lists(st.integers(0, 12), min_size=1, max_size=4),
    }
)


def new(name: str, length: int, batch_size: int | None, drop_last: bool, **arguments: Any) -> StageLoader[Any]:
    dataset = Drawing(length)
    arguments = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None, "seed": 3, **arguments}
    return StageLoader(dataset, sampler=SAMPLERS[name](dataset), **arguments)


def take(loader: StageLoader[Any], count: int) -> list[Any]:
    """So many batches, over the ends of epochs; fewer if epochs have none."""
    batches: list[Any] = []
    for _ in range(count + 2):
        if len(batches) == count:
            break
        for batch in loader:
            batches.append(plain(batch))
            if len(batches) == count:
                return batches
    return batches


@pytest.mark.fuzz
@settings(max_examples=60)
@given(draws)
def test_a_run_is_the_same_wherever_it_is_cut(drawn: dict[str, Any]) -> None:
    steps, threads = drawn.pop("steps"), drawn.pop("threads")
    reseed(1)
    with new(**drawn, num_workers=threads[0]) as loader:
        expected = take(loader, sum(steps) + 5)
    batches: list[Any] = []
    state: Any = None
    for process, step in enumerate([*steps, 5]):
        reseed(1 + 31 * process)
        with new(**drawn, num_workers=threads[process % len(threads)]) as loader:
            if state is not None:
                loader.load_state_dict(through_json(state))
                assert loader.state_dict() == state
            batches += take(loader, step)
            state = loader.state_dict()
    assert batches == expected


@pytest.mark.fuzz
@settings(max_examples=40)
@given(draws)
def test_an_epoch_out_of_order_is_exactly_once(drawn: dict[str, Any]) -> None:
    steps, threads = drawn.pop("steps"), drawn.pop("threads")
    drawn["drop_last"] = False
    reseed(1)
    with new(**drawn) as loader:
        expected = [plain(batch) for batch in loader]
    seen: list[Any] = []
    state: Any = None
    for process, step in enumerate([*steps, 1000]):
        reseed(1 + 31 * process)
        with new(**drawn, num_workers=threads[process % len(threads)], in_order=False) as loader:
            if state is not None:
                loader.load_state_dict(through_json(state))
            if step:
                for number, batch in enumerate(loader):
                    seen.append(plain(batch))
                    if number + 1 == step:
                        break
            state = loader.state_dict()
        if state["is_boundary"] and seen:
            break
    if drawn["batch_size"] is not None:
        seen, expected = list(chain(*seen)), list(chain(*expected))
    assert sorted(seen) == sorted(expected)
