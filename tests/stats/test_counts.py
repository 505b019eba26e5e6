"""Counts: what a loader tells of its stages and its user, wherever the stages run, in totals and in windows."""

import dataclasses
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import IterableDataset

from torchstage import Stage, StageLoader
from torchstage.engine.stats import EVERY

from .working import Waiting, as_it_is

pytestmark = pytest.mark.timing  # it is about how long things take


class Numbers:
    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, index):
        return index


class Stream(IterableDataset):
    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        step = 1 if info is None else info.num_workers
        yield from range(0 if info is None else info.id, self.num_samples, step)


def doubled(value):
    time.sleep(0.001)
    return 2 * value


async def doubled_later(value):
    return 2 * value


def refuse_sevens(value):
    if value % 10 == 7:
        raise KeyError(value)
    return value


def stage_of(record, name):
    return next(stage for stage in record.stages if stage.name == name)


def seen_of(loader, num_epochs=1):
    with loader:
        for _ in range(num_epochs):
            for _ in loader:
                pass
        return loader.stats()


def loader_of(num_samples=50, *stages, batch_size=8, num_workers=2, **arguments):
    return StageLoader(
        Numbers(num_samples),
        batch_size=batch_size,
        num_workers=num_workers,
        stages=stages,
        collate_fn=as_it_is,
        isolation="shared",
        **arguments,
    )


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_each_stage_has_its_samples(num_workers):
    seen = seen_of(loader_of(50, Stage(doubled), num_workers=num_workers))
    assert [(s.name, s.samples, s.errors) for s in seen.stages] == [
        ("fetch", 50, 0),
        ("doubled", 50, 0),
        ("collate", 50, 0),
    ]
    assert (seen.batches, seen.samples) == (7, 50)
    executor = "thread" if num_workers else "inline"
    assert {(s.executor, s.threads) for s in seen.stages} == {(executor, num_workers or 1)}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_long_sample_is_timed_by_itself(num_workers):
    seen = stage_of(seen_of(loader_of(50, Stage(doubled), num_workers=num_workers)), "doubled")
    assert 0.001 <= seen.mean_seconds < 0.1
    assert 0.95 * 0.001 <= seen.p50_seconds <= seen.p95_seconds <= seen.p99_seconds
    assert seen.busy_seconds == pytest.approx(50 * seen.mean_seconds)
    assert 0 < seen.busy_share <= 1
    assert seen.cpu_seconds < seen.busy_seconds


def test_of_short_samples_some_are_timed():
    seen = stage_of(seen_of(loader_of(20_000, batch_size=64)), "fetch")
    assert seen.samples == 20_000
    assert 0 < seen.mean_seconds < 100e-6
    assert seen.p50_seconds is not None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_where_the_stages_run_is_told(num_workers):
    with ThreadPoolExecutor(3) as executor:
        stages = Stage(doubled_later, "async"), Stage(doubled, "own", concurrency=2), Stage(doubled, "his", executor)
        seen = seen_of(loader_of(40, *stages, num_workers=num_workers))
    places = [(s.name, s.executor, s.threads) for s in seen.stages]
    if num_workers:
        assert places == [
            ("fetch", "thread", 2),
            ("async", "event loop", 64),
            ("own", "thread", 2),
            ("his", "ThreadPoolExecutor", 3),
            ("collate", "thread", 2),
        ]
    else:
        assert places == [(name, "inline", 1) for name in ("fetch", "async", "own", "his", "collate")]
    assert [s.samples for s in seen.stages] == [40] * 5
    if num_workers:
        assert stage_of(seen, "async").cpu_seconds is None
        assert stage_of(seen, "async").busy_seconds > 0
    for name in ("own", "his"):
        assert stage_of(seen, name).mean_seconds >= 0.001
        assert stage_of(seen, name).p50_seconds >= 0.95 * 0.001


@pytest.mark.parametrize("isolation", ["serial", "per_thread"])
def test_stages_that_run_as_one_are_told_apart(isolation):
    seen = seen_of(loader_of(60, Stage(doubled), Stage(refuse_sevens, "last")).like_this(isolation=isolation))
    assert [s.samples for s in seen.stages] == [60] * 4
    assert stage_of(seen, "doubled").mean_seconds >= 0.0009
    assert stage_of(seen, "last").mean_seconds < 0.0009


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_are_counted_where_they_were_raised(num_workers):
    loader = loader_of(40, Stage(refuse_sevens, "check"), Stage(doubled), batch_size=1, num_workers=num_workers)
    num_errors = 0
    with loader:
        iterator = iter(loader)
        while True:
            try:
                next(iterator)
            except KeyError:
                num_errors += 1
            except StopIteration:
                break
        seen = loader.stats()
    assert num_errors == 4
    assert [(s.name, s.errors) for s in seen.stages] == [("fetch", 0), ("check", 4), ("doubled", 0), ("collate", 0)]
    assert (stage_of(seen, "check").samples, stage_of(seen, "doubled").samples) == (40, 36)
    assert (seen.batches, seen.samples) == (36, 36)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_errors_of_collate_are_counted(num_workers):
    loader = loader_of(16, num_workers=num_workers)
    loader.collate_fn = lambda samples: refuse_sevens(samples[-1])
    with loader:
        iterator = iter(loader)
        with pytest.raises(KeyError):
            next(iterator)
        next(iterator)
        seen = loader.stats()
    assert stage_of(seen, "collate").errors == 1
    assert seen.batches == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lanes_and_their_stages_are_told(num_workers):
    loader = StageLoader(Stream(45), batch_size=4, num_workers=num_workers, stages=[Stage(doubled)])
    seen = seen_of(loader)
    assert seen.samples == 45
    fetch = seen.stages[0]
    assert (fetch.name, fetch.samples, fetch.errors) == ("fetch", 45, 0)
    if num_workers:
        assert {(s.executor, s.threads) for s in seen.stages} == {("lane", 2)}
        assert stage_of(seen, "doubled").samples == 45
        assert stage_of(seen, "doubled").mean_seconds >= 0.0009
        assert stage_of(seen, "collate").samples == 45
    else:
        assert fetch.mean_seconds >= 0.001  # all of it: what torch does inside is one


def test_worker_processes_tell_what_comes_out_of_them():
    loader = StageLoader(Numbers(30), batch_size=4, num_workers=2, multiprocessing_context="fork")
    seen = seen_of(loader)
    assert (seen.batches, seen.samples) == (8, 30)
    told = [(stage.name, stage.executor, stage.threads, stage.samples) for stage in seen.stages]
    assert told == [("fetch", "process", 2, 30), ("collate", "process", 2, 30), ("receive", "thread", 1, 30)]
    assert all(stage.mean_seconds > 0 for stage in seen.stages)
    assert seen.wait_p50_seconds is not None
    assert seen.batches_in_flight == 0


def test_a_window_is_what_came_since():
    loader = loader_of(400, Stage(doubled))
    with loader:
        iterator = iter(loader)
        for _ in range(10):
            next(iterator)
        first = loader.stats()
        for _ in range(25):
            next(iterator)
        window, total = loader.stats(first), loader.stats()
    assert (first.batches, window.batches, total.batches) == (10, 25, 35)
    assert (first.samples, window.samples) == (80, 200)
    assert window.elapsed_seconds == pytest.approx(total.elapsed_seconds - first.elapsed_seconds)
    assert window.wait_seconds == pytest.approx(total.wait_seconds - first.wait_seconds)
    assert (
        stage_of(window, "doubled").samples <= stage_of(total, "doubled").samples - stage_of(first, "doubled").samples
    )
    assert window.first_batch_seconds == first.first_batch_seconds


def test_windows_go_on_after_the_next_epoch_and_after_close():
    loader = loader_of(40, Stage(doubled))
    with loader:
        for _ in loader:
            pass
        first = loader.stats()
        for _ in loader:
            pass
    second = loader.stats(first)
    assert (second.batches, second.samples) == (5, 40)
    assert [s.samples for s in second.stages] == [40, 40, 40]
    empty = loader.stats(loader.stats())
    assert (empty.batches, empty.samples, empty.wait_p50_seconds, empty.bottleneck) == (0, 0, None, None)
    assert [(s.samples, s.mean_seconds) for s in empty.stages] == [(0, None)] * 3


def test_a_record_of_another_loader_is_refused():
    loader, other = loader_of(8), loader_of(8)
    for record in (other.stats(), pickle.loads(pickle.dumps(loader.stats()))):
        with pytest.raises(ValueError, match="a record that this loader's own"):
            loader.stats(record)


def test_a_loader_that_was_not_used_yet_has_nothing_to_tell():
    seen = loader_of(8).stats()
    assert (seen.stages, seen.batches, seen.samples_per_second, seen.first_batch_seconds) == ((), 0, 0.0, None)
    assert seen.advice.startswith("Too little was seen")
    assert str(seen)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_several_iterators_count_together(num_workers):
    loader = loader_of(40, num_workers=num_workers)
    with loader:
        first, second = iter(loader), iter(loader)
        for _ in zip(first, second, strict=True):
            pass
        assert next(first, None) is next(second, None) is None
        seen = loader.stats()
    assert (seen.batches, seen.samples) == (10, 80)
    assert stage_of(seen, "fetch").samples == 80


@pytest.mark.parametrize("num_workers", [1, 2])
def test_persistent_workers_go_on_counting(num_workers):
    loader = loader_of(40, num_workers=num_workers, persistent_workers=True)
    seen = seen_of(loader, num_epochs=3)
    assert (seen.batches, seen.samples) == (15, 120)
    assert stage_of(seen, "fetch").samples == 120


def test_first_batches_and_set_up_are_apart_from_waits():
    loader = StageLoader(Waiting(64, 0.01), batch_size=8, num_workers=2, collate_fn=as_it_is)
    seen = seen_of(loader)
    assert seen.first_batch_seconds >= 0.03
    assert 0 < seen.setup_seconds < seen.elapsed_seconds
    assert seen.wait_seconds + seen.first_batch_seconds <= seen.elapsed_seconds


def test_an_epoch_that_was_broken_off_counts_what_came():
    loader = loader_of(80)
    with loader:
        for number, _ in enumerate(loader):
            if number == 2:
                break
        assert loader.stats().batches == 3
        for _ in loader:
            pass
        assert loader.stats().batches == 13


def test_what_is_in_flight_and_waits_for_a_stage_is_told():
    gate = threading.Event()

    def held(value):
        assert gate.wait(30)
        return value

    loader = loader_of(64, Stage(held, concurrency=1), batch_size=8, num_workers=1)
    with loader:
        iterator = iter(loader)
        found = []
        asking = threading.Thread(target=lambda: found.append(next(iterator)))
        asking.start()
        deadline = time.monotonic() + 20
        while not (seen := loader.stats()).batches_in_flight or not stage_of(seen, "held").queued:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        gate.set()
        asking.join()
        list(iterator)
        after = loader.stats()
    assert (after.batches_in_flight, stage_of(after, "held").queued) == (0, 0)


def test_bytes_in_flight_are_told_where_they_are_bounded():
    def seen_with(**arguments):
        with StageLoader(torch.zeros(64, 1000), batch_size=8, num_workers=1, **arguments) as loader:
            iterator = iter(loader)
            next(iterator)
            next(iterator)
            return loader.stats()

    assert seen_with().bytes_in_flight is None
    assert seen_with(prefetch_bytes=10**7).bytes_in_flight >= 8 * 1000 * 4


def test_batches_that_the_dataset_gives_whole_count_their_samples():
    class Bulk(Numbers):
        def __getitems__(self, indices):
            return [index * 2 for index in indices]

    for num_workers in (0, 2):
        seen = seen_of(StageLoader(Bulk(50), batch_size=8, num_workers=num_workers, collate_fn=as_it_is))
        assert [s.samples for s in seen.stages] == [50, 50]
        assert seen.samples == 50


def test_without_batching_each_is_a_sample():
    for num_workers in (0, 2):
        seen = seen_of(StageLoader(Numbers(3 * EVERY), batch_size=None, num_workers=num_workers))
        assert (seen.batches, seen.samples) == (3 * EVERY, 3 * EVERY)
        assert seen.stages[0].samples == 3 * EVERY


def test_a_record_is_plain_and_prints_as_a_table():
    seen = seen_of(loader_of(50, Stage(doubled)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.batches = 3
    assert "_kept" not in dataclasses.asdict(seen)
    assert pickle.loads(pickle.dumps(seen)) == seen
    lines = str(seen).splitlines()
    assert lines[0].split()[:3] == ["stage", "runs", "in"]
    assert [line.split()[0] for line in lines if line.startswith(">")] == (
        [">"] if seen.bottleneck != "training" else []
    )
    assert lines[-1] == seen.advice


def test_a_copy_of_a_loader_counts_for_itself():
    loader = loader_of(16)
    other = pickle.loads(pickle.dumps(loader.like_this(collate_fn=as_it_is)))
    with loader, other:
        for _ in loader:
            pass
        assert (loader.stats().batches, other.stats().batches) == (2, 0)


def test_an_iterator_of_a_subclass_is_left_alone():
    class Own(StageLoader):
        def _get_iterator(self):
            return iter([1, 2])

    loader = Own(Numbers(4))
    assert list(loader) == [1, 2]
    assert loader.stats().batches == 0
