"""Exact: samples and errors are counted to the number, also of stages apart, of batches that fail, and as they come."""

import gc
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch.utils.data import IterableDataset

from torchstage import Stage, StageLoader

from .working import Waiting, as_it_is


class Stream(IterableDataset):
    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __iter__(self):
        yield from range(self.num_samples)


def refuse_sevens(value):
    if value % 10 == 7:
        raise KeyError(value)
    return value


def same(value):
    return value


async def same_later(value):
    return value


def as_words(samples):
    return [str(sample) for sample in samples]


def fail(samples):
    raise ZeroDivisionError


def loader_of(num_samples, *stages, dataset=None, **arguments):
    dataset = dataset or Waiting(num_samples, 0.0)
    return StageLoader(dataset, stages=stages, isolation="shared", **{"collate_fn": as_it_is, **arguments})


def drained(loader):
    """How many errors it raised."""
    num_errors, iterator = 0, iter(loader)
    while True:
        try:
            next(iterator)
        except StopIteration:
            return num_errors
        except Exception:
            num_errors += 1


def counts(record):
    return [(stage.name, stage.samples, stage.errors) for stage in record.stages]


def test_an_error_is_missed_once_by_the_stages_after_it():
    """The first samples are made in one piece, the others stage by stage: both belong to the same stages."""
    with loader_of(40, Stage(refuse_sevens, "check", concurrency=1), Stage(same), num_workers=2) as loader:
        assert drained(loader) == 4
        assert counts(loader.stats()) == [("fetch", 40, 0), ("check", 40, 4), ("same", 36, 0), ("collate", 36, 0)]


def test_stages_that_ran_in_two_ways_are_counted_together():
    with loader_of(40, Stage(refuse_sevens, "check"), Stage(same, concurrency=1), num_workers=2) as loader:
        drained(loader)
        loader.num_workers = 0
        drained(loader)
        assert counts(loader.stats()) == [("fetch", 80, 0), ("check", 80, 8), ("same", 72, 0), ("collate", 72, 0)]


def test_of_a_batch_that_a_lane_failed_with_nothing_comes_further():
    loader = loader_of(0, Stage(refuse_sevens, "check"), Stage(same), dataset=Stream(40), batch_size=4, num_workers=1)
    with loader:
        assert drained(loader) == 4
        seen = loader.stats()
    assert seen.samples == 24
    assert counts(seen)[:4] == [("fetch", 40, 0), ("check", 40, 4), ("same", 24, 0), ("collate", 24, 0)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_that_collate_failed_with_came_to_it(num_workers):
    with loader_of(8, batch_size=4, num_workers=num_workers, collate_fn=fail) as loader:
        drained(loader)
        assert counts(loader.stats()) == [("fetch", 8, 0), ("collate", 8, 2)]


@pytest.mark.parametrize(
    ("arguments", "num_samples"),
    [
        ({"batch_sampler": [[0, 1, 2], [3], [4, 5]]}, 6),
        ({"batch_size": 4}, 10),
        ({"batch_size": 4, "drop_last": True}, 8),
        ({"batch_size": None}, 10),
    ],
)
def test_samples_of_worker_processes_are_those_that_were_asked_for(arguments, num_samples):
    collate = {} if arguments.get("batch_size", 1) is None else {"collate_fn": as_words}
    arguments = {**collate, **arguments, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = loader_of(10, num_workers=2, **arguments)
    with loader:
        for epoch in (1, 2):
            drained(loader)
            seen = loader.stats()
            assert (seen.samples, seen.stages[0].samples) == (epoch * num_samples, epoch * num_samples)


def test_whoever_got_a_batch_finds_its_samples_counted():
    """Of a batch whose last sample another thread is still about to count, too."""
    held, is_held = threading.Event(), threading.Event()

    class Held(Waiting):
        def __getitem__(self, index):
            if index == 6:
                is_held.set()
                assert held.wait(30)
            return index

    loader = loader_of(0, dataset=Held(40, 0.0), batch_size=2, num_workers=1)
    with loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        assert is_held.wait(30)
        seen = loader.stats()
        held.set()
        assert seen.samples == 6
        assert counts(seen) == [("fetch", 7, 0), ("collate", 6, 0)]


def test_iterators_that_nobody_uses_leave_no_account_behind():
    with loader_of(8, Stage(same_later), num_workers=1) as loader:
        for _ in range(20):
            iter(loader)
        gc.collect()
        iter(loader)
        assert len(loader.ledger._open) <= 2


def test_before_the_threads_of_an_epoch_start_the_last_one_tells_as_before():
    with StageLoader(Waiting(40, 0.002), batch_size=4, num_workers=2, collate_fn=as_it_is) as loader:
        drained(loader)
        before = loader.stats()
        iterator = iter(loader)
        after = loader.stats()
        del iterator
    assert [(s.threads, s.busy_share) for s in after.stages] == [(s.threads, s.busy_share) for s in before.stages]
    assert after.advice == before.advice


class AtOnce(ThreadPoolExecutor):
    """Runs what it is given where it is given it."""

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


def test_an_executor_inside_of_another_is_timed_apart():
    """What runs in a thread of an executor may have an executor run something in the same thread."""
    with AtOnce(1) as executor:
        inner = loader_of(1, Stage(same, "inner", executor))

        def nested(value):
            for _ in inner:
                pass
            return value

        outer = loader_of(30, Stage(nested, "outer", executor), num_workers=1)
        with inner, outer:
            drained(outer)
            seen = outer.stats().stages[1], inner.stats().stages[1]
    assert [(s.name, s.samples) for s in seen] == [("outer", 30), ("inner", 30)]
    assert seen[0].p50_seconds > seen[1].p50_seconds > 0
