"""Trace of stages that run elsewhere: an event loop, executors, lanes, a device, worker processes."""

import asyncio
import os
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from fake_accelerator import FakeAccelerator
from torch.utils.data import Dataset

from torchstage import Stage, observe
from torchstage.transfer import Transfer

from .traced import (
    Numbers,
    Seen,
    Stream,
    as_it_is,
    batches_of,
    decode,
    double,
    fail_at_five,
    fetch_more,
    loader_of,
    only_once,
    pid_of,
)


def test_coroutines_that_overlap_are_on_tracks_of_their_own(tmp_path):
    all_there = {"number": 0}

    async def wait_for_others(value):
        all_there["number"] += 1
        while all_there["number"] < 4:  # the batch's others are in it, too
            await asyncio.sleep(0)
        return value

    stage = Stage(wait_for_others, concurrency=4)
    with loader_of(Numbers(16), stages=[stage, Stage(double)], isolation="shared") as loader:
        trace = observe.Trace(loader)
        made = batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    expected = only_once([[value // 2 for value in batch] for batch in made])
    assert seen.samples("wait_for_others") == seen.samples("double") == expected
    first = [one for one in seen.slices("wait_for_others") if one["args"]["batch"] == 0]
    assert len({one["tid"] for one in first}) == 4
    names = {seen.thread_names[one["pid"], one["tid"]] for one in first}
    assert names == {f"torchstage-event-loop ({number})" for number in (1, 2, 3, 4)}


def test_a_coroutine_that_fails_is_in_its_slice(tmp_path):
    async def fail(value):
        await asyncio.sleep(0)
        return fail_at_five(value)

    with loader_of(Numbers(8), stages=[Stage(fetch_more), Stage(fail)], isolation="shared") as loader:
        trace = observe.Trace(loader)
        with pytest.raises(ValueError, match="five"):
            batches_of(loader)
    seen = Seen(trace, tmp_path)
    failed = [one["args"] for one in seen.slices("fail") if "error" in one["args"]]
    assert failed == [{"batch": 1, "index": 5, "error": "ValueError"}]


def test_threads_of_an_executor_have_their_own_names(tmp_path):
    with ThreadPoolExecutor(2, thread_name_prefix="mine") as executor:
        stages = [Stage(decode), Stage(double, executor=executor), Stage(pid_of)]
        with loader_of(stages=stages, isolation="shared") as loader:
            trace = observe.Trace(loader)
            batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert seen.samples("double") == seen.samples("pid_of") == only_once([[*range(i, i + 4)] for i in range(0, 24, 4)])
    names = {seen.thread_names[one["pid"], one["tid"]] for one in seen.slices("double")}
    assert names <= {"mine_0", "mine_1"}
    assert names


def test_processes_of_an_executor_are_processes_of_the_trace(tmp_path):
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        stages = [Stage(pid_of, executor=executor), Stage(decode)]
        with loader_of(Numbers(8), stages=stages, isolation="shared") as loader:
            trace = observe.Trace(loader)
            made = batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    (pid,) = {pid for batch in made for pid in batch}
    assert pid != os.getpid()
    assert {one["pid"] for one in seen.slices("pid_of")} == {pid}
    assert seen.samples("pid_of") == only_once([[0, 1, 2, 3], [4, 5, 6, 7]])
    named = {one["pid"]: one["args"]["name"] for one in seen.events if one["name"] == "process_name"}
    assert named == {os.getpid(): "torchstage", pid: "torchstage: process"}
    loop = [one for one in seen.slices("wait", "step") if "batch" in one["args"]]
    first, last = min(one["ts"] for one in loop), max(one["ts"] + one["dur"] for one in loop)
    assert all(first <= one["ts"] <= one["ts"] + one["dur"] <= last for one in seen.slices("pid_of")), "one clock"


def test_an_error_in_an_executor_is_in_its_slice(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        stages = [Stage(fail_at_five, executor=executor)]
        with loader_of(Numbers(8), stages=stages, isolation="shared") as loader:
            trace = observe.Trace(loader)
            with pytest.raises(ValueError, match="five"):
                batches_of(loader)
    failed = [one["args"] for one in Seen(trace, tmp_path).slices("fail_at_five") if "error" in one["args"]]
    assert failed == [{"batch": 1, "index": 5, "error": "ValueError"}]


def test_one_thread_at_a_time_is_traced_stage_by_stage(tmp_path):
    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        stages = [Stage(decode), Stage(fetch_more), Stage(double, executor=executor), Stage(pid_of)]
        with loader_of(stages=stages, isolation="serial") as loader:
            trace = observe.Trace(loader)
            batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    expected = only_once([[*range(i, i + 4)] for i in range(0, 24, 4)])
    for stage in ("fetch", "decode", "fetch_more", "double", "pid_of"):
        assert seen.samples(stage) == expected, stage


def test_num_workers_0_runs_the_stages_of_executors_and_loops_itself(tmp_path):
    with ThreadPoolExecutor(1) as executor:
        stages = [Stage(fetch_more), Stage(double, executor=executor), Stage(pid_of)]
        with loader_of(num_workers=0, stages=stages) as loader:
            trace = observe.Trace(loader)
            batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    expected = only_once([[*range(i, i + 4)] for i in range(0, 24, 4)])
    assert [seen.samples(stage) for stage in ("fetch", "fetch_more", "double", "pid_of")] == [expected] * 4


def test_lanes_have_a_slice_for_each_read_and_each_sample_of_a_stage(tmp_path):
    with loader_of(Stream(), stages=[Stage(decode), Stage(double)]) as loader:
        trace = observe.Trace(loader)
        made = batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert sorted(value for batch in made for value in batch) == [*range(0, 48, 2)]
    assert [one["args"]["samples"] for one in seen.slices("fetch")] == [4] * 6
    assert {one["args"]["lane"] for one in seen.slices("fetch")} == {0, 1}
    for stage in ("decode", "double"):
        samples = Counter((one["args"]["batch"], one["args"]["sample"]) for one in seen.slices(stage))
        assert len(samples) == 24
        assert set(samples.values()) == {1}
    assert len(seen.slices("collate")) == 6


def test_batches_that_a_dataset_makes_as_a_whole_name_their_indices(tmp_path):
    class Bulk(Numbers):
        def __getitems__(self, indices):
            return indices

    with loader_of(Bulk(8), stages=[Stage(decode)]) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    fetched = sorted(one["args"]["indices"] for one in seen.slices("fetch"))
    assert fetched == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert seen.samples("decode") == only_once(fetched)


def test_a_batch_made_in_a_process_has_a_slice_a_stage_there(tmp_path):
    with loader_of(Numbers(8), stages=[Stage(decode)], num_workers=1, multiprocessing_context="fork") as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    for stage in ("fetch", "decode"):
        slices = seen.slices(stage)
        assert sorted(one["args"]["indices"] for one in slices) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert os.getpid() not in {one["pid"] for one in slices}


def test_of_torchs_own_workers_there_are_the_waits(tmp_path):
    with loader_of(Stream(8), stages=[], num_workers=1, multiprocessing_context="fork") as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert len(seen.slices("wait")) == 3
    assert {one["name"] for one in seen.slices()} == {"wait", "step"}


def test_an_iterable_dataset_without_workers_has_a_slice_a_batch(tmp_path):
    with loader_of(Stream(8), stages=[], num_workers=0) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert [one["args"]["samples"] for one in seen.slices("fetch")] == [4, 4]


def test_copies_to_a_device_are_traced(tmp_path):
    class Tensors(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.full((2,), index)

    with loader_of(Tensors(), stages=[], collate_fn=None, num_workers=2, device="cpu") as loader:
        loader._transfer = Transfer("cpu", lambda device: FakeAccelerator())
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert sorted(one["args"]["batch"] for one in seen.slices("transfer")) == [0, 1, 2]


def test_indices_of_any_kind_are_written(tmp_path):
    class Any(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return str(index)

    class Odd:
        def __index__(self):
            raise RuntimeError("no number")

    keys = [["a" * 500], [(1, 2)], [torch.tensor(3)], [Odd()]]
    with loader_of(Any(), batch_size=1, batch_sampler=keys, stages=[], collate_fn=as_it_is) as loader:
        trace = observe.Trace(loader)
        assert len(batches_of(loader)) == 4
    assert trace.fault is None
    args = sorted((one["args"] for one in Seen(trace, tmp_path).slices("fetch")), key=lambda known: known["batch"])
    assert [one.get("index", one.get("indices")) for one in args] == ["a" * 200, [1, 2], 3, "<Odd>"]


def test_threads_that_wait_keep_nothing_of_what_was_traced():
    import gc
    import weakref

    class Kept:
        pass

    with loader_of(Numbers(8), stages=[Stage(lambda value: Kept())], persistent_workers=True) as loader:
        trace = observe.Trace(loader, num_batches=1)
        known = [weakref.ref(sample) for batch in loader for sample in batch]
        gc.collect()
        assert not [reference for reference in known if reference() is not None]
        trace.stop()
    assert threading.active_count() >= 1
