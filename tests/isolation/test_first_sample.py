"""The first sample, by which it is judged who may share: whatever it is like, all samples are right."""

import copy
import pickle
import queue
import threading

import pytest
from torch.utils.data import get_worker_info

from torchstage import StageLoader

from .breaking_state import Counting, LastShard, Shift, Transformed, shifted
from .stories import NUM_SAMPLES, PATIENCE_SECONDS, Case, Numbered, caught_warnings, pause, values_of

RIGHT = [shifted(index) for index in range(NUM_SAMPLES)]


class Shifted(Transformed):
    def __init__(self):
        super().__init__(Shift())


@pytest.fixture(autouse=True)
def _fast_switches(short_switch_interval):
    """All tests of this file."""


def test_it_may_fail():
    """The error comes in its place; the state that it left behind is still seen."""

    class Failing(Shifted):
        def __getitem__(self, index):
            value = super().__getitem__(index)
            if index in (0, 1, 7):
                raise KeyError(index)
            return value

    values = values_of(Case(Failing()).loader(batch_size=2))
    assert [values[index] for index in (0, 6)] == ["KeyError: 0", "KeyError: 7"]
    assert values[8:] == RIGHT[8:]


def test_it_may_take_so_long_that_the_others_are_let_in():
    """It waits for them; what they made meanwhile must be right as well."""

    class Slow(Shifted):
        def __init__(self):
            super().__init__()
            self.arrivals = queue.SimpleQueue()

        def __getitem__(self, index):
            if index == 0:
                self.arrivals.get(timeout=PATIENCE_SECONDS)
            else:
                self.arrivals.put(index)
            return super().__getitem__(index)

    with caught_warnings():
        loader = Case(Slow()).loader(num_workers=8)
        for _ in range(2):
            assert values_of(loader) == RIGHT


@pytest.mark.parametrize("num_workers", [1, 2, 4, 8])
def test_it_may_be_any(num_workers):
    loader = Case(Shifted()).loader(shuffle=True, num_workers=num_workers)
    for _ in range(5):
        assert sorted(values_of(loader)) == RIGHT


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_it_leaves_the_users_own_as_it_was(num_workers):
    dataset = Shifted()
    loader = Case(dataset).loader(num_workers=num_workers)
    for _ in range(2):
        assert values_of(loader) == RIGHT
        assert dataset.transform.shift is None


def test_inline_it_is_the_users_own_that_is_used():
    dataset = Shifted()
    assert values_of(Case(dataset).loader(num_workers=0)) == RIGHT
    assert dataset.transform.shift == RIGHT[-1] - (NUM_SAMPLES - 1)


def test_it_may_be_the_only_one():
    class One(Shifted):
        def __len__(self):
            return 1

    assert [value for batch in Case(One()).loader() for value in batch] == RIGHT[:1]


def test_batching_may_be_off():
    loader = StageLoader(Shifted(), batch_size=None, num_workers=4)
    for _ in range(2):
        assert list(loader) == RIGHT


def test_a_batch_may_be_taken_whole():
    class Whole(Shifted):
        def __getitems__(self, indices):
            self.indices = indices
            pause()
            return [self.transform(index) for index in self.indices]

    loader = Case(Whole()).loader()
    for _ in range(2):
        assert values_of(loader) == RIGHT


def test_a_batch_may_be_empty():
    batches = [[], [0, 1], [], [2, 3], [4], []]
    loader = StageLoader(Shifted(), batch_sampler=batches, num_workers=4, collate_fn=list)
    for _ in range(2):
        assert list(loader) == [[RIGHT[index] for index in batch] for batch in batches]


def test_an_epoch_may_be_left_at_once():
    loader = Case(Shifted()).loader()
    for _ in range(20):
        assert next(iter(loader)) == RIGHT[:2]
    assert values_of(loader) == RIGHT


def test_an_epoch_may_be_left_before_it_begins():
    dataset = Shifted()
    loader = Case(dataset).loader()
    iter(loader)
    assert values_of(loader) == RIGHT
    assert dataset.transform.shift is None


def test_two_loaders_may_use_one_dataset_at_once():
    dataset = Counting()
    loaders = [Case(dataset).loader(num_workers=4) for _ in range(3)]
    for batches in zip(*loaders, strict=True):
        assert batches[0] == batches[1] == batches[2]
        assert -1 not in batches[0]
    assert dataset.count == 0


def test_two_threads_may_begin_at_once():
    """Each with a loader of its own at one dataset: trial beside trial."""
    dataset = Transformed(Shift())
    results: queue.SimpleQueue = queue.SimpleQueue()
    barrier = threading.Barrier(2)

    def run():
        barrier.wait()
        results.put(values_of(Case(dataset).loader(num_workers=2)))

    for _ in range(10):
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [results.get() for _ in threads] == [RIGHT] * 2


@pytest.mark.parametrize("again", [copy.copy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_loader_may_be_copied_before_and_after(again):
    loader = Case(Shifted()).loader()
    assert values_of(again(loader)) == RIGHT
    assert values_of(loader) == RIGHT
    assert values_of(again(loader)) == RIGHT


def test_a_transform_may_be_put_in_between_epochs():
    dataset = Transformed(abs)
    loader = Case(dataset).loader()
    assert values_of(loader) == list(range(NUM_SAMPLES))
    dataset.transform = Shift()
    for _ in range(2):
        assert values_of(loader) == RIGHT


def test_a_shard_may_be_kept_from_the_epoch_before():
    """Copies are made anew, from what the user's own holds by then."""
    dataset = LastShard()
    loader = Case(dataset).loader()
    assert values_of(loader) == list(range(NUM_SAMPLES))
    assert dataset[5] == 5
    assert dataset.number == 1
    assert values_of(loader) == list(range(NUM_SAMPLES))
    assert dataset.number == 1


def test_isolation_may_be_changed_between_epochs():
    dataset = Shifted()
    loader = Case(dataset).loader()
    for isolation in ("auto", "serial", "per_thread", "auto", "serial"):
        loader.isolation = isolation
        assert values_of(loader) == RIGHT


def test_a_loader_inside_a_dataset():
    """Each sample of the outer one is an epoch of an inner one, with state in both."""

    class Outer(Numbered):
        def __init__(self):
            self.inner = Shifted()
            self.index = None

        def __len__(self):
            return 6

        def __getitem__(self, index):
            self.index = index
            found = values_of(Case(self.inner).loader(num_workers=2))
            return found == RIGHT and self.index == index

    assert [value for batch in Case(Outer()).loader(num_workers=2) for value in batch] == [True] * 6


def test_timeouts_and_pinning_change_nothing():
    loader = Case(Shifted()).loader(timeout=PATIENCE_SECONDS, in_order=False)
    assert sorted(values_of(loader)) == RIGHT


class FromInfo(Numbered):
    """Uses the dataset that worker info names, as functions outside of a class do."""

    def __init__(self):
        self.shift = None

    def __getitem__(self, index):
        return use_info(index)


def use_info(index):
    dataset = get_worker_info().dataset
    dataset.shift = index
    pause()
    return dataset.shift


def test_state_that_is_reached_through_worker_info():
    loader = Case(FromInfo()).loader()
    for _ in range(2):
        assert values_of(loader) == list(range(NUM_SAMPLES))


class StandIn:
    """For a package that is not installed: MONAI's raise whatever they are asked for."""

    def __getattr__(self, name):
        raise ImportError("it is not installed")


stand_in = StandIn()


class Optional(Shifted):
    def __getitem__(self, index):
        return stand_in.call(index) if index < 0 else super().__getitem__(index)


@pytest.mark.parametrize("isolation", ["auto", "per_thread"])
def test_a_stand_in_for_a_missing_package_is_not_asked(isolation):
    assert values_of(Case(Optional()).loader(isolation=isolation)) == RIGHT
