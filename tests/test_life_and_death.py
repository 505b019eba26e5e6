"""Life and death: threads start with the first batch, and end however the loop ends, within a tenth of a second.

Odd places, whole processes and signals have files of their own.
"""

import gc
import threading
import time
import warnings
import weakref
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import Dataset
from watching import loader_threads, seconds_until, seconds_until_no_loader_thread

from torchstage import StageLoader
from torchstage.iterators import CLOSE_WAIT_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 4 threads on few cores

PATIENCE_SECONDS = 20.0


def loader_of(dataset=range(1000), **arguments) -> StageLoader:
    return StageLoader(dataset, **{"batch_size": 4, "num_workers": 4, **arguments})


class Stuck(Dataset):
    """Sample 5 is held back until it is let go."""

    def __init__(self) -> None:
        self.is_inside = threading.Event()
        self.let_go = threading.Event()

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if index == 5:
            self.is_inside.set()
            assert self.let_go.wait(PATIENCE_SECONDS)
        return index


# Birth -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
def test_neither_building_nor_iter_starts_a_thread(persistent):
    num_threads = threading.active_count()
    loader = loader_of(persistent_workers=persistent)
    assert threading.active_count() == num_threads
    iterator = iter(loader)
    assert threading.active_count() == num_threads
    next(iterator)
    assert 1 <= len(loader_threads()) <= 4
    loader.close()


def test_an_iterator_that_was_never_asked_for_a_batch_leaves_nothing():
    is_gone = weakref.ref(iter(loader_of()))
    gc.collect()
    assert is_gone() is None


# Death -----------------------------------------------------------------------------------------------------


def by_close(loader):
    iterator = iter(loader)
    next(iterator)
    loader.close()


def by_with_block(loader):
    with loader:
        next(iter(loader))


def by_dropping_the_iterator(loader):
    iterator = iter(loader)
    next(iterator)
    del iterator


def by_a_new_iter(loader):
    iterator = iter(loader)
    next(iterator)
    first = loader_threads()
    iterator = iter(loader)
    seconds_until(lambda: not any(thread.is_alive() for thread in first))


def by_exhaustion(loader):
    assert len(list(loader)) == len(loader)


def by_exhaustion_with_the_iterator_kept(loader):
    loader.kept = iter(loader)
    for _ in loader.kept:
        pass


def by_an_exception_in_the_loop(loader):
    try:
        for _ in loader:
            raise ArithmeticError
    except ArithmeticError:
        pass


def by_break(loader):
    for _ in loader:
        break


def by_an_exception_in_the_with_block(loader):
    try:
        with loader:
            next(iter(loader))
            raise ArithmeticError
    except ArithmeticError:
        pass


def by_shutdown_workers(loader):
    iterator = iter(loader)
    next(iterator)
    iterator._shutdown_workers()


def by_closing_a_generator(loader):
    def train():
        for batch in loader:
            yield batch.sum()

    losses = train()
    next(losses)
    losses.close()


WAYS = [
    by_close,
    by_with_block,
    by_dropping_the_iterator,
    by_a_new_iter,
    by_exhaustion,
    by_exhaustion_with_the_iterator_kept,
    by_an_exception_in_the_loop,
    by_an_exception_in_the_with_block,
    by_break,
    by_shutdown_workers,
    by_closing_a_generator,
]


@pytest.mark.parametrize("way", WAYS)
def test_threads_end(way, record_property):
    loader = loader_of()
    way(loader)
    record_property("seconds", seconds_until_no_loader_thread())


def without_the_iterator(loader):
    loader._iterator = None


def without_the_loader(loader):
    loader.__dict__.clear()


@pytest.mark.parametrize("way", [StageLoader.close, without_the_iterator, without_the_loader])
@pytest.mark.parametrize("num_batches", [1, 250])
def test_persistent_threads_live_on_until_they_are_let_go(way, num_batches, record_property):
    loader = loader_of(persistent_workers=True)
    for number, _ in enumerate(loader, start=1):
        if number == num_batches:
            break
    assert len(loader_threads()) == 4
    way(loader)
    record_property("seconds", seconds_until_no_loader_thread())


def test_persistent_threads_are_the_same_from_epoch_to_epoch():
    with loader_of(range(8), persistent_workers=True) as loader:
        assert len(list(loader)) == 2
        threads = set(loader_threads())
        assert len(list(loader)) == 2
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        assert set(loader_threads()) == threads


@pytest.mark.timing
def test_an_idle_loader_closes_at_once(record_property):
    loader = loader_of()
    next(iter(loader))
    kept = iter(loader)
    next(kept)
    seconds_until(lambda: all(batch.done for run in kept._runs for batch in run._in_flight))
    begin = time.monotonic()
    loader.close()
    record_property("seconds", time.monotonic() - begin)
    assert not loader_threads()  # close waits for them: no patience here
    assert time.monotonic() - begin < 1.0


def test_close_can_be_called_any_number_of_times():
    loader = loader_of()
    loader.close()
    iterator = iter(loader)
    loader.close()
    next(iter(loader))
    for _ in range(3):
        loader.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


@pytest.mark.parametrize("persistent", [False, True])
def test_after_close_the_iterator_is_done_and_the_loader_is_not(persistent):
    loader = loader_of(range(8), persistent_workers=persistent)
    for _ in range(2):
        iterator = iter(loader)
        next(iterator)
        loader.close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="this iterator is closed"):
                next(iterator)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.close()


def test_close_ends_every_iterator_of_the_loader():
    loader = loader_of()
    iterators = [iter(loader) for _ in range(5)]
    for iterator in iterators:
        next(iterator)
    loader.close()
    assert not loader_threads()


def test_closing_inline_and_unused_loaders_is_no_trouble():
    with loader_of(num_workers=0) as loader:
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    loader.close()


def test_fifty_short_trials_cost_nothing_that_stays():
    process = psutil.Process()

    def trial(way) -> None:
        dataset = torch.zeros(64, 4096)
        loader = loader_of(torch.utils.data.TensorDataset(dataset))
        for number, _ in enumerate(loader):
            if number == 2:
                break
        if way:
            loader.close()

    for way in (True, False):
        trial(way)
    gc.collect()
    num_files, rss = process.num_fds(), process.memory_info().rss
    children = process.children()  # a fork server of other tests' worker processes may live on
    for number in range(50):
        trial(number % 2)
    seconds_until_no_loader_thread()
    assert process.num_fds() == num_files
    assert process.children() == children
    assert process.memory_info().rss - rss < 32 << 20  # a trial's data is 1 MiB, its window 4 MiB


# Stuck in user code ----------------------------------------------------------------------------------------


def by_leaving_the_block(loader):
    with loader:
        pass


@pytest.mark.timing
@pytest.mark.parametrize("way", [StageLoader.close, by_leaving_the_block])
def test_a_thread_stuck_in_user_code_is_named_and_let_go(way):
    dataset = Stuck()
    loader = loader_of(dataset)
    iterator = iter(loader)
    next(iterator)
    assert dataset.is_inside.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"stage 'fetch', dataset index 5 \(batch 1\)") as caught:
        way(loader)
    assert time.monotonic() - begin < 8.0  # it promises 2, on a machine that has time
    assert len(caught) == 1
    assert "torchstage-fetch-" in str(caught[0].message)
    assert Path(caught[0].filename).name != "iterators.py"
    dataset.let_go.set()
    seconds_until_no_loader_thread()


@pytest.mark.timing
def test_dropping_an_iterator_with_a_stuck_thread_waits_for_nothing():
    dataset = Stuck()
    iterator = iter(loader_of(dataset))
    next(iterator)
    assert dataset.is_inside.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del iterator
    assert time.monotonic() - begin < 1.0
    assert len(loader_threads()) >= 1
    dataset.let_go.set()
    seconds_until_no_loader_thread()


@pytest.mark.timing
def test_two_iterators_with_stuck_threads_are_closed_in_the_time_of_one():
    dataset = Stuck()
    loader = loader_of(dataset)
    iterators = [iter(loader) for _ in range(2)]
    for iterator in iterators:
        dataset.is_inside.clear()
        next(iterator)
        assert dataset.is_inside.wait(PATIENCE_SECONDS)
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match="dataset index 5"):
        loader.close()
    seconds = time.monotonic() - begin
    dataset.let_go.set()
    seconds_until_no_loader_thread()
    assert seconds < 1.9 * CLOSE_WAIT_SECONDS


def test_only_the_thread_that_is_stuck_stays():
    dataset = Stuck()
    loader = loader_of(dataset)
    iterator = iter(loader)
    next(iterator)
    assert dataset.is_inside.wait(PATIENCE_SECONDS)
    del iterator
    seconds_until(lambda: len(loader_threads()) == 1)
    dataset.let_go.set()
    seconds_until_no_loader_thread()


def test_no_sample_begins_after_close():
    seen, gate, is_inside = [], threading.Event(), threading.Event()

    class Slow(Dataset):
        def __len__(self):
            return 1000

        def __getitem__(self, index):
            seen.append(index)
            if index >= 4:
                is_inside.set()
                assert gate.wait(PATIENCE_SECONDS)
            return index

    iterator = iter(loader_of(Slow(), num_workers=1))
    next(iterator)
    assert is_inside.wait(PATIENCE_SECONDS)
    del iterator
    gate.set()
    seconds_until_no_loader_thread()
    assert seen == [0, 1, 2, 3, 4]


def test_the_dataset_is_let_go_with_the_iterator():
    class Data(Dataset):
        """Something that can be referenced weakly."""

        def __len__(self):
            return 100

        def __getitem__(self, index):
            return index

    dataset = Data()
    is_gone = weakref.ref(dataset)
    loader = loader_of(dataset)
    for _ in loader:
        break
    del dataset, loader
    seconds_until(lambda: gc.collect() >= 0 and is_gone() is None)


@pytest.mark.skipif(not hasattr(psutil.Process, "num_fds"), reason="counts file descriptors")
def test_threads_need_no_files():
    list(loader_of(range(8)))
    before = psutil.Process().num_fds()
    with loader_of() as loader:
        next(iter(loader))
        assert psutil.Process().num_fds() == before
