"""What processes make is, bit for bit, what threads make; and what DataLoader makes where nothing is drawn."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from torchstage import Stage, StageLoader

from .datasets import AtOnce, Drawing, Numbers, Repeating, doubled, jittered_batch, with_draws

PROCESSES: dict[str, Any] = {"worker_method": "multiprocessing", "num_workers": 2}
THREADS: dict[str, Any] = {"worker_method": "thread", "num_workers": 3}


def plain(value: Any) -> Any:
    """Tensors as lists with their dtype, for comparison with ``==``."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(part) for part in value)
    return value


def two_epochs(loader: Any) -> list[Any]:
    return [[plain(batch) for batch in loader] for _ in range(2)]


CASES: dict[str, dict[str, Any]] = {
    "in_order": {"batch_size": 3},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "dropping_the_last": {"batch_size": 3, "drop_last": True},
    "with_a_seed": {"batch_size": 3, "shuffle": True, "seed": 7},
    "without_batching": {"batch_size": None},
    "indices_that_come_twice": {"batch_size": 3, "sampler": Repeating()},
    "with_replacement": {"batch_size": 3, "sampler": RandomSampler(range(20), replacement=True)},
    "a_batch_sampler": {"batch_sampler": BatchSampler(SequentialSampler(range(20)), 3, True)},
    "a_collate_function_that_draws": {"batch_size": 3, "collate_fn": jittered_batch},
    "stages_that_draw": {"batch_size": 3, "stages": [Stage(with_draws), Stage(with_draws, "again")]},
    "kept_from_epoch_to_epoch": {"batch_size": 3, "persistent_workers": True},
    "pinned": {"batch_size": 3, "prefetch_factor": 5},
}


@pytest.mark.parametrize("dataset_class", [Drawing, AtOnce])
@pytest.mark.parametrize("case", CASES)
def test_the_same_batches(case: str, dataset_class: Any) -> None:
    epochs = []
    for method in (THREADS, PROCESSES):
        torch.manual_seed(1)
        with StageLoader(dataset_class(), **{**CASES[case], **method}) as loader:
            epochs.append(two_epochs(loader))
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(
    "stages",
    [
        [Stage(with_draws, executor="process")],
        [Stage(with_draws, executor="process", concurrency=1), Stage(with_draws)],
        [Stage(with_draws), Stage(with_draws, executor="process"), Stage(with_draws)],
        [Stage(with_draws, executor="process"), Stage(with_draws), Stage(with_draws, executor="process")],
    ],
)
@pytest.mark.parametrize("dataset_class", [Drawing, AtOnce])
def test_single_stages_in_processes_draw_the_same(stages: Any, dataset_class: Any) -> None:
    epochs = []
    for given in (stages, [Stage(stage.fn) for stage in stages]):
        torch.manual_seed(1)
        with StageLoader(dataset_class(), 3, shuffle=True, num_workers=2, stages=given) as loader:
            epochs.append(two_epochs(loader))
    assert epochs[0] == epochs[1]


def test_inline_runs_stages_of_processes_here() -> None:
    loader = StageLoader(Numbers(5), 2, stages=[Stage(doubled, executor="process")])
    assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": None},
        {"batch_size": 4, "collate_fn": list},
        {"batch_size": 4, "drop_last": True, "in_order": True},
    ],
)
@pytest.mark.parametrize(
    "dataset", [Numbers(18), TensorDataset(torch.arange(36.0).view(18, 2), torch.arange(18))], ids=["own", "tensors"]
)
def test_the_same_as_dataloader(dataset: Any, arguments: dict[str, Any]) -> None:
    torch.manual_seed(1)
    expected = two_epochs(DataLoader(dataset, **arguments))
    torch.manual_seed(1)
    with StageLoader(dataset, **arguments, **PROCESSES) as loader:
        assert two_epochs(loader) == expected


def test_an_empty_batch_comes() -> None:
    expected = list(DataLoader(Numbers(3), batch_sampler=[[0], [], [1, 2]], collate_fn=list))
    with StageLoader(Numbers(3), batch_sampler=[[0], [], [1, 2]], collate_fn=list, **PROCESSES) as loader:
        assert list(loader) == expected


def test_without_order_every_batch_comes_once() -> None:
    with StageLoader(Numbers(40), 3, in_order=False, **PROCESSES) as loader:
        assert sorted(value for batch in loader for value in batch.tolist()) == list(range(40))
