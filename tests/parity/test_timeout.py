"""Time-outs: a batch that does not come in time is a RuntimeError in torch's words, and says who is late and where."""

import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from .compare import story
from .datasets import Indices, Made, as_given
from .ways import FOUR_THREADS, lists, on, on_all, on_threads, on_workers

TIMEOUT_SECONDS = 0.2


class Late:
    """Makes samples; the one called ``late`` not before it is released."""

    def __init__(self, late: int, release: Any) -> None:
        self.late, self.release = late, release

    def __call__(self, index: int) -> int:
        if index == self.late:
            self.wait_for_a_slow_disk()
        return index

    def wait_for_a_slow_disk(self) -> None:
        assert self.release.wait(60)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def timed_out(iterator: Iterator[Any]) -> str:
    with pytest.raises(RuntimeError, match=f"DataLoader timed out after {TIMEOUT_SECONDS} seconds") as caught:
        next(iterator)
    return str(caught.value)


@on_workers
def test_a_late_batch_is_an_error_and_comes_when_it_is_done(make_loader: Any) -> None:
    released = multiprocessing.get_context("fork").Event()
    iterator = iter(make_loader(Made(6, Late(2, released)), timeout=TIMEOUT_SECONDS))
    assert lists([next(iterator), next(iterator)]) == [[0], [1]]
    timed_out(iterator)
    timed_out(iterator)
    released.set()
    assert lists(iterator) == [[2], [3], [4], [5]]


@on_threads
def test_a_late_sample_is_named_with_its_stack(make_loader: Any, release: threading.Event) -> None:
    iterator = iter(make_loader(Made(6, Late(3, release)), batch_size=2, timeout=TIMEOUT_SECONDS))
    next(iterator)
    words = timed_out(iterator)
    for part in ("stage 'fetch'", "dataset index 3", "batch 1", "thread torchstage-", "in wait_for_a_slow_disk"):
        assert part in words
    release.set()
    assert lists(iterator) == [[2, 3], [4, 5]]


@on_threads
def test_a_late_batch_in_bulk_is_named_with_its_stack(make_loader: Any, release: threading.Event) -> None:
    late = Late(3, release)

    class Bulk(Indices):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [late(index) for index in indices]

    iterator = iter(make_loader(Bulk(6), batch_size=2, timeout=TIMEOUT_SECONDS))
    next(iterator)
    words = timed_out(iterator)
    for part in ("stage 'fetch'", "dataset index [2, 3]", "batch 1", "in wait_for_a_slow_disk"):
        assert part in words
    release.set()
    assert lists(iterator) == [[2, 3], [4, 5]]


@on_threads
def test_a_late_collate_function_is_named_with_its_stack(make_loader: Any, release: threading.Event) -> None:
    late = Late(2, release)
    loader = make_loader(Indices(4), collate_fn=lambda samples: late(samples[0]), timeout=TIMEOUT_SECONDS)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == [0, 1]
    words = timed_out(iterator)
    for part in ("stage 'collate'", "batch 2", "in wait_for_a_slow_disk"):
        assert part in words
    release.set()
    assert list(iterator) == [2, 3]


@on_threads
def test_the_very_first_sample_may_be_late(make_loader: Any, release: threading.Event) -> None:
    iterator = iter(make_loader(Made(4, Late(0, release)), timeout=TIMEOUT_SECONDS))
    assert "dataset index 0" in timed_out(iterator)
    release.set()
    assert lists(iterator) == [[0], [1], [2], [3]]


@on(FOUR_THREADS)
def test_without_order_only_a_standstill_is_late(make_loader: Any, release: threading.Event) -> None:
    options = {"in_order": False, "timeout": TIMEOUT_SECONDS, "collate_fn": as_given}
    loader = make_loader(Made(5, Late(1, release)), isolation="shared", **options)  # no sample is made alone
    iterator = iter(loader)
    early = [next(iterator) for _ in range(4)]
    assert sorted(early) == [[0], [2], [3], [4]]
    assert "dataset index 1" in timed_out(iterator)
    release.set()
    assert list(iterator) == [[1]]


@on(FOUR_THREADS)
def test_kept_threads_begin_the_next_epoch_though_one_is_stuck(make_loader: Any, release: threading.Event) -> None:
    late = Late(2, release)
    loader = make_loader(Made(6, late), timeout=30, persistent_workers=True)
    iterator = iter(loader)
    assert lists([next(iterator), next(iterator)]) == [[0], [1]]
    iter(loader)
    late.late = -1
    assert lists(iterator) == [[0], [1], [2], [3], [4], [5]]
    release.set()


@on(FOUR_THREADS)
def test_an_error_is_no_time_out(make_loader: Any) -> None:
    def make(index: int) -> int:
        raise TimeoutError("the user's own")

    events = story(make_loader(Made(3, make), timeout=30))
    assert [(type(event), str(event)) for event in events] == [(TimeoutError, "the user's own")] * 3


@on_all
def test_a_batch_that_comes_in_time_is_not_late(make_loader: Any) -> None:
    timeout = 60.5 if make_loader.num_workers else 0
    assert lists(make_loader(Indices(5), batch_size=2, timeout=timeout)) == [[0, 1], [2, 3], [4]]
