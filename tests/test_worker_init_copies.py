"""A worker_init_fn that is bound to the dataset prepares the copy of its own thread, as it does in a worker process."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from torch.utils.data import Dataset, get_worker_info

from torchstage import StageLoader

NUM_THREADS = 2
NUM_ALONE = 2


class Prepared(Dataset[Any]):
    """What is prepared in each worker. The first samples may be made by one thread; then all go on together."""

    all_here = threading.Barrier(NUM_THREADS)

    def __init__(self) -> None:
        self.prepared_for: int | None = None

    def __len__(self) -> int:
        return 2 * NUM_THREADS + NUM_ALONE

    def prepare(self, number: int) -> None:
        self.prepared_for = number

    def __getitem__(self, index: int) -> Any:
        if index >= NUM_ALONE:
            self.all_here.wait(20.0)
        info = get_worker_info()
        assert info is not None
        return self.prepared_for, info.id


class Preparing:
    def __init__(self, dataset: Prepared) -> None:
        self.dataset = dataset

    def __call__(self, number: int) -> None:
        self.dataset.prepare(number)


def of_worker_info(number: int) -> None:
    info: Any = get_worker_info()
    info.dataset.prepare(number)


WAYS: dict[str, Callable[[Prepared], Any]] = {
    "method": lambda dataset: dataset.prepare,
    "partial": lambda dataset: partial(Prepared.prepare, dataset),
    "object": Preparing,
    "worker_info": lambda dataset: of_worker_info,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_each_thread_has_what_was_prepared_for_it(way: str, isolation: Any) -> None:
    dataset = Prepared()
    init_fn = WAYS[way](dataset)
    loader = StageLoader(dataset, None, num_workers=NUM_THREADS, worker_init_fn=init_fn, isolation=isolation)
    samples = list(loader)
    assert {number for _, number in samples} == set(range(NUM_THREADS))
    assert all(prepared_for == number for prepared_for, number in samples)
    assert dataset.prepared_for is None  # as with worker processes
