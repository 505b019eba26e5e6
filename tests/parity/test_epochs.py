"""Epochs: loaders and iterators, one after another, at once, inside each other and half-way left."""

import threading
import warnings
from typing import Any

import pytest
from torch.utils.data import DataLoader, get_worker_info

from torchstage import StageLoader

from .compare import story
from .datasets import Indices, Made, as_given
from .ways import (
    FOUR_THREADS,
    PROCESSES,
    STAGED_INLINE,
    THREADED,
    TWO_THREADS,
    Way,
    flat,
    lists,
    on,
    on_all,
    on_both,
    on_threads,
    on_workers,
)

ALL = [[0, 1], [2, 3], [4]]


def make_small(make_loader: Any, **arguments: Any) -> Any:
    return make_loader(Indices(5), batch_size=2, **arguments)


@on_both
def test_each_epoch_is_complete(make_loader: Any) -> None:
    loader = make_small(make_loader)
    assert [lists(loader) for _ in range(4)] == [ALL] * 4


@on_workers
def test_each_epoch_of_kept_workers_is_complete(make_loader: Any) -> None:
    loader = make_small(make_loader, persistent_workers=True)
    assert [lists(loader) for _ in range(4)] == [ALL] * 4


@on_workers
def test_kept_workers_have_one_iterator(make_loader: Any) -> None:
    loader = make_small(make_loader, persistent_workers=True)
    assert loader._iterator is None
    iterator = iter(loader)
    assert iterator is loader._iterator
    assert lists(iterator) == ALL
    assert iter(loader) is iterator
    assert lists(iterator) == ALL


@on_both
def test_other_workers_have_an_iterator_for_each_epoch(make_loader: Any) -> None:
    loader = make_small(make_loader)
    one, other = iter(loader), iter(loader)
    assert one is not other
    assert loader._iterator is None
    assert lists(one) == lists(other) == ALL


@on_workers
def test_asking_for_a_new_epoch_ends_the_one_before(make_loader: Any) -> None:
    loader = make_small(make_loader, persistent_workers=True)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    assert lists(loader) == ALL


@on_workers
def test_the_iterator_of_kept_workers_can_be_taken_away(make_loader: Any) -> None:
    """As Lightning does to end the workers."""
    loader = make_small(make_loader, persistent_workers=True)
    assert lists(loader) == ALL
    loader._iterator = None
    assert lists(loader) == ALL


@on_threads
def test_kept_threads_are_set_up_once(make_loader: Any) -> None:
    started: list[int] = []
    for keep, num_epochs_set_up in ((True, 1), (False, 3)):
        started.clear()
        loader = make_loader(Indices(50), worker_init_fn=started.append, persistent_workers=keep)
        for _ in range(3):
            assert flat(loader) == list(range(50))
        assert sorted(started) == sorted([*range(make_loader.num_workers)] * num_epochs_set_up)
        loader.close()


@on_all
def test_a_change_to_the_dataset_is_seen_in_the_next_epoch(make_loader: Any) -> None:
    dataset = [1, 2, 3, 4, 5]
    loader = make_loader(dataset, batch_size=2)
    assert lists(loader) == [[1, 2], [3, 4], [5]]
    dataset[:] = [6, 7, 8]
    assert lists(loader) == [[6, 7], [8]]


@on(*THREADED)
def test_kept_threads_see_a_change_to_the_dataset_too(make_loader: Any) -> None:
    """torch's kept processes do not: they have a copy. Threads have the dataset itself."""
    dataset = [1, 2, 3]
    loader = make_loader(dataset, batch_size=2, persistent_workers=True)
    assert lists(loader) == [[1, 2], [3]]
    dataset[:] = [6, 7, 8]
    assert lists(loader) == [[6, 7], [8]]


@on_both
@pytest.mark.parametrize("num_batches", [0, 1, 3])
def test_an_epoch_that_was_left_does_not_count(make_loader: Any, num_batches: int) -> None:
    loader = make_small(make_loader)
    for _ in range(3):
        left = iter(loader)
        for _ in range(num_batches):
            next(left)
        assert lists(loader) == ALL


@on_all
def test_a_finished_iterator_stays_finished(make_loader: Any) -> None:
    iterator = iter(make_small(make_loader))
    assert lists(iterator) == ALL
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)


@on_both
def test_an_iterator_is_its_own_iterator(make_loader: Any) -> None:
    iterator = iter(make_small(make_loader))
    assert iter(iterator) is iterator
    assert lists(iterator) == ALL


@on_both
def test_length_counts_batches(make_loader: Any) -> None:
    for arguments, expected in [
        ({"batch_size": 2}, 3),
        ({"batch_size": 2, "drop_last": True}, 2),
        ({"batch_size": None}, 5),
        ({"batch_size": 100}, 1),
        ({"batch_size": 100, "drop_last": True}, 0),
        ({"sampler": [1, 2, 3, 4, 4, 4], "batch_size": 4}, 2),
        ({"batch_sampler": [[1], [2, 3], [], [4]]}, 4),
    ]:
        loader = make_loader(Indices(5), **arguments)
        assert len(loader) == len(iter(loader)) == expected, arguments


@on_both
def test_length_does_not_change_on_the_way(make_loader: Any) -> None:
    loader = make_small(make_loader)
    iterator = iter(loader)
    lengths = [(len(iterator), len(loader)) for _ in iterator]
    assert [*lengths, (len(iterator), len(loader))] == [(3, 3)] * 4


@on_both
def test_length_is_unknown_where_the_sampler_s_is(make_loader: Any) -> None:
    loader = make_loader(Indices(5), batch_size=None, sampler=(index for index in range(3)))
    with pytest.raises(TypeError, match=r"object of type 'generator' has no len\(\)"):
        len(loader)
    with pytest.raises(TypeError, match=r"object of type 'generator' has no len\(\)"):
        len(iter(loader))


@on_all
def test_two_iterators_of_a_loader_run_at_once(make_loader: Any) -> None:
    loader = make_small(make_loader)
    pairs = [(one.tolist(), other.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [(batch, batch) for batch in ALL]


@on_both
def test_iterators_of_a_loader_do_not_disturb_each_other(make_loader: Any) -> None:
    loader = make_loader(Indices(40))
    iterators = [iter(loader) for _ in range(3)]
    got: list[list[int]] = [[], [], []]
    for step in range(120):
        which = (step * 7) % 3 if step % 2 else step % 3
        batch = next(iterators[which], None)
        if batch is not None:
            got[which] += batch.tolist()
    for which, iterator in enumerate(iterators):
        assert got[which] + flat(iterator) == list(range(40))


@on_both
def test_loops_over_a_loader_may_be_nested(make_loader: Any) -> None:
    loader = make_small(make_loader)
    pairs = [(outer.tolist(), inner.tolist()) for outer in loader for inner in loader]
    assert pairs == [(outer, inner) for outer in ALL for inner in ALL]


@on_both
def test_two_loaders_share_a_dataset(make_loader: Any) -> None:
    dataset = Indices(5)
    one, other = make_loader(dataset, batch_size=2), make_loader(dataset, batch_size=2, sampler=[4, 3, 2, 1, 0])
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(one, other, strict=True)]
    assert pairs == [([0, 1], [4, 3]), ([2, 3], [2, 1]), ([4], [0])]


INNER = [
    Way(DataLoader, 0),
    STAGED_INLINE,
    pytest.param(TWO_THREADS, id="StageLoader-2"),
]


@pytest.mark.parametrize("inner", INNER, ids=str)
@on_all
def test_a_dataset_may_iterate_a_loader(make_loader: Any, inner: Any) -> None:
    """Threads may also run in torch's worker processes, where processes may not."""

    def total(index: int) -> int:
        return sum(int(batch.sum()) for batch in inner(Indices(5), batch_size=2)) + index

    assert lists(make_loader(Made(5, total), batch_size=2)) == [[10, 11], [12, 13], [14]]


@pytest.mark.parametrize("keep", [False, True])
def test_a_worker_process_may_iterate_a_loader_that_was_iterated_here(keep: bool) -> None:
    inner = TWO_THREADS(Indices(5), batch_size=2, persistent_workers=keep)
    assert lists(inner) == ALL
    assert story(PROCESSES(Made(4, lambda i: len(lists(inner))), batch_size=None)) == [3] * 4
    assert lists(inner) == ALL


@on_both
def test_a_dataset_may_keep_an_iterator_of_another_loader(make_loader: Any) -> None:
    lock, inner = threading.Lock(), iter(make_loader(Indices(40), batch_size=None))

    def take(index: int) -> int:
        with lock:
            return next(inner)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one thread at a time uses it
        assert sorted(flat(make_loader(Made(40, take), batch_size=3))) == list(range(40))


@on_both
def test_another_thread_may_iterate(make_loader: Any) -> None:
    loader, got = make_small(make_loader), []
    thread = threading.Thread(target=lambda: got.append(lists(loader)))
    thread.start()
    thread.join()
    assert got == [ALL]


@on_both
def test_an_iterator_may_move_to_another_thread(make_loader: Any) -> None:
    iterator, got = iter(make_small(make_loader)), []
    got.append(next(iterator).tolist())
    thread = threading.Thread(target=lambda: got.append(next(iterator).tolist()))
    thread.start()
    thread.join()
    assert [*got, *lists(iterator)] == ALL


@on_all
def test_an_iterator_outlives_its_loader(make_loader: Any) -> None:
    assert lists(iter(make_small(make_loader))) == ALL


@on(STAGED_INLINE, *THREADED)
@pytest.mark.parametrize("keep", [True, False])
def test_a_closed_loader_can_be_iterated_again(make_loader: Any, keep: bool) -> None:
    arguments = {"persistent_workers": True} if keep and make_loader.num_workers else {}
    with make_small(make_loader, **arguments) as loader:
        next(iter(loader))
    assert lists(loader) == ALL
    loader.close()
    loader.close()


@on(STAGED_INLINE, *THREADED)
def test_closing_ends_an_iterator_half_way(make_loader: Any) -> None:
    loader = make_small(make_loader)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is closed"):
            next(iterator)


@on(STAGED_INLINE, *THREADED)
def test_an_iterator_that_was_finished_before_closing_stays_finished(make_loader: Any) -> None:
    loader = make_small(make_loader)
    iterator = iter(loader)
    assert lists(iterator) == ALL
    loader.close()
    assert next(iterator, "the end") == "the end"


@on_both
def test_a_break_in_a_nested_loop_leaves_the_outer_one_at_work(make_loader: Any) -> None:
    outer_loader, seen = make_small(make_loader), []
    for outer in outer_loader:
        for inner in outer_loader:
            seen.append((outer.tolist(), inner.tolist()))
            break
    assert seen == [(outer, [0, 1]) for outer in ALL]


@on(FOUR_THREADS)
def test_worker_info_of_an_inner_loader_hides_the_outer_one_s(make_loader: Any) -> None:
    def ids(index: int) -> tuple[int, set[int], int]:
        inner = StageLoader(Made(4, lambda _: get_worker_info().num_workers), num_workers=3, batch_size=None)
        return get_worker_info().num_workers, set(inner), get_worker_info().num_workers

    assert list(make_loader(Made(6, ids), batch_size=None, collate_fn=as_given)) == [(4, {3}, 4)] * 6
