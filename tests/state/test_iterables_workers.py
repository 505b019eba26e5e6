"""Worker processes: a dataset with a state is read by torchdata's, any other one by torch's, once more."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from torchstage import StageLoader

from .streams import OfDataset, OfIterator, Plain, as_it_is, through_a_file

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata calls it
]


def made(dataset: Any, **arguments: Any) -> StageLoader[Any]:
    torch.manual_seed(3)
    chosen = {"num_workers": 2, "batch_size": 3, "collate_fn": as_it_is, "multiprocessing_context": "fork"}
    return StageLoader(dataset(), **{**chosen, **arguments})


def with_torchdata() -> None:
    pytest.importorskip("torchdata.stateful_dataloader")


@pytest.mark.parametrize("at", [0, 4, 8])
@pytest.mark.parametrize("dataset", [Plain, OfIterator, OfDataset])
def test_interrupted(dataset: Any, at: int) -> None:
    if dataset is OfDataset:
        with_torchdata()
    with made(dataset) as loader:
        iterator = iter(loader)
        given = [next(iterator) for _ in range(at)]
        state = through_a_file(loader.state_dict())
        rest = list(iterator)
    assert len(given) + len(rest) == 10
    with made(dataset) as again:
        again.load_state_dict(state)
        assert again.state_dict() == state
        iterator = iter(again)
        twice = []
        for batch in iterator:
            twice.append(batch)
            if len(twice) == 1:
                state = through_a_file(again.state_dict())
    if dataset is not OfDataset:
        assert twice == rest
    else:  # a dataset's own draws are not kept in worker processes
        assert [[sample[:3] for sample in batch] for batch in twice] == [[s[:3] for s in batch] for batch in rest]
    if dataset is Plain:
        with made(dataset) as third:
            third.load_state_dict(state)
            assert list(third) == rest[1:]


def test_a_finished_epoch_reads_0_of_the_next_one() -> None:
    with made(Plain) as loader:
        first = list(loader)
        state = through_a_file(loader.state_dict())
        second = list(loader)
    assert state["is_boundary"]
    with made(Plain) as again:
        again.load_state_dict(state)
        assert list(again) == second != first


def test_workers_that_are_kept_begin_the_next_epoch_as_the_state_says() -> None:
    with_torchdata()

    # torchdata's workers read ahead before they begin the next epoch: it must not be to the end
    kept = {"persistent_workers": True, "batch_size": 1, "prefetch_factor": 1}

    def epochs(samples: list[Any]) -> set[int]:
        return {sample[0] for batch in samples for sample in batch}

    with made(OfDataset, **kept) as loader:
        assert epochs(list(loader)) == {0}
        state = through_a_file(loader.state_dict())
        second = [[sample[:3] for sample in batch] for batch in loader]
    with made(OfDataset, **kept) as again:
        again.load_state_dict(state)
        assert [[sample[:3] for sample in batch] for batch in again] == second
        assert epochs(second) == {1}
        assert epochs(list(again)) == {2}


def test_without_torchdata_a_dataset_with_a_state_is_read_as_ever_and_only_its_state_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchdata.stateful_dataloader", None)
    with made(OfDataset) as loader:
        assert len(list(loader)) == 10
        next(iter(loader))
        with pytest.raises(ImportError, match=r"pip install 'torchstage\[stateful\]'"):
            loader.state_dict()


def test_a_dataset_that_cannot_be_copied_has_the_state_of_worker_processes() -> None:
    class Uncopied(IterableDataset):
        def __init__(self) -> None:
            self.numbers = (number for number in range(7))  # a generator

        def __iter__(self) -> Iterator[int]:
            return self.numbers

    with StageLoader(Uncopied(), num_workers=1, batch_size=2) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        assert state["kind"] == "workers"
        rest = [batch.tolist() for batch in iterator]
    with StageLoader(Uncopied(), num_workers=1, batch_size=2) as again:
        again.load_state_dict(state)
        assert [batch.tolist() for batch in again] == rest == [[2, 3], [4, 5], [6]]


def test_out_of_order_they_do_not_tell_what_was_handed_out() -> None:
    with made(Plain, in_order=False) as loader:
        next(iter(loader))
        with pytest.raises(RuntimeError, match="in_order=False"):
            loader.state_dict()
