"""Workers: iterable datasets and data pipes, in threads too; and a given multiprocessing_context means processes."""

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torchstage import StageLoader

from .compare import assert_same, story
from .datasets import Counting, Indices, Made
from .ways import INLINE, PROCESSES, STAGED_INLINE, TWO_THREADS, Way, flat, lists, on, on_both_classes

on_inline_and_workers = on(INLINE, STAGED_INLINE, PROCESSES, TWO_THREADS)
on_two_workers = on(PROCESSES, TWO_THREADS)


class Sharded(IterableDataset):
    """Each worker yields its share; inline, everything comes from one."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(10)) if info is None else iter(range(info.id, 10, info.num_workers))


@on_inline_and_workers
def test_an_iterable_dataset_gives_each_worker_s_batches_in_turn(make_loader: Any) -> None:
    inline = {0: [[0, 1, 2], [3, 4]], 2: [[0, 1, 2], [0, 1, 2], [3, 4], [3, 4]]}
    assert lists(make_loader(Counting(5), batch_size=3)) == inline[make_loader.num_workers]


@on_inline_and_workers
def test_a_sharded_iterable_dataset_gives_each_sample_once(make_loader: Any) -> None:
    expected = {0: [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], 2: [[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]}
    loader = make_loader(Sharded(), batch_size=4)
    assert [lists(loader) for _ in range(2)] == [expected[make_loader.num_workers]] * 2


ITERABLE_ARGUMENTS = [{"batch_size": None}, {"batch_size": 3, "drop_last": True}, {"batch_size": 99}]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_iterable_dataset_gives_torch_s_batches_for_any_arguments(num_workers: int) -> None:
    for arguments in ITERABLE_ARGUMENTS:
        ours, torch_s = (Way(c, num_workers)(Sharded(), **arguments) for c in (StageLoader, DataLoader))
        assert_same(list(ours), list(torch_s), str(arguments))


@on_two_workers
def test_kept_workers_read_an_iterable_dataset_again(make_loader: Any) -> None:
    loader = make_loader(Sharded(), batch_size=4, persistent_workers=True)
    assert [lists(loader) for _ in range(2)] == [[[0, 2, 4, 6], [1, 3, 5, 7], [8], [9]]] * 2
    assert iter(loader) is loader._iterator
    loader._iterator = None


@on_both_classes
def test_the_length_of_an_iterable_dataset_is_its_own(loader_class: type[DataLoader]) -> None:
    assert len(loader_class(Counting(5), batch_size=2)) == 3
    assert len(loader_class(Counting(5), batch_size=2, drop_last=True)) == 2
    assert len(loader_class(Counting(5), batch_size=None)) == 5
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(loader_class(Sharded()))


@on_both_classes
def test_an_iterable_dataset_that_is_longer_than_it_said_is_warned_of(loader_class: type[DataLoader]) -> None:
    class Liar(Counting):
        def __len__(self) -> int:
            return 2

    loader = loader_class(Liar(4))
    assert len(loader) == 2
    with pytest.warns(UserWarning, match="was reported to be 2"):
        assert lists(loader) == [[0], [1], [2], [3]]


@on_inline_and_workers
def test_an_error_of_an_iterable_dataset_has_torch_s_type(make_loader: Any) -> None:
    class Broken(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise KeyError("cat")

    events = story(make_loader(Broken(), batch_size=None))
    assert [type(event) for event in events if isinstance(event, Exception)] == [KeyError] * (
        make_loader.num_workers or 1
    )


@pytest.mark.parametrize("kind", ["map", "iterable"])
@on_inline_and_workers
def test_data_pipes_give_each_sample_once(make_loader: Any, kind: str) -> None:
    pipe: Any = torch.utils.data.datapipes.map.SequenceWrapper(range(6)).map(str)
    if kind == "iterable":
        pipe = torch.utils.data.datapipes.iter.IterableWrapper(range(6)).map(str).sharding_filter()
    batches = list(make_loader(pipe, batch_size=4))
    assert sorted(word for batch in batches for word in batch) == [*"012345"]
    assert type(make_loader(pipe).dataset) is type(DataLoader(pipe).dataset)


def pid_and_parent(index: int) -> tuple[int, int, int]:
    return index, os.getpid(), os.getppid()


@on_both_classes
@pytest.mark.parametrize("context", ["fork", multiprocessing.get_context("fork")], ids=["name", "object"])
def test_a_given_context_makes_the_workers_processes(loader_class: type[DataLoader], context: Any) -> None:
    loader = loader_class(Made(7, pid_and_parent), batch_size=2, num_workers=2, multiprocessing_context=context)
    indices, pids, parents = zip(*((i.tolist(), p.tolist(), pp.tolist()) for i, p, pp in loader), strict=True)
    assert [*indices] == [[0, 1], [2, 3], [4, 5], [6]]
    made_by = {pid for batch in pids for pid in batch}
    if loader_class is DataLoader:
        assert len(made_by) == 2
    assert made_by.isdisjoint({os.getpid()})  # ours: whichever process is free takes the next batch
    assert {pid for batch in parents for pid in batch} == {os.getpid()}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_new_interpreter_makes_the_same_batches(method: str) -> None:
    loader = StageLoader(Indices(5), batch_size=2, num_workers=1, multiprocessing_context=method)
    assert isinstance(loader.multiprocessing_context, multiprocessing.context.BaseContext)
    with loader:
        assert lists(loader) == [[0, 1], [2, 3], [4]]


def test_close_ends_worker_processes_too() -> None:
    before = len(multiprocessing.active_children())
    arguments: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "persistent_workers": True}
    with StageLoader(Indices(9), **arguments) as loader:
        assert flat(loader) == list(range(9))
        assert len(multiprocessing.active_children()) == before + 2
    assert len(multiprocessing.active_children()) == before
    assert flat(loader) == list(range(9))
    loader.close()


@on_both_classes
def test_a_context_can_be_given_later(loader_class: type[DataLoader]) -> None:
    loader = loader_class(Made(3, pid_and_parent), num_workers=1)
    loader.multiprocessing_context = "fork"
    assert {int(pid) for _, pid, _ in loader}.isdisjoint({os.getpid()})
    with pytest.raises(ValueError, match="multiprocessing_context option should specify a valid start method"):
        loader.multiprocessing_context = "teleport"
    with pytest.raises(TypeError, match="multiprocessing_context option should be a valid context"):
        loader.multiprocessing_context = 7


def test_without_a_context_everything_is_in_this_process() -> None:
    before = len(multiprocessing.active_children())
    num_batches = 0
    for batch in StageLoader(Made(9, pid_and_parent), num_workers=4):
        assert batch[1].tolist() == [os.getpid()]
        assert len(multiprocessing.active_children()) == before
        num_batches += 1
    assert num_batches == 9


def test_processes_of_a_given_context_draw_what_threads_draw() -> None:
    """Randomness is the sample's: DataLoader's worker draws what comes next, whichever sample that is for."""

    def drawn(**arguments: Any) -> list[float]:
        torch.manual_seed(0)
        dataset = Made(4, lambda i: torch.rand(()))
        loader: Any = StageLoader(dataset, batch_size=None, num_workers=2, **arguments)
        return [float(number) for number in loader]

    assert drawn(multiprocessing_context="fork") == drawn()
