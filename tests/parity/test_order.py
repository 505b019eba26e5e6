"""Order: the sampler's order is the order of the batches, whichever sample is done first; unless the user waives it."""

import itertools
import threading
from collections import Counter
from typing import Any

import pytest

from .compare import story
from .datasets import Indices, Made, as_given
from .ways import FOUR_THREADS, INLINE, PROCESSES, STAGED_INLINE, flat, lists, on, on_all, on_both, on_threads

PATIENCE_SECONDS = 60  # a thread that waits this long will not be called any more

# Where samples wait for each other, isolation="shared": else the first two would be made by one thread alone, and the
# others let in after 2 s.


class FinishedBackwards:
    """Makes samples in groups: a sample waits until the next one of its group is done. The first sample is free."""

    def __init__(self, length: int, group: int) -> None:
        self.is_done = [threading.Event() for _ in range(length)]
        self.group = group
        self.finished: list[int] = []

    def __call__(self, index: int) -> int:
        is_last = index % self.group == 0 or index == len(self.is_done) - 1
        if not is_last:
            assert self.is_done[index + 1].wait(PATIENCE_SECONDS)
        self.finished.append(index)
        self.is_done[index].set()
        return index


@on(FOUR_THREADS)
def test_batches_keep_their_order_where_they_finish_backwards(make_loader: Any) -> None:
    make = FinishedBackwards(21, group=4)
    assert flat(make_loader(Made(21, make), isolation="shared")) == list(range(21))
    assert make.finished != list(range(21))


@on(FOUR_THREADS)
def test_samples_keep_their_order_where_they_finish_backwards(make_loader: Any) -> None:
    make = FinishedBackwards(5, group=4)
    assert lists(make_loader(Made(5, make), batch_size=5, isolation="shared")) == [[0, 1, 2, 3, 4]]
    assert make.finished == [0, 4, 3, 2, 1]


@on(FOUR_THREADS)
def test_a_late_batch_holds_back_those_behind_it(make_loader: Any) -> None:
    """Batch 1 ends last of all that were admitted; batch 0 does not wait for it."""
    others, lock = Counter[str](), threading.Lock()
    may_end = threading.Event()

    def make(index: int) -> int:
        if index == 1:
            assert may_end.wait(PATIENCE_SECONDS)
        with lock:
            others["done"] += 1
            if others["done"] == 9:
                may_end.set()
        return index

    loader = make_loader(Made(10, make), prefetch_factor=20, isolation="shared")
    assert flat(loader) == list(range(10))


@on(FOUR_THREADS)
def test_collate_of_a_late_batch_holds_back_those_behind_it(make_loader: Any) -> None:
    later = threading.Event()

    def collate(samples: list[int]) -> list[int]:
        if samples == [1]:
            assert later.wait(PATIENCE_SECONDS)
        if samples == [5]:
            later.set()
        return samples

    assert list(make_loader(Indices(9), collate_fn=collate)) == [[index] for index in range(9)]


@on(FOUR_THREADS)
def test_without_order_a_late_batch_comes_when_it_is_done(make_loader: Any) -> None:
    release = threading.Event()

    def make(index: int) -> int:
        assert index != 1 or release.wait(PATIENCE_SECONDS)
        return index

    iterator = iter(make_loader(Made(6, make), in_order=False, isolation="shared"))
    early = flat(itertools.islice(iterator, 5))
    release.set()
    assert sorted(early) == [0, 2, 3, 4, 5]
    assert flat(iterator) == [1]


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 3}, {"batch_size": None}, {"batch_size": 4, "drop_last": True}], ids=str
)
@on_all
def test_without_order_the_batches_are_the_same(make_loader: Any, arguments: dict[str, Any]) -> None:
    def as_multiset(loader: Any) -> Counter[Any]:
        return Counter(tuple(batch) if isinstance(batch, list) else batch for batch in loader)

    loader = make_loader(Indices(41), in_order=False, collate_fn=as_given, **arguments)
    assert as_multiset(loader) == as_multiset(INLINE(Indices(41), collate_fn=as_given, **arguments))


@on_both
def test_without_order_every_sample_of_each_epoch_comes_once(make_loader: Any) -> None:
    loader = make_loader(Indices(30), batch_size=4, shuffle=True, in_order=False)
    for _ in range(3):
        assert sorted(flat(loader)) == list(range(30))


@on(INLINE, STAGED_INLINE)
def test_inline_there_is_always_an_order(make_loader: Any) -> None:
    assert flat(make_loader(Indices(30), in_order=False)) == list(range(30))


@on_both
def test_without_order_an_error_comes_once_and_the_rest_comes_too(make_loader: Any) -> None:
    def make(index: int) -> int:
        if index == 7:
            raise ValueError("seven")
        return index

    events = story(make_loader(Made(20, make), in_order=False, collate_fn=as_given))
    errors = [event for event in events if isinstance(event, ValueError)]
    assert [str(error) for error in errors] == ["seven"]
    assert sorted(event for event in events if event not in errors) == [[index] for index in range(20) if index != 7]


@on_threads
def test_without_order_a_slow_consumer_gets_every_batch(make_loader: Any) -> None:
    """All batches are done before the second is asked for: none may be lost among the announcements."""
    all_done, count = threading.Event(), itertools.count(1)

    def collate(samples: list[int]) -> list[int]:
        if next(count) == 12:
            all_done.set()
        return samples

    iterator = iter(make_loader(Indices(12), in_order=False, collate_fn=collate, prefetch_factor=12))
    batches = [next(iterator)]
    assert all_done.wait(PATIENCE_SECONDS)
    batches.extend(iterator)
    assert sorted(batches) == [[index] for index in range(12)]


@on(PROCESSES, FOUR_THREADS)
def test_order_of_kept_workers_begins_anew_with_each_epoch(make_loader: Any) -> None:
    loader = make_loader(Indices(9), batch_size=2, persistent_workers=True)
    for broken_after in (1, 3, 9):
        batches = lists(itertools.islice(loader, broken_after))
        assert batches == [[0, 1], [2, 3], [4, 5], [6, 7], [8]][:broken_after]
