"""Processes stay from epoch to epoch, see what changed in the dataset, and end with the loader."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from torchstage import Stage, StageLoader

from .datasets import Numbers, Whereabouts, doubled, pid_of

PROCESSES: dict[str, Any] = {"worker_method": "multiprocessing", "num_workers": 2}


def told(loader: Any) -> tuple[set[int], set[int]]:
    """The processes of an epoch, and the words of the dataset that they had."""
    rows = torch.cat(list(loader))
    assert rows[:, 0].tolist() == list(range(len(rows)))
    assert rows[:, 3].unique().tolist() == [2], "each process is told that it is a worker process"
    assert set(rows[:, 2].tolist()) <= {0, 1}
    return set(rows[:, 1].tolist()), set(rows[:, 4].tolist())


def test_processes_stay_and_see_what_changed_in_the_dataset() -> None:
    dataset = Whereabouts(60)
    with StageLoader(dataset, 2, **PROCESSES) as loader:
        pids, words = told(loader)
        dataset.word = 5
        later_pids, later_words = told(loader)
    assert (words, later_words) == ({0}, {5})
    assert os.getpid() not in pids | later_pids
    assert len(pids | later_pids) <= 2


def test_kept_workers_keep_the_dataset_that_they_have() -> None:
    dataset = Whereabouts(60)
    with StageLoader(dataset, 2, persistent_workers=True, **PROCESSES) as loader:
        told(loader)
        dataset.word = 5
        assert told(loader)[1] == {0}


def test_an_epoch_may_be_left_and_another_begun() -> None:
    with StageLoader(Whereabouts(60), 2, **PROCESSES) as loader:
        for number, _ in enumerate(loader):
            if number == 3:
                break
        pids, _ = told(loader)
    assert len(pids) <= 2


def test_two_iterators_at_once_have_their_own() -> None:
    dataset = Whereabouts(40)
    with StageLoader(dataset, 2, **PROCESSES) as loader:
        one = iter(loader)
        first = next(one)
        dataset.word = 5
        other = list(loader)
        rest = list(one)
    assert {int(row[4]) for batch in [first, *rest] for row in batch} == {0}
    assert {int(row[4]) for batch in other for row in batch} == {5}


def test_a_dropped_loader_ends_its_processes() -> None:
    loader = StageLoader(Numbers(40), 2, **PROCESSES)
    iterator = iter(loader)
    next(iterator)
    del loader, iterator  # what is left behind, the fixture of all tests finds


def test_a_closed_loader_can_be_iterated_again() -> None:
    loader = StageLoader(Numbers(6), 2, **PROCESSES)
    first = [batch.tolist() for batch in loader]
    loader.close()
    assert [batch.tolist() for batch in loader] == first
    loader.close()


def test_a_copy_has_processes_of_its_own() -> None:
    import copy

    with StageLoader(Whereabouts(40), 2, **PROCESSES) as loader:
        pids, _ = told(loader)
        with copy.deepcopy(loader) as other:
            assert told(other)[0].isdisjoint(pids)


def test_a_stage_has_as_many_processes_as_it_may_run_in() -> None:
    stages = [Stage(pid_of, executor="process", concurrency=1)]
    with StageLoader(Numbers(20), 2, num_workers=2, stages=stages) as loader:
        pids = torch.cat(list(loader)).unique().tolist()
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_an_iterable_dataset_says_nothing_of_processes_of_stages() -> None:
    """Stages of an iterable dataset run in its lanes, wherever they would run otherwise."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(range(6))

    with StageLoader(Stream(), 2, num_workers=1, stages=[Stage(doubled, executor="process")]) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 2], [4, 6], [8, 10]]


@pytest.mark.parametrize("method", ["processes", None, 3])
def test_an_unknown_method_is_refused(method: Any) -> None:
    with pytest.raises(ValueError, match="worker_method must be one of 'auto', 'thread', 'multiprocessing'"):
        StageLoader(Numbers(), worker_method=method)


def test_threads_and_a_context_of_processes_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="Leave one of them out"):
        StageLoader(Numbers(), num_workers=1, worker_method="thread", multiprocessing_context="spawn")


FORKING = """
import os
from torchstage import StageLoader

loader = StageLoader(range(12), batch_size=2, num_workers=2, worker_method="multiprocessing")
print(len(list(loader)), flush=True)
child = os.fork()
print(len(list(loader)), flush=True)
loader.close()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_forked_child_has_processes_of_its_own() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "6\n" * 3), ended.stderr
