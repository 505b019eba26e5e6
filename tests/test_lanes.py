"""Lanes: iterable datasets in threads give what DataLoader's worker processes give: one body, run with both classes."""

import itertools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from parity.compare import MAX_EVENTS, assert_same, story
from parity.datasets import Counting
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torchstage import StageLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # torch's own workers
]

both = (StageLoader, DataLoader)


def same_of_both(body: Callable[[type[DataLoader]], Any], where: str = "value") -> Any:
    """What the body gives for StageLoader, after a look that it is what it gives for DataLoader."""
    ours, theirs = (body(loader_class) for loader_class in both)
    assert_same(ours, theirs, where)
    return ours


class Shards(IterableDataset):
    """Shards of numbers, split among the workers, which read theirs one after another."""

    def __init__(self, *lengths: int) -> None:
        starts = itertools.accumulate((0, *lengths))
        self.shards = [range(start, start + length) for start, length in zip(starts, lengths, strict=False)]

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        mine = self.shards if info is None else self.shards[info.id :: info.num_workers]
        return itertools.chain.from_iterable(mine)


class Made(IterableDataset):
    """Yields what ``make()`` yields, called in the worker."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        return self.make()


def my_number() -> int:
    info = get_worker_info()
    assert info is not None
    return info.id


# Batches and their order ------------------------------------------------------------------------------------

DATASETS = {
    "each reads all": Counting(7),
    "nothing": Counting(0),
    "even shards": Shards(6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6),
    "uneven shards": Shards(1, 9, 4, 0, 13, 2),
    "the first is long": Shards(23, 1, 1, 1),
    "the last is long": Shards(1, 0, 2, 19),
    "fewer shards than readers": Shards(5),
}
ARGUMENTS: list[dict[str, Any]] = [
    {"batch_size": None},
    {"batch_size": 1},
    {"batch_size": 3},
    {"batch_size": 3, "drop_last": True},
    {"batch_size": 100},
    {"batch_size": 100, "drop_last": True},
    {"batch_size": 2, "prefetch_factor": 1},
    {"batch_size": 2, "prefetch_factor": 5},
    {"batch_size": 4, "collate_fn": tuple},
]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
@pytest.mark.parametrize("name", DATASETS)
def test_the_batches_are_those_of_dataloader_and_in_its_order(name: str, num_workers: int) -> None:
    some = random.Random(name + str(num_workers)).sample(ARGUMENTS, 2)  # a DataLoader takes 0.1 s
    for arguments in ARGUMENTS if (name, num_workers) == ("uneven shards", 3) else some:
        same_of_both(lambda c: story(c(DATASETS[name], num_workers=num_workers, **arguments)), str(arguments))  # noqa: B023


def test_a_lane_that_has_ended_is_left_out_of_the_turns() -> None:
    loader = StageLoader(Shards(2, 6, 0, 4), batch_size=2, num_workers=4)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [8, 9], [4, 5], [10, 11], [6, 7]]


def test_out_of_order_a_slow_lane_holds_up_nobody() -> None:
    """Lane 0 gives its first batch after all of lane 1's are handed out; in order it would be the first one."""
    may_go = threading.Event()

    def numbers() -> Iterator[int]:
        if my_number() == 0:
            assert may_go.wait(20)
            yield -1
        else:
            yield from range(20)

    with StageLoader(Made(numbers), batch_size=None, num_workers=2, in_order=False, isolation="shared") as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(20)] == [*range(20)]
        may_go.set()
        assert list(iterator) == [-1]


def test_out_of_order_all_batches_come() -> None:
    def batches(loader_class: type[DataLoader]) -> list[Any]:
        loader = loader_class(Shards(1, 9, 4, 0, 13), batch_size=2, num_workers=3, in_order=False)
        return sorted(batch.tolist() for batch in loader)

    same_of_both(batches)


@pytest.mark.parametrize("prefetch_factor", [1, 2, 3])
def test_each_lane_is_ahead_by_the_prefetch_factor_and_no_more(prefetch_factor: int) -> None:
    """Of lanes that have ended, too: what they do not take is not given to others."""
    made = [0, 0, 0]
    changed = threading.Condition()

    def numbers() -> Iterator[int]:
        for number in range((100, 100, 1)[my_number()]):
            with changed:
                made[my_number()] += 1
                changed.notify_all()
            yield number

    def wait_for(counts: list[int]) -> None:
        with changed:
            assert changed.wait_for(lambda: made == counts, 10), made

    arguments: dict[str, Any] = {"batch_size": None, "num_workers": 3, "prefetch_factor": prefetch_factor}
    with StageLoader(Made(numbers), isolation="shared", **arguments) as loader:
        iterator = iter(loader)
        assert made == [0, 0, 0]  # nothing starts before the first batch is asked for
        for num_rounds in range(1, 6):
            for _ in range(3 if num_rounds == 1 else 2):
                next(iterator)
            wait_for([num_rounds + prefetch_factor] * 2 + [1])
        threads = [thread for thread in threading.enumerate() if thread.name.startswith("torchstage-lane-")]
        assert len(threads) == 3
        assert made == [5 + prefetch_factor] * 2 + [1]


# What a worker sees -----------------------------------------------------------------------------------------


class Seen(IterableDataset):
    def __init__(self) -> None:
        self.marks: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        yield info.id, info.num_workers, info.seed, torch.initial_seed(), list(self.marks), torch.get_num_threads()


def mark(number: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.marks.append((number, info.id, info.num_workers, info.seed))


def with_base_seed(loader_class: type[DataLoader], dataset: Any, **arguments: Any) -> Any:
    generator = torch.Generator().manual_seed(17)
    return loader_class(dataset, batch_size=None, generator=generator, **arguments)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_worker_info_and_what_worker_init_fn_did_to_the_dataset_are_those_of_a_worker(num_workers: int) -> None:
    dataset = Seen()

    def body(loader_class: type[DataLoader]) -> Any:
        return list(with_base_seed(loader_class, dataset, num_workers=num_workers, worker_init_fn=mark))

    assert len(same_of_both(body)) == num_workers
    assert dataset.marks == []  # each had a copy


def test_worker_info_is_nobody_s_afterwards() -> None:
    assert len(list(StageLoader(Counting(4), num_workers=2))) == 8
    assert get_worker_info() is None


class Stateful(IterableDataset):
    """Counts in ``self`` what it yielded, which a copy does for itself."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_yielded = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(3):
            self.num_yielded += 1
            self.log.append(f"{my_number()}-{number}")
            yield self.num_yielded, " ".join(self.log)


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_dataset_that_changes_itself_does_so_as_in_a_process_of_its_own(persistent_workers: bool) -> None:
    dataset = Stateful()

    def body(loader_class: type[DataLoader]) -> Any:
        loader = loader_class(dataset, batch_size=2, num_workers=2, persistent_workers=persistent_workers)
        epochs = [list(loader) for _ in range(3)]
        loader._iterator = None
        return epochs

    same_of_both(body)
    assert (dataset.num_yielded, dataset.log) == (0, [])


def test_the_copies_are_made_when_the_epoch_is_asked_for() -> None:
    class Current(IterableDataset):
        def __init__(self) -> None:
            self.value = [1]

        def __iter__(self) -> Iterator[int]:
            yield self.value[0]

    def body(loader_class: type[DataLoader]) -> Any:
        dataset = Current()
        loader = loader_class(dataset, batch_size=None, num_workers=2)
        values = []
        for value in (2, 3):
            dataset.value[0] = value
            iterator = iter(loader)
            dataset.value[0] = 99
            values.append(list(iterator))
        return values

    assert same_of_both(body) == [[2, 2], [3, 3]]


class Initialised(IterableDataset):
    def __init__(self) -> None:
        self.offset = [0]
        self.factor = [1]

    def initialise(self, number: int) -> None:
        self.offset[0] = 100 * (number + 1)

    def collate(self, samples: list[int]) -> list[int]:
        return [self.offset[0] + sample for sample in samples]

    def __iter__(self) -> Iterator[int]:
        return (self.offset[0] + number for number in range(3))


def test_methods_of_the_dataset_given_as_functions_follow_its_copy() -> None:
    def body(loader_class: type[DataLoader]) -> Any:
        dataset = Initialised()
        functions: dict[str, Any] = {"collate_fn": dataset.collate, "worker_init_fn": dataset.initialise}
        return list(loader_class(dataset, batch_size=2, num_workers=2, **functions)), dataset.offset

    batches, offset = same_of_both(body)
    assert batches == [[200, 201], [400, 401], [202], [402]]
    assert offset == [0]


# Draws ------------------------------------------------------------------------------------------------------


def draw() -> Any:
    return torch.rand(2), random.random(), np.random.rand(2), torch.randn(()), random.gauss(0, 1), np.random.randint(9)


class Drawing(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return (draw() for _ in range(5))


def draw_before(number: int) -> None:
    for _ in range(number + 1):
        draw()


def seed_anew(number: int) -> None:
    torch.manual_seed(100 + number)
    random.seed(200 + number)
    np.random.seed(300 + number)


@pytest.mark.parametrize("init_fn", [None, draw_before, seed_anew])
@pytest.mark.parametrize("persistent_workers", [False, True])
def test_the_draws_are_those_of_the_worker_of_the_same_number(init_fn: Any, persistent_workers: bool) -> None:
    """In the dataset and in ``collate_fn``, over two epochs; and this process's own draws are what they would be."""

    def collate(samples: list[Any]) -> Any:
        return samples, draw()

    def body(loader_class: type[DataLoader]) -> Any:
        seed_anew(0)
        loader = loader_class(
            Drawing(),
            batch_size=2,
            num_workers=2,
            collate_fn=collate,
            worker_init_fn=init_fn,
            persistent_workers=persistent_workers,
        )
        epochs = [list(loader) for _ in range(2)]
        loader._iterator = None
        return epochs, draw(), torch.initial_seed()

    same_of_both(body)


def test_kept_lanes_finish_what_they_were_asked_for_when_an_epoch_is_left_early() -> None:
    """torch's kept workers do: so where their generators are afterwards does not depend on luck."""

    def body(loader_class: type[DataLoader]) -> Any:
        loader = with_base_seed(loader_class, Drawing(), num_workers=2, persistent_workers=True)
        first = next(iter(loader))
        epoch = list(loader)
        loader._iterator = None
        return first, epoch

    for _ in range(3):
        same_of_both(body)


def test_a_seed_decides_the_draws_of_all_lanes_and_epochs() -> None:
    def epochs(loader_seed: int, torch_seed: int, **arguments: Any) -> Any:
        torch.manual_seed(torch_seed)
        loader = StageLoader(Drawing(), batch_size=None, num_workers=2, seed=loader_seed, **arguments)
        drawn = [list(loader) for _ in range(2)]
        loader.close()
        return drawn

    first = epochs(5, 0)
    assert_same(epochs(5, 1), first)
    assert not torch.equal(epochs(6, 0)[0][0][0], first[0][0][0])
    assert not torch.equal(first[0][0][0], first[1][0][0])  # the next epoch
    assert not torch.equal(first[0][0][0], first[0][1][0])  # the next lane


@pytest.mark.parametrize("batch_size", [None, 2])
def test_with_a_seed_inline_draws_what_one_lane_draws(batch_size: int | None) -> None:
    """And nothing from the generators of this process."""

    def epochs(num_workers: int) -> Any:
        loader = StageLoader(Drawing(), batch_size, num_workers=num_workers, seed=5, collate_fn=lambda s: (s, draw()))
        return [list(loader) for _ in range(2)]

    seed_anew(0)
    inline = epochs(0)
    random_here = random.random(), np.random.rand()
    assert_same(epochs(1), inline)
    seed_anew(0)
    assert random_here == (random.random(), np.random.rand())


def test_inline_without_a_seed_draws_from_the_process_s_generators() -> None:
    def body(loader_class: type[DataLoader]) -> Any:
        seed_anew(0)
        return list(loader_class(Drawing(), batch_size=2)), draw()

    same_of_both(body)


def test_a_seed_changes_nothing_in_what_is_drawn_from_torch_s_generator() -> None:
    def next_draw(**arguments: Any) -> float:
        torch.manual_seed(3)
        list(StageLoader(Drawing(), batch_size=None, num_workers=2, **arguments))
        return float(torch.rand(()))

    assert next_draw(seed=5) == next_draw()


def test_without_sample_rng_lanes_draw_from_the_process_s_generators() -> None:
    def yield_one() -> Iterator[float]:
        yield float(torch.rand(()))

    torch.manual_seed(3)
    (drawn,) = StageLoader(Made(yield_one), batch_size=None, num_workers=1, sample_rng=False)
    torch.manual_seed(3)
    torch.empty((), dtype=torch.int64).random_()  # the base seed
    assert drawn == float(torch.rand(()))


# Lengths and warnings ---------------------------------------------------------------------------------------


def test_lengths_and_their_warnings_are_torch_s() -> None:
    def body(loader_class: type[DataLoader]) -> Any:
        loader = loader_class(Counting(2), batch_size=1, num_workers=2)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            before_it_was_asked = len(list(loader))
            length = len(loader)
            after = len(list(loader))
        messages = [str(warning.message) for warning in seen if "Length of IterableDataset" in str(warning.message)]
        return before_it_was_asked, length, after, [message[message.index("was reported") :] for message in messages]

    assert same_of_both(body)[:3] == (4, 2, 4)


def test_a_length_that_holds_is_not_warned_of() -> None:
    class Honest(Shards):
        def __len__(self) -> int:
            return sum(map(len, self.shards))

    loader = StageLoader(Honest(3, 4), batch_size=None, num_workers=2)
    assert len(loader) == len(list(loader)) == 7


# Errors -----------------------------------------------------------------------------------------------------


class Raising(IterableDataset):
    """An iterator that goes on after the error that it raised."""

    def __init__(self, errors_at: dict[tuple[int, int], Exception]) -> None:
        self.errors_at = errors_at

    def __iter__(self) -> Iterator[int]:
        return self.Reader(self.errors_at)

    class Reader:
        def __init__(self, errors_at: Any) -> None:
            self.errors_at, self.number = errors_at, -1

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            self.number += 1
            error = self.errors_at.get((my_number(), self.number))
            if error is not None:
                raise error
            if self.number >= 7:
                raise StopIteration
            return self.number


def kinds(events: list[Any]) -> list[Any]:
    """Batches, and errors by their types and first words."""
    return [(type(event).__name__, "cat" in str(event)) if isinstance(event, Exception) else event for event in events]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_an_error_of_the_iterator_comes_in_its_place_and_the_lane_goes_on(batch_size: Any) -> None:
    def body(loader_class: type[DataLoader]) -> Any:
        dataset = Raising({(0, 0): ValueError("cat"), (1, 3): KeyError("cat"), (1, 4): OSError("cat")})
        return kinds(story(loader_class(dataset, batch_size=batch_size, num_workers=2)))

    events = same_of_both(body)
    assert [event[0] for event in events if isinstance(event, tuple)] == ["ValueError", "KeyError", "OSError"]


def test_an_error_of_a_generator_ends_its_lane_alone() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        if my_number() == 1:
            raise ValueError("cat")
        yield 2

    def body(loader_class: type[DataLoader]) -> Any:
        return kinds(story(loader_class(Made(numbers), batch_size=None, num_workers=3)))

    assert same_of_both(body) == [1, 1, 1, 2, ("ValueError", True), 2]


def test_an_error_of_collate_comes_in_its_place_and_the_lane_goes_on() -> None:
    def collate(samples: list[int]) -> list[int]:
        if samples[0] == 2 and my_number() == 1:
            raise ValueError("cat")
        return samples

    def body(loader_class: type[DataLoader]) -> Any:
        return kinds(story(loader_class(Counting(5), batch_size=2, num_workers=2, collate_fn=collate)))

    assert same_of_both(body) == [[0, 1], [0, 1], [2, 3], ("ValueError", True), [4], [4]]


def test_the_error_is_the_user_s_own_object_and_says_where() -> None:
    error = ValueError("cat")
    events = story(StageLoader(Raising({(1, 2): error}), batch_size=2, num_workers=2, isolation="shared"))
    assert events[3] is error
    assert error.__notes__ == ["torchstage: raised in stage 'fetch', lane 1, batch 3"]


def test_samples_that_do_not_fit_together_are_named_by_lane() -> None:
    def tensors() -> Iterator[torch.Tensor]:
        return (torch.zeros(3 if number < 5 else 2) for number in range(6))

    events = story(StageLoader(Made(tensors), batch_size=3, num_workers=1))
    assert "sample of dataset index 5 of lane 0 is Tensor of shape (2,)" in str(events[1].__notes__)


def fail_in_1(number: int) -> None:
    if number == 1:
        raise ValueError("cat")


def fail_to_open() -> Iterator[int]:
    if my_number() == 1:
        raise ValueError("cat")
    return iter(range(2))


@pytest.mark.parametrize("where", ["worker_init_fn", "__iter__"])
def test_an_error_of_a_lane_s_start_comes_with_its_first_batch(where: str, monkeypatch: Any) -> None:
    """And then the lane has ended. DataLoader's goes on for ever, with an UnboundLocalError for each batch."""
    dataset = Made(fail_to_open) if where == "__iter__" else Counting(2)
    init_fn = fail_in_1 if where == "worker_init_fn" else None

    def body(loader_class: type[DataLoader]) -> Any:
        iterator = iter(loader_class(dataset, batch_size=None, num_workers=2, worker_init_fn=init_fn))
        events = []
        for _ in range(3):
            try:
                events.append(next(iterator))
            except ValueError as error:
                events.append(error)
        return kinds(events)

    # One comparison will do. DataLoader ends such a worker when it looks for the last time, else after 5 s.
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    events = same_of_both(body) if where == "__iter__" else body(StageLoader)
    assert events == [0, ("ValueError", True), 1]
    events = story(StageLoader(dataset, batch_size=None, num_workers=2, worker_init_fn=init_fn))
    assert kinds(events) == [0, ("ValueError", True), 1]
    assert where == "__iter__" or "worker_init_fn(1)" in str(events[1].__notes__)


def test_kept_lanes_start_anew_after_an_error_of_their_start() -> None:
    loader = StageLoader(Counting(2), None, num_workers=2, worker_init_fn=fail_in_1, persistent_workers=True)
    assert [kinds(story(loader)) for _ in range(2)] == [[0, ("ValueError", True), 1], [0, 0, 1, 1]]
    loader.close()


def test_a_stop_iteration_of_collate_does_not_end_the_lane_in_silence() -> None:
    def collate(samples: list[int]) -> list[int]:
        raise StopIteration

    events = story(StageLoader(Counting(3), batch_size=2, num_workers=1, collate_fn=collate))
    assert [type(event) for event in events] == [RuntimeError] * 2
    assert "StopIteration was raised in stage 'collate'" in str(events[0])


def test_a_late_lane_is_named() -> None:
    may_go = threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        if my_number() == 1:
            assert may_go.wait(20)
        yield 1

    with StageLoader(Made(numbers), None, num_workers=2, timeout=0.1, isolation="shared") as loader:
        iterator = iter(loader)
        assert [next(iterator) for _ in range(3)] == [0, 0, 1]
        with pytest.raises(RuntimeError, match=r"timed out after 0\.1 seconds: stage 'fetch', lane 1, batch 3 is late"):
            next(iterator)
        may_go.set()
        assert list(iterator) == [1]


# How many lanes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_lanes_are_as_many_workers(lanes: int, num_workers: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 3, "drop_last": True}
    ours = list(StageLoader(Shards(8, 3, 9, 4), num_workers=num_workers, lanes=lanes, **arguments))
    assert_same(ours, list(DataLoader(Shards(8, 3, 9, 4), num_workers=lanes, **arguments)))


def test_one_lane_is_told_that_it_is_the_only_worker() -> None:
    def tell() -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        yield info.id, info.num_workers

    assert list(StageLoader(Made(tell), batch_size=None, num_workers=8, lanes=1)) == [[0, 1]]


def test_lanes_mean_nothing_inline_and_for_map_style_datasets() -> None:
    assert len(list(StageLoader(Counting(5), batch_size=2, lanes=3))) == 3
    assert len(list(StageLoader(range(5), batch_size=2, num_workers=2, lanes=3))) == 3


def test_there_is_an_end_to_an_endless_dataset_s_epoch_where_the_user_says() -> None:
    with StageLoader(Made(itertools.count), batch_size=None, num_workers=2) as loader:
        assert len(list(itertools.islice(loader, MAX_EVENTS))) == MAX_EVENTS
