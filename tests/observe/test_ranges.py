"""Ranges: stages and waits in torch.profiler, and what is refused."""

import asyncio
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

from torchstage import Stage, observe
from torchstage.observe import marking

from .traced import Numbers, Seen, Stream, batches_of, decode, double, fail_at_five, fetch_more, loader_of

KNOWS_ALL_THREADS = "profile_all_threads" in (_ExperimentalConfig.__init__.__doc__ or "")
all_threads = pytest.mark.skipif(not KNOWS_ALL_THREADS, reason="this torch profiles the thread that began it alone")


def profiled_in(folder, body, **options):
    """The complete events that torch.profiler exports of it."""
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        body()
    prof.export_chrome_trace(str(folder / "profile.json"))
    events = json.loads((folder / "profile.json").read_text())["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def of_all_threads():
    return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}


class Kept:
    """Stands for record_function: keeps what was begun and ended, by thread."""

    def __init__(self):
        self.open = {}
        self.done = Counter()

    def __call__(self, name):
        return _Range(self, name)


class _Range:
    def __init__(self, kept, name):
        self.kept, self.name = kept, name

    def __enter__(self):
        self.kept.open.setdefault(threading.get_ident(), []).append(self.name)

    def __exit__(self, *_):
        assert self.kept.open[threading.get_ident()].pop() == self.name
        self.kept.done[self.name] += 1


@pytest.fixture
def kept(monkeypatch):
    kept = Kept()
    monkeypatch.setattr(marking, "record_function", kept)
    yield kept
    assert not any(kept.open.values()), "each range was ended in the thread that began it"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_each_call_of_a_stage_is_a_range(num_workers, kept):
    with loader_of(num_workers=num_workers, stages=[Stage(decode), Stage(double)]) as loader, observe.ranges(loader):
        batches_of(loader)
    stages = {"torchstage.fetch": 24, "torchstage.decode": 24, "torchstage.double": 24, "torchstage.collate": 6}
    assert kept.done == {**stages, "torchstage.wait": 7}


def test_a_coroutine_is_in_a_range_while_it_runs_and_in_none_while_it_waits(kept):
    async def wait_twice(value):
        assert kept.open[threading.get_ident()] == ["torchstage.wait_twice"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return value

    with loader_of(stages=[Stage(wait_twice)], isolation="shared") as loader, observe.ranges(loader):
        assert len(batches_of(loader)) == 6
    assert kept.done["torchstage.wait_twice"] == 3 * 24


def test_an_error_ends_its_range(kept):
    async def fail(value):
        return fail_at_five(value)

    with ThreadPoolExecutor(1) as executor:
        for stage in (Stage(fail_at_five), Stage(fail), Stage(fail_at_five, executor=executor)):
            loader = loader_of(stages=[stage], isolation="shared")
            with loader, observe.ranges(loader), pytest.raises(ValueError, match="five"):
                batches_of(loader)
    assert kept.done["torchstage.fail_at_five"] > 0


def test_stages_in_threads_of_an_executor_are_in_ranges_there(kept):
    seen = set()

    def look(value):
        seen.add((threading.current_thread().name.partition("_")[0], *kept.open[threading.get_ident()]))
        return value

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as executor:
        stages = [Stage(decode), Stage(look, executor=executor)]
        with loader_of(stages=stages, isolation="shared") as loader, observe.ranges(loader):
            batches_of(loader)
    assert seen == {("mine", "torchstage.look")}


@pytest.mark.parametrize("isolation", ["shared", "serial"])
def test_wherever_stages_run_each_sample_has_one_range_at_each(isolation, kept):
    stages = [Stage(decode), Stage(fetch_more), Stage(double)]
    with loader_of(stages=stages, isolation=isolation) as loader, observe.ranges(loader):
        batches_of(loader)
    assert kept.done["torchstage.fetch"] == kept.done["torchstage.decode"] == kept.done["torchstage.double"] == 24


def test_lanes_have_a_range_for_each_read_and_each_sample_of_a_stage(kept):
    with loader_of(Stream(), stages=[Stage(decode)], num_workers=2) as loader, observe.ranges(loader):
        batches_of(loader)
    assert kept.done["torchstage.decode"] == 24
    assert kept.done["torchstage.fetch"] >= 6, "a lane's last look, which finds the end, may be one, too"
    assert kept.done["torchstage.collate"] == 6


def test_after_the_block_there_are_no_more(kept):
    with loader_of() as loader:
        with observe.ranges(loader):
            batches_of(loader)
        before = Counter(kept.done)
        batches_of(loader)
        assert kept.done == before
        assert loader.ledger.probes.now is None


def test_a_trace_and_ranges_at_once(kept, tmp_path):
    with loader_of() as loader, observe.ranges(loader):
        trace = observe.Trace(loader)
        batches_of(loader)
    assert len(Seen(trace, tmp_path).slices("decode")) == kept.done["torchstage.decode"] == 24


@all_threads
def test_the_profiler_shows_the_ranges_of_all_threads_if_it_is_told_to(tmp_path):
    with loader_of() as loader, observe.ranges(loader):
        events = profiled_in(tmp_path, lambda: batches_of(loader), **of_all_threads())
    names = Counter(event["name"] for event in events)
    assert names["torchstage.decode"] == names["torchstage.fetch"] == 24
    assert names["torchstage.wait"] == 7
    threads = {event["tid"] for event in events if event["name"] == "torchstage.decode"}
    assert threading.get_native_id() not in threads


def test_the_profiler_shows_those_of_its_own_thread_anyway(tmp_path):
    with loader_of(num_workers=0) as loader, observe.ranges(loader):
        events = profiled_in(tmp_path, lambda: batches_of(loader))
    names = Counter(event["name"] for event in events)
    assert names["torchstage.decode"] == 24
    assert names["torchstage.wait"] == 7


def test_a_trace_that_is_merged_has_the_profilers_clock(tmp_path):
    loader = loader_of(Numbers(40), batch_size=4)
    with loader, profile(activities=[ProfilerActivity.CPU]) as prof:
        trace = observe.Trace(loader)
        for number, _ in enumerate(loader):
            with record_function(f"training {number}"):
                torch.ones(300, 300) @ torch.ones(300, 300)
    prof.export_chrome_trace(str(tmp_path / "profile.json"))
    alone = json.loads((tmp_path / "profile.json").read_text())
    seen = Seen(trace, tmp_path, "merged.json", merge_with=tmp_path / "profile.json")
    steps = {one["args"]["batch"]: one for one in seen.slices("step") if "batch" in one["args"]}
    slack_us = 1000  # the profiler's clock is right to that
    for number in range(10):
        (inside,) = [one for one in seen.slices(f"training {number}") if one["cat"] == "user_annotation"]
        step = steps[number]
        assert step["ts"] - slack_us <= inside["ts"]
        assert inside["ts"] + inside["dur"] <= step["ts"] + step["dur"] + slack_us
    assert [one for one in seen.events if one in alone["traceEvents"][:50]] == alone["traceEvents"][:50]
    theirs = {one["pid"] for one in alone["traceEvents"]}
    ours = {one["pid"] for one in seen.slices("step", "wait", "fetch", "decode", "collate")}
    assert not theirs & ours, "tracks do not mix"
    assert {key: seen.whole[key] for key in alone if key != "traceEvents"} == {
        key: alone[key] for key in alone if key != "traceEvents"
    }


def test_what_it_is_given_wrong_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with loader_of() as loader:
        with pytest.raises(RuntimeError, match="nvtx=True needs CUDA"):
            observe.Ranges(loader, nvtx=True)
        with pytest.raises(ValueError, match="both False"):
            observe.Ranges(loader, profiler=False)
        with pytest.raises(TypeError, match=r"observe\.Ranges needs a StageLoader, got the class StageLoader"):
            observe.Ranges(type(loader))
        assert loader.ledger.probes.now is None


def test_nvtx_gets_the_same_ranges(monkeypatch):
    told = Counter()

    class Nvtx:
        def range_push(self, name):
            told[name] += 1

        def range_pop(self):
            told["pop"] += 1

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "nvtx", Nvtx())
    with loader_of() as loader, observe.ranges(loader, profiler=False, nvtx=True):
        batches_of(loader)
    pops = told.pop("pop")
    assert told == {"torchstage.fetch": 24, "torchstage.decode": 24, "torchstage.collate": 6, "torchstage.wait": 7}
    assert pops == sum(told.values())
