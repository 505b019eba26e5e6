"""Life and death in odd places: other threads, finalizers, loaders inside loaders, many at once."""

import gc
import queue
import threading
import warnings
import weakref

import pytest
from torch.utils.data import Dataset
from watching import loader_threads, seconds_until, seconds_until_no_loader_thread

from torchstage import StageLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # 4 threads on few cores

PATIENCE_SECONDS = 20.0


def loader_of(dataset=range(100), **arguments) -> StageLoader:
    return StageLoader(dataset, **{"batch_size": 4, "num_workers": 2, **arguments})


class Calls(Dataset):
    """Each sample is what a function makes of its index."""

    def __init__(self, function, length=40):
        self.function = function
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.function(index)


def in_another_thread(function):
    """What the function returns, called in a thread of its own; raises what it raises."""
    outcome: queue.SimpleQueue = queue.SimpleQueue()

    def run():
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    value, error = outcome.get(timeout=PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)
    if error is not None:
        raise error
    return value


ALL = list(range(100))


def flat(batches):
    return [value for batch in batches for value in batch.tolist()]


def test_a_loader_works_in_a_thread_that_is_not_the_main_one():
    assert in_another_thread(lambda: flat(loader_of())) == ALL
    seconds_until_no_loader_thread()


def test_an_iterator_may_wander_from_thread_to_thread():
    iterator = iter(loader_of())
    values = next(iterator).tolist()
    values += in_another_thread(lambda: next(iterator).tolist())
    values += next(iterator).tolist()
    values += in_another_thread(lambda: flat(iterator))
    assert values == ALL


def test_an_iterator_may_be_dropped_in_another_thread():
    iterators = [iter(loader_of())]
    next(iterators[0])
    in_another_thread(iterators.clear)
    seconds_until_no_loader_thread()


def test_the_last_reference_may_die_with_its_thread():
    def train():
        iterator = iter(loader_of())
        return next(iterator).tolist()

    assert in_another_thread(train) == [0, 1, 2, 3]
    seconds_until_no_loader_thread()


def test_close_wakes_a_consumer_that_waits_in_another_thread():
    is_inside, let_go = threading.Event(), threading.Event()

    def sample(index):
        is_inside.set()
        assert let_go.wait(PATIENCE_SECONDS)
        return index

    loader = loader_of(Calls(sample), timeout=3)  # a way out of a wait that should not be
    iterator = iter(loader)
    outcome: queue.SimpleQueue = queue.SimpleQueue()

    def consume():
        try:
            outcome.put(next(iterator))
        except BaseException as error:
            outcome.put(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    try:
        assert is_inside.wait(PATIENCE_SECONDS)
        with pytest.warns(RuntimeWarning, match="still in stage 'fetch'"):
            loader.close()
        error = outcome.get(timeout=0.5)
        assert isinstance(error, RuntimeError)
        assert "closed" in str(error)
    finally:
        let_go.set()
        consumer.join(PATIENCE_SECONDS)
        seconds_until_no_loader_thread()


# Finalizers ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_automatic_gc():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Cycle:
    """Garbage that only the collector can free."""

    def __init__(self, held):
        self.held = held
        self.myself = self


def test_the_collector_may_end_an_iterator_in_the_thread_of_another_loader(no_automatic_gc):
    iterator = iter(loader_of(num_workers=1))
    next(iterator)
    doomed = loader_threads()
    is_gone = weakref.ref(iterator)
    cycle = Cycle(iterator)
    del iterator, cycle
    assert is_gone() is not None
    finalized_in = []
    weakref.finalize(is_gone(), lambda: finalized_in.append(threading.current_thread().name))
    other = loader_of(Calls(lambda index: (gc.collect(), index)[1]), num_workers=1)
    assert flat(other) == list(range(40))
    assert finalized_in == ["torchstage-fetch-0"]
    seconds_until(lambda: not any(thread.is_alive() for thread in doomed))


@pytest.mark.parametrize("num_workers", [1, 4])
def test_the_collector_may_end_an_iterator_in_one_of_its_own_threads(no_automatic_gc, num_workers):
    is_dropped = threading.Event()

    def sample(index):
        if index >= 4:
            assert is_dropped.wait(PATIENCE_SECONDS)
            gc.collect()
        return index

    iterator = iter(loader_of(Calls(sample), num_workers=num_workers))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    is_gone = weakref.ref(iterator)
    cycle = Cycle(iterator)
    del iterator, cycle
    is_dropped.set()
    seconds_until_no_loader_thread()
    assert is_gone() is None


def test_the_collector_may_end_an_iterator_while_the_same_thread_is_inside_another(no_automatic_gc):
    """The sampler runs in the consumer's thread, inside __next__."""
    cycle = Cycle(iter(loader_of()))
    next(cycle.held)
    del cycle

    def sampler():
        for index in range(8):
            gc.collect()
            yield index

    assert flat(loader_of(sampler=sampler())) == list(range(8))
    seconds_until_no_loader_thread()


def test_user_code_may_close_the_very_loader_that_it_works_for():
    """A thread does not wait for itself."""
    is_closed = threading.Event()

    def sample(index):
        if index == 20:
            loader.close()
            is_closed.set()
        return index

    loader = loader_of(Calls(sample), num_workers=1)
    iterator = iter(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        next(iterator)  # admits the batch of index 20
        assert is_closed.wait(PATIENCE_SECONDS)
    (warning,) = caught
    assert "thread torchstage-fetch-0 is still in stage 'fetch', dataset index 20" in str(warning.message)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    seconds_until_no_loader_thread()


# Many and nested -------------------------------------------------------------------------------------------


def test_many_iterators_of_one_loader_each_see_everything():
    loader = loader_of(shuffle=False)
    iterators = [iter(loader) for _ in range(10)]
    seen = [[] for _ in iterators]
    for _ in range(25):
        for iterator, values in zip(iterators, seen, strict=True):
            values += next(iterator).tolist()
    assert seen == [ALL] * 10
    for iterator in iterators:
        with pytest.raises(StopIteration):
            next(iterator)


def test_nested_loops_over_one_loader():
    loader = loader_of(range(8))
    pairs = [(a, b) for first in loader for second in loader for a in first.tolist() for b in second.tolist()]
    assert len(pairs) == len(set(pairs)) == 64


@pytest.mark.filterwarnings("ignore:StageLoader.*_stderr:UserWarning")  # of its threads, if the search meets them
@pytest.mark.parametrize("inner_workers", [0, 2])
@pytest.mark.parametrize("outer_workers", [0, 2])
def test_a_loader_inside_the_dataset_of_another(outer_workers, inner_workers):
    inner = loader_of(range(6), batch_size=3, num_workers=inner_workers)
    outer = loader_of(Calls(lambda index: index + sum(flat(inner)), length=8), num_workers=outer_workers)
    assert flat(outer) == [index + 15 for index in range(8)]
    seconds_until_no_loader_thread()


def test_a_loader_as_the_sampler_of_another():
    indices = loader_of(range(12), batch_size=None)
    assert flat(loader_of(range(100, 112), sampler=indices, batch_size=3)) == list(range(100, 112))


def test_two_loaders_side_by_side():
    pairs = zip(loader_of(range(40)), loader_of(range(40, 80)), strict=True)
    assert [b[0].item() - a[0].item() for a, b in pairs] == [40] * 10


def test_an_early_end_of_zip_lets_go_of_both():
    for _ in zip(loader_of(range(100)), loader_of(range(8)), strict=False):
        pass
    seconds_until_no_loader_thread()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_set_up_that_failed_once_does_not_spoil_the_loader(persistent):
    fail = [True]

    def init(number):
        if fail:
            fail.clear()
            raise OSError("not yet")

    loader = loader_of(worker_init_fn=init, persistent_workers=persistent)
    try:
        with pytest.raises(OSError, match="not yet"):
            next(iter(loader))
        assert flat(loader) == ALL
    finally:
        loader.close()


def test_a_set_up_that_fails_leaves_no_thread():
    def init(number):
        raise OSError("no licence")

    loader = loader_of(worker_init_fn=init)
    with pytest.raises(OSError, match="no licence"):
        next(iter(loader))
    seconds_until_no_loader_thread()
