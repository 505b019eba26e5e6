"""A state saved with threads goes on in processes, and back."""

from typing import Any

import pytest
import torch

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .datasets import Drawing
from .test_same_as_threads import plain

PROCESSES: dict[str, Any] = {"worker_method": "multiprocessing", "num_workers": 2}
THREADS: dict[str, Any] = {"worker_method": "thread", "num_workers": 2}
INLINE: dict[str, Any] = {"num_workers": 0}


def loader_of(way: dict[str, Any], order: str, **more: Any) -> Any:
    dataset = Drawing(22)
    if order == "elastic":
        more["sampler"] = ElasticSampler(dataset, num_replicas=1, rank=0, seed=4)
    else:
        more["shuffle"] = True
    return StageLoader(dataset, 3, seed=11, **way, **more)


@pytest.mark.parametrize("order", ["shuffled", "elastic"])
@pytest.mark.parametrize(
    "ways", [(THREADS, PROCESSES), (PROCESSES, THREADS), (PROCESSES, INLINE), (PROCESSES, PROCESSES)]
)
def test_a_cut_anywhere_goes_on_anywhere(ways: Any, order: str) -> None:
    first_way, second_way = ways
    torch.manual_seed(2)
    with loader_of(THREADS, order) as loader:
        whole = [plain(batch) for _ in range(2) for batch in loader]
    for cut in (0, 1, 5, 8, 9):
        torch.manual_seed(2)
        with loader_of(first_way, order) as loader:
            batches: list[Any] = []
            iterator = iter(loader)
            for _ in range(cut):
                try:
                    batches.append(plain(next(iterator)))
                except StopIteration:
                    iterator = iter(loader)
                    batches.append(plain(next(iterator)))
            state = loader.state_dict()
        with loader_of(second_way, order) as loader:
            loader.load_state_dict(state)
            while len(batches) < len(whole):
                batches += [plain(batch) for batch in loader]
        assert batches == whole, f"cut after {cut}"


def test_without_order_a_state_keeps_what_was_handed_out() -> None:
    with loader_of(PROCESSES, "shuffled", in_order=False) as loader:
        iterator = iter(loader)
        seen = [index for _ in range(3) for index in next(iterator)["index"].tolist()]
        state = loader.state_dict()
    with loader_of(THREADS, "shuffled", in_order=False) as loader:
        loader.load_state_dict(state)
        seen += [index for batch in loader for index in batch["index"].tolist()]
    assert sorted(seen) == list(range(22))
