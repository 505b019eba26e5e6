"""Samplers: they alone say which samples come in which order; they run where and when torch runs them."""

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from .compare import assert_same
from .datasets import Bulk, Indices, Made, as_given
from .ways import INLINE, flat, lists, on_all, on_both, on_staged, on_threads, on_workers

NUM_SAMPLES = 40


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: SequentialSampler(Indices(NUM_SAMPLES)),
    "random": lambda: RandomSampler(Indices(NUM_SAMPLES)),
    "random with a generator": lambda: RandomSampler(Indices(NUM_SAMPLES), generator=seeded(1)),
    "random with replacement": lambda: RandomSampler(Indices(NUM_SAMPLES), replacement=True, num_samples=70),
    "more than there are": lambda: RandomSampler(Indices(NUM_SAMPLES), num_samples=90),
    "fewer than there are": lambda: RandomSampler(Indices(NUM_SAMPLES), num_samples=9),
    "weighted": lambda: WeightedRandomSampler([1.0] * NUM_SAMPLES, 30),
    "of a subset": lambda: SubsetRandomSampler(range(5, 25), generator=seeded(2)),
    "distributed": lambda: DistributedSampler(Indices(NUM_SAMPLES), num_replicas=3, rank=1, shuffle=True, seed=4),
    "list": lambda: [3, 1, 2],
    "tuple": lambda: (3, 1, 2),
    "range": lambda: range(30, 0, -3),
    "tensor": lambda: torch.tensor([3, 1, 2]),
    "array": lambda: np.array([3, 1, 2]),
    "old protocol": lambda: OldProtocol(),
    "nothing": list,
}


class OldProtocol:
    """Iterable through __getitem__ alone."""

    def __getitem__(self, position: int) -> int:
        return [9, 8, 7][position]


ARGUMENTS = [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@on_staged
def test_a_sampler_of_any_kind_decides_the_order(make_loader: Any, arguments: dict[str, Any]) -> None:
    def two_epochs(make: Any, kind: str) -> list[Any]:
        torch.manual_seed(0)
        loader = make(Indices(NUM_SAMPLES), sampler=SAMPLERS[kind](), **arguments)
        return [list(loader) for _ in range(2)]

    for kind in SAMPLERS:
        assert_same(two_epochs(make_loader, kind), two_epochs(INLINE, kind), kind)


@on_workers
def test_samplers_of_all_kinds_decide_the_order(make_loader: Any) -> None:
    for kind in ("random", "of a subset", "distributed", "array"):
        torch.manual_seed(0)
        expected = lists(INLINE(torch.arange(NUM_SAMPLES), sampler=SAMPLERS[kind](), batch_size=4))
        torch.manual_seed(0)
        assert lists(make_loader(torch.arange(NUM_SAMPLES), sampler=SAMPLERS[kind](), batch_size=4)) == expected, kind


@on_all
def test_shuffling_is_repeatable(make_loader: Any) -> None:
    loader = make_loader(Indices(NUM_SAMPLES), batch_size=None, shuffle=True)
    torch.manual_seed(5)
    first, second = list(loader), list(loader)
    torch.manual_seed(5)
    assert [list(loader), list(loader)] == [first, second]
    assert first != second
    assert sorted(first) == sorted(second) == list(range(NUM_SAMPLES))


@on_both
def test_shuffling_with_a_generator_leaves_the_global_order_alone(make_loader: Any) -> None:
    torch.manual_seed(1)
    one = list(make_loader(Indices(NUM_SAMPLES), batch_size=None, shuffle=True, generator=seeded(3)))
    torch.manual_seed(2)
    other = list(make_loader(Indices(NUM_SAMPLES), batch_size=None, shuffle=True, generator=seeded(3)))
    assert one == other == list(INLINE(Indices(NUM_SAMPLES), batch_size=None, shuffle=True, generator=seeded(3)))


@on_both
def test_a_distributed_sampler_follows_its_epoch(make_loader: Any) -> None:
    sampler = DistributedSampler(Indices(NUM_SAMPLES), num_replicas=2, rank=0, seed=0)
    loader = make_loader(Indices(NUM_SAMPLES), batch_size=None, sampler=sampler)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(list(loader))
    assert epochs[0] != epochs[1]
    sampler.set_epoch(0)
    assert list(loader) == epochs[0]


@on_both
def test_an_epoch_set_between_iter_and_next_counts(make_loader: Any) -> None:
    """Frameworks call iter() early. DistributedSampler looks at its epoch when the batch sampler asks for an index."""
    sampler = DistributedSampler(Indices(NUM_SAMPLES), num_replicas=1, rank=0, seed=0)
    sampler.set_epoch(7)
    expected = list(sampler)
    sampler.set_epoch(0)
    iterator = iter(make_loader(Indices(NUM_SAMPLES), batch_size=1, sampler=sampler))
    sampler.set_epoch(7)
    assert flat(iterator) == expected


@on_both
def test_a_sampler_that_is_an_iterator_lasts_one_epoch(make_loader: Any) -> None:
    loader = make_loader(Indices(9), batch_size=2, sampler=iter([1, 2, 3]))
    assert lists(loader) == [[1, 2], [3]]
    assert lists(loader) == []


@on_both
def test_a_sampler_without_an_end_is_taken_from_as_needed(make_loader: Any) -> None:
    iterator = iter(make_loader(Indices(1), batch_size=2, sampler=Endless()))
    assert lists(itertools.islice(iterator, 30)) == [[2 * i, 2 * i + 1] for i in range(30)]


class Endless:
    def __iter__(self) -> Iterator[int]:
        return itertools.count()


BATCHES: dict[str, Callable[[], Any]] = {
    "lists": lambda: [[3, 1], [2], [0, 4, 5]],
    "tuples": lambda: [(3, 1), (2,), (0, 4, 5)],
    "ranges": lambda: [range(3), range(3, 4)],
    "dicts": lambda: [{3: "a", 1: "b"}, {2: "c"}],
    "tensors": lambda: torch.arange(12).reshape(4, 3),
    "arrays": lambda: np.arange(12).reshape(4, 3),
    "iterators": lambda: [iter([3, 1]), iter([2])],
    "batch sampler": lambda: BatchSampler(range(10, 0, -1), 4, drop_last=False),
    "batches of unequal size": lambda: [list(range(k)) for k in (1, 30, 2, 12)],
}


@on_both
def test_a_batch_sampler_of_any_kind_makes_the_batches(make_loader: Any) -> None:
    for kind, make in BATCHES.items():
        expected = [[int(index) for index in batch] for batch in make()]
        assert lists(make_loader(torch.arange(NUM_SAMPLES), batch_sampler=make())) == expected, kind


@on_both
def test_a_batch_sampler_s_batches_may_be_generators(make_loader: Any) -> None:
    batches = ((index for index in batch) for batch in [[3, 1], [2]])
    assert lists(make_loader(Indices(4), batch_sampler=batches)) == [[3, 1], [2]]


class Reusing:
    """Makes twenty batches out of one object. ``read`` lets a loader thread read it only after it was changed again."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.was_changed = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        for number in range(20):
            self.batch[0], self.batch[1] = 2 * number, 2 * number + 1
            if number:
                self.was_changed.set()
            yield self.batch

    def read(self, index: Any) -> Any:
        if get_worker_info() is not None:
            assert self.was_changed.wait(30)
        return index


class UserS(list):
    """A list of the user's own type."""


class BulkOf(Made):
    """Gives what ``Made`` gives, a whole batch at once."""

    def __getitems__(self, indices: Any) -> Any:
        return [self.make(index) for index in self.make(indices)]


def as_numbers(samples: Any) -> list[int]:
    return [int(sample) for sample in samples]


ALL_TWENTY = [[2 * number, 2 * number + 1] for number in range(20)]


def batches_of_one(make_loader: Any, dataset_class: Any, batch: Any) -> list[Any]:
    sampler = Reusing(batch)
    dataset = dataset_class(40, sampler.read)
    return list(make_loader(dataset, batch_sampler=sampler, collate_fn=as_numbers))


@on_both
@pytest.mark.parametrize("dataset_class", [Made, BulkOf])
def test_a_batch_sampler_may_use_one_list_over_and_over(make_loader: Any, dataset_class: Any) -> None:
    assert batches_of_one(make_loader, dataset_class, [0, 0]) == ALL_TWENTY


@on_both
def test_a_batch_sampler_may_use_one_array_over_and_over(make_loader: Any) -> None:
    assert batches_of_one(make_loader, Made, np.array([0, 0])) == ALL_TWENTY


@on_both
def test_a_batch_sampler_may_use_one_array_over_and_over_in_bulk(make_loader: Any) -> None:
    assert batches_of_one(make_loader, BulkOf, np.array([0, 0])) == ALL_TWENTY


@on_both
@pytest.mark.parametrize("dataset_class", [Made, BulkOf])
def test_a_batch_sampler_may_use_one_tensor_over_and_over(make_loader: Any, dataset_class: Any) -> None:
    assert batches_of_one(make_loader, dataset_class, torch.tensor([0, 0])) == ALL_TWENTY


@pytest.mark.parametrize(
    "make_index", [list, np.array, torch.tensor, dict.fromkeys, UserS], ids=["list", "array", "tensor", "dict", "own"]
)
@on_both
def test_a_sampler_may_use_one_index_over_and_over(make_loader: Any, make_index: Any) -> None:
    def collate(index: Any) -> list[int]:
        assert type(index) is type(sampler.batch)
        return [int(index[0]), int(index[1])]

    sampler = Reusing(make_index([0, 1]))
    loader = make_loader(Made(0, sampler.read), batch_size=None, sampler=sampler, collate_fn=collate)
    assert list(loader) == ALL_TWENTY


@on_all
def test_an_empty_batch_is_a_batch(make_loader: Any) -> None:
    loader = make_loader(Indices(5), batch_sampler=[[1], [], [2, 3], []], collate_fn=as_given)
    assert list(loader) == [[1], [], [2, 3], []]


@on_both
def test_an_empty_batch_is_asked_for_in_bulk_too(make_loader: Any) -> None:
    assert list(make_loader(Bulk(5), batch_sampler=[[1], [], [2]], collate_fn=as_given)) == [[-1], [], [-2]]


class Watched:
    """A sampler that tells which thread asked for what."""

    def __init__(self, indices: Any) -> None:
        self.indices = indices
        self.threads: set[int] = set()
        self.asked: list[str] = []

    def __iter__(self) -> Iterator[Any]:
        self.asked.append("iter")
        self.threads.add(threading.get_ident())
        return self

    def __next__(self) -> Any:
        self.threads.add(threading.get_ident())
        number = self.asked.count("next")
        if number == len(self.indices):
            raise StopIteration
        self.asked.append("next")
        return self.indices[number]


@on_all
def test_a_sampler_runs_in_the_consumer_s_thread(make_loader: Any) -> None:
    samplers = {"sampler": Watched(range(60)), "batch_sampler": Watched([[index] for index in range(60)])}
    for name, sampler in samplers.items():
        assert flat(make_loader(Indices(60), **{name: sampler})) == list(range(60))
        assert sampler.threads == {threading.get_ident()}


@on_both
def test_a_sampler_runs_in_the_thread_of_whoever_calls_next(make_loader: Any) -> None:
    sampler = Watched(range(60))
    consumer = threading.Thread(target=list, args=(make_loader(Indices(60), sampler=sampler),), name="consumer")
    consumer.start()
    consumer.join()
    assert sampler.threads == {consumer.ident}


@on_both
@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_sampler_is_started_with_iter_and_first_asked_by_next(make_loader: Any, batch_size: int | None) -> None:
    sampler = Watched(range(5))
    iterator = iter(make_loader(Indices(5), batch_size=batch_size, sampler=sampler))
    assert sampler.asked == ([] if batch_size else ["iter"])  # BatchSampler is a generator: it starts the sampler late
    next(iterator)
    assert sampler.asked[0] == "iter"
    assert "next" in sampler.asked


def assert_in_flight(iterator: Any, sampler: Watched, num_batches: int) -> None:
    for num_handed_out in range(1, 6):
        next(iterator)
        assert sampler.asked.count("next") == num_batches + num_handed_out


@on_threads
@pytest.mark.parametrize("prefetch_factor", [1, 3, 9])
@pytest.mark.parametrize("batch_size", [1, 5, 16, 100])
def test_a_sampler_is_asked_for_no_more_than_the_window(
    make_loader: Any, batch_size: int, prefetch_factor: int
) -> None:
    """In flight: max(prefetch_factor, num_workers, ceil(16 * num_workers / batch_size)) + 1 batches."""
    sampler = Watched([[index] * batch_size for index in range(200)])
    iterator = iter(make_loader(Indices(200), batch_sampler=sampler, prefetch_factor=prefetch_factor))
    num_threads = make_loader.num_workers
    assert_in_flight(iterator, sampler, max(prefetch_factor, num_threads, -(-16 * num_threads // batch_size)) + 1)


@on_threads
@pytest.mark.parametrize("dataset_class", [Bulk, Indices])
def test_of_batches_that_are_made_whole_the_window_is_torch_s(make_loader: Any, dataset_class: Any) -> None:
    sampler = Watched([[index] for index in range(200)] if dataset_class is Bulk else range(200))
    batching = {"batch_sampler": sampler} if dataset_class is Bulk else {"sampler": sampler, "batch_size": None}
    iterator = iter(make_loader(dataset_class(200), **batching, prefetch_factor=3))
    assert_in_flight(iterator, sampler, 3 * make_loader.num_workers + 1)


@on_both
def test_a_sampler_may_draw_from_any_generator_when_it_starts(make_loader: Any) -> None:
    class Eager:
        def __iter__(self) -> Iterator[int]:
            drawn = [torch.randperm(NUM_SAMPLES).tolist(), np.random.permutation(NUM_SAMPLES).tolist()]
            return iter([*drawn[0], *drawn[1], *random.sample(range(NUM_SAMPLES), 9)])

    def seed_all() -> None:
        torch.manual_seed(3)
        np.random.seed(4)
        random.seed(5)

    loader = make_loader(Indices(NUM_SAMPLES), batch_size=None, sampler=Eager())
    seed_all()
    expected = [*torch.randperm(NUM_SAMPLES).tolist(), *np.random.permutation(NUM_SAMPLES).tolist()]
    expected += random.sample(range(NUM_SAMPLES), 9)
    seed_all()
    assert list(loader) == expected


@on_both
def test_a_sampler_may_draw_as_it_goes(make_loader: Any) -> None:
    class Lazy:
        def __iter__(self) -> Iterator[int]:
            for _ in range(NUM_SAMPLES):
                yield int(torch.randint(NUM_SAMPLES, ())) + np.random.randint(100) + random.randrange(100)

    def numbers(make: Any) -> list[int]:
        torch.manual_seed(3)
        np.random.seed(4)
        random.seed(5)
        return list(make(Indices(0), batch_size=None, sampler=Lazy()))

    assert numbers(make_loader) == numbers(INLINE)
