"""Worker info: a loader thread looks to user code like one of torch's workers; any other thread does not."""

import random
import threading
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import get_worker_info

from torchstage import StageLoader

from .datasets import Indices, Made, as_given
from .ways import INLINE, STAGED_INLINE, flat, on, on_all, on_both, on_threads, on_workers

EARLY_REFERENCE = get_worker_info  # imported before any loader ran


@on_all
def test_the_consumer_is_no_worker(make_loader: Any) -> None:
    seen = []

    class Sampler:
        def __iter__(self) -> Any:
            for index in range(6):
                seen.append(get_worker_info())
                yield index

    for _ in make_loader(Indices(6), sampler=Sampler()):
        seen.append(get_worker_info())
    assert seen == [None] * 12
    assert get_worker_info() is None


@on(INLINE, STAGED_INLINE)
def test_inline_nobody_is_a_worker(make_loader: Any) -> None:
    assert list(make_loader(Made(3, lambda i: get_worker_info()), batch_size=None)) == [None] * 3


@on_workers
def test_workers_know_who_they_are(make_loader: Any) -> None:
    def look(index: int) -> tuple[Any, ...]:
        info = get_worker_info()
        assert info is not None
        same = info.dataset.length == 12 and info.seed == torch.initial_seed()
        return info.id, info.num_workers, same, type(info) is torch_worker.WorkerInfo

    seen = set(make_loader(Made(12, look), batch_size=None, collate_fn=tuple))
    assert seen <= {(0, 2, True, True), (1, 2, True, True)}
    assert seen


@on_threads
def test_threads_have_the_user_s_own_dataset(make_loader: Any) -> None:
    dataset = Made(4, lambda i: get_worker_info().dataset)
    assert all(seen is dataset for seen in make_loader(dataset, batch_size=None, collate_fn=as_given))


@on_workers
def test_every_reference_to_get_worker_info_answers(make_loader: Any) -> None:
    def ask(index: int) -> list[bool]:
        functions = (EARLY_REFERENCE, torch_worker.get_worker_info, torch.utils.data.get_worker_info)
        return [function() is not None for function in functions]

    assert list(make_loader(Made(3, ask), batch_size=None)) == [[True] * 3] * 3


@on_workers
def test_worker_info_cannot_be_changed(make_loader: Any) -> None:
    def change(index: int) -> str:
        with pytest.raises((FrozenInstanceError, RuntimeError)):
            get_worker_info().id = 7
        return "unchanged"

    assert list(make_loader(Made(3, change), batch_size=None)) == ["unchanged"] * 3


@on_workers
def test_a_user_s_collate_function_runs_in_a_worker(make_loader: Any) -> None:
    def collate(samples: list[int]) -> int:
        return get_worker_info().num_workers

    assert list(make_loader(Indices(4), collate_fn=collate)) == [2] * 4


@on_workers
def test_operators_use_one_core_in_a_worker_and_all_of_them_here(make_loader: Any) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(make_loader(Made(8, lambda i: torch.get_num_threads()), batch_size=None)) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# worker_init_fn -------------------------------------------------------------------------------------------------------


class Drawing(Indices):
    """Each worker notes down what the generators gave it at its start; its items are these notes."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.drawn: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        number = get_worker_info().id
        return number, *self.drawn[number]


def draw(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert (info.id, info.seed) == (worker_id, torch.initial_seed())
    info.dataset.drawn[worker_id] = (torch.rand(()).item(), random.random(), np.random.random())


@on_workers
def test_a_worker_init_fn_draws_what_it_draws_in_torch_s_workers(make_loader: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    loader = make_loader(Drawing(64), batch_size=None, worker_init_fn=draw, generator=generator, collate_fn=tuple)
    base_seed = torch.empty((), dtype=torch.int64).random_(generator=torch.Generator().manual_seed(3)).item()
    expected = {}
    for number in range(2):
        seed = base_seed + number
        drawn_by_torch = torch.rand((), generator=torch.Generator().manual_seed(seed)).item()
        numpy_s = np.random.RandomState(torch_worker._generate_state(base_seed, number))
        expected[number] = (number, drawn_by_torch, random.Random(seed).random(), numpy_s.random_sample())
    seen = {notes[0]: notes for notes in loader}
    assert seen
    assert seen == {number: expected[number] for number in seen}


@on_threads
def test_a_worker_init_fn_runs_once_in_each_thread_one_after_another(make_loader: Any) -> None:
    calls: list[tuple[int, int]] = []
    at_work = threading.Lock()

    def init(worker_id: int) -> None:
        assert at_work.acquire(blocking=False), "two at once"
        calls.append((worker_id, threading.get_ident()))
        at_work.release()

    assert flat(make_loader(Indices(100), batch_size=4, worker_init_fn=init)) == list(range(100))
    assert [worker_id for worker_id, _ in calls] == list(range(make_loader.num_workers))
    assert len({ident for _, ident in calls} | {threading.get_ident()}) == make_loader.num_workers + 1


@on_both
def test_a_worker_init_fn_runs_in_workers_only(make_loader: Any) -> None:
    calls: list[int] = []
    loader = make_loader(Indices(4), worker_init_fn=calls.append)
    iterator = iter(loader)
    assert calls == []
    list(iterator)
    assert calls == list(range(make_loader.num_workers))


@on_threads
def test_a_worker_init_fn_comes_before_the_thread_s_first_sample(make_loader: Any) -> None:
    ready: set[int] = set()
    dataset = Made(60, lambda i: threading.get_ident() in ready)
    loader = make_loader(dataset, batch_size=3, worker_init_fn=lambda _: ready.add(threading.get_ident()))
    assert flat(loader) == [True] * 60


@on_threads
def test_a_worker_init_fn_that_fails_fails_the_first_batch(make_loader: Any) -> None:
    def init(worker_id: int) -> None:
        raise ValueError("no licence")

    iterator = iter(make_loader(Indices(2), worker_init_fn=init))
    with pytest.raises(ValueError, match="no licence"):
        next(iterator)
    with pytest.raises(RuntimeError, match="is closed"):
        next(iterator)


@on_threads
def test_the_error_of_a_worker_init_fn_is_the_user_s_own(make_loader: Any) -> None:
    mine = KeyError("licence")

    def init(worker_id: int) -> None:
        raise mine

    with pytest.raises(KeyError) as caught:
        next(iter(make_loader(Indices(2), worker_init_fn=init)))
    assert caught.value is mine


@on_threads
def test_stop_iteration_from_a_worker_init_fn_is_no_end(make_loader: Any) -> None:
    def init(worker_id: int) -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(make_loader(Indices(2), worker_init_fn=init))


@on_threads
@pytest.mark.parametrize("error_type", [ValueError, KeyboardInterrupt])
def test_a_loader_that_keeps_its_threads_recovers_from_a_failed_start(make_loader: Any, error_type: Any) -> None:
    """Somebody presses Ctrl-C during the first batch, and runs the cell of the notebook again."""
    errors = [error_type("once")]

    def init(worker_id: int) -> None:
        if errors:
            raise errors.pop()

    loader = make_loader(Indices(3), worker_init_fn=init, persistent_workers=True)
    with pytest.raises(error_type, match="once"):
        next(iter(loader))
    assert flat(loader) == [0, 1, 2]
    loader.close()


def test_worker_info_is_gone_when_the_threads_are() -> None:
    """Other threads of the process were never told anything."""
    seen: list[Any] = []
    loader = StageLoader(Indices(4), num_workers=2)
    for _ in loader:
        other = threading.Thread(target=lambda: seen.append(get_worker_info()))
        other.start()
        other.join()
    assert seen == [None] * 4
    assert torch_worker._worker_info is None
