"""Trace: every sample of the traced batches, once at each stage, on its thread; and what the loop did meanwhile."""

import itertools
import random
import threading
import time

import pytest
import torch

from torchstage import Stage, observe
from torchstage.listening import Listener, Listening

from .traced import (
    Numbers,
    Seen,
    as_it_is,
    batches_of,
    decode,
    double,
    fail_at_five,
    loader_of,
    main_thread,
    only_once,
)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_each_sample_has_one_slice_a_stage_with_its_index_and_its_batch(num_workers, tmp_path):
    with loader_of(num_workers=num_workers, stages=[Stage(decode), Stage(double)]) as loader:
        trace = observe.Trace(loader)
        made = batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    expected = only_once([[value // 2 for value in batch] for batch in made])
    assert [seen.samples(stage) for stage in ("fetch", "decode", "double")] == [expected] * 3
    assert [one["args"]["samples"] for one in seen.slices("collate")] == [4] * 6
    assert sorted(one["args"]["batch"] for one in seen.slices("collate")) == [*range(6)]


def test_the_stages_of_a_sample_follow_one_another(tmp_path):
    with loader_of(stages=[Stage(decode), Stage(double)]) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    for index in range(24):
        own = [one for one in seen.slices("fetch", "decode", "double") if one["args"]["index"] == index]
        own.sort(key=lambda one: one["ts"])
        assert [one["name"] for one in own] == ["fetch", "decode", "double"]
        assert all(first["ts"] + first["dur"] <= then["ts"] for first, then in itertools.pairwise(own))


def test_tracks_are_the_threads_and_have_their_names(tmp_path):
    together = threading.Barrier(2, timeout=20)

    def meet(value):
        together.wait()
        return value

    with loader_of(num_workers=2, stages=[Stage(meet)], isolation="shared", batch_size=2) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    names = seen.thread_names
    assert {names[one["pid"], one["tid"]] for one in seen.slices("meet")} == {
        "torchstage-fetch-0",
        "torchstage-fetch-1",
    }
    assert {one["tid"] for one in seen.slices("wait", "step")} == {main_thread()}
    assert names[seen.slices("wait")[0]["pid"], main_thread()] == "training loop"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loop_waits_for_each_batch_and_then_does_a_step_with_it(num_workers, tmp_path):
    with loader_of(num_workers=num_workers) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    waits, steps = seen.slices("wait"), seen.slices("step")
    assert [one["args"].get("batch") for one in waits] == [0, 1, 2, 3, 4, 5, None]
    assert [one["args"]["batch"] for one in steps] == [0, 1, 2, 3, 4, 5]
    assert waits[0]["args"]["is_first"]
    assert waits[-1]["args"]["is_end_of_epoch"]
    for wait, step, then in zip(waits, steps, waits[1:], strict=False):
        assert wait["ts"] + wait["dur"] == pytest.approx(step["ts"], abs=1e-3)
        assert step["ts"] + step["dur"] == pytest.approx(then["ts"], abs=1e-3)


def test_what_the_loop_makes_itself_lies_in_its_wait(tmp_path):
    with loader_of(num_workers=0) as loader:
        trace = observe.Trace(loader)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    waits = {one["args"].get("batch"): one for one in seen.slices("wait")}
    assert len(seen.slices("decode")) == 24
    for one in seen.slices("fetch", "decode", "collate"):
        wait = waits[one["args"]["batch"]]
        assert one["tid"] == wait["tid"]
        assert wait["ts"] <= one["ts"] <= one["ts"] + one["dur"] <= wait["ts"] + wait["dur"]


def test_batches_in_flight_and_samples_that_wait_are_counted(tmp_path):
    blocked, go_on = threading.Event(), threading.Event()

    def block(value):
        blocked.set()
        assert go_on.wait(20)
        return value

    with loader_of(num_workers=1, stages=[Stage(decode), Stage(block, concurrency=1)], isolation="shared") as loader:
        trace = observe.Trace(loader)
        iterator = iter(loader)
        reader = threading.Thread(target=next, args=(iterator,))
        reader.start()
        assert blocked.wait(20)
        go_on.set()
        reader.join()
        batches = [*iterator]
    seen = Seen(trace, tmp_path)
    flying, queued = seen.counts("batches in flight"), seen.counts("samples queued")
    assert len(batches) == 5
    assert max(one["in the making"] for one in flying) >= 2
    assert {frozenset(one) for one in flying} == {frozenset({"in the making", "ready"})}
    assert {frozenset(one) for one in queued} == {frozenset({"fetch", "block"})}
    assert max(sum(one.values()) for one in queued) > 0
    assert set(flying[-1].values()) == {0}


def test_it_ends_with_the_step_of_its_last_batch(tmp_path):
    with loader_of() as loader:
        trace = observe.Trace(loader, num_batches=3)
        made = batches_of(loader)
        assert not trace.is_on
    seen = Seen(trace, tmp_path)
    assert len(made) == 6
    assert [one["args"]["batch"] for one in seen.slices("wait")] == [0, 1, 2]
    assert [one["args"]["batch"] for one in seen.slices("step")] == [0, 1, 2]
    for number in range(3):
        assert all(seen.samples("decode")[number, 4 * number + at] == 1 for at in range(4))
    assert loader.ledger.probes.now is None


def test_it_goes_on_in_the_next_epoch(tmp_path):
    with loader_of(Numbers(8)) as loader:
        trace = observe.Trace(loader, num_batches=3)
        batches_of(loader)
        assert trace.is_on
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    seen.check()
    assert [one["args"].get("batch") for one in seen.slices("wait")] == [0, 1, None, 0]
    assert [one["args"].get("is_first", False) for one in seen.slices("wait")] == [True, False, False, True]


def test_a_loop_that_is_left_ends_its_step_where_the_next_one_begins(tmp_path):
    with loader_of() as loader:
        trace = observe.Trace(loader)
        batches_of(loader, 2)
        batches_of(loader, 2)
        trace.stop()
    seen = Seen(trace, tmp_path)
    seen.check()
    assert [one["args"]["batch"] for one in seen.slices("step")] == [0, 1, 0, 1]
    waits, steps = seen.slices("wait"), seen.slices("step")
    assert steps[1]["ts"] + steps[1]["dur"] == pytest.approx(waits[2]["ts"], abs=1e-3)


def test_it_can_begin_in_the_midst_of_an_epoch(tmp_path):
    with loader_of(num_workers=2, prefetch_factor=2, batch_size=32, dataset=Numbers(320)) as loader:
        iterator = iter(loader)
        next(iterator)
        trace = observe.Trace(loader, num_batches=20)
        made = [*iterator]
    seen = Seen(trace, tmp_path)
    seen.check()
    assert len(made) == 9
    assert [one["args"].get("batch") for one in seen.slices("wait")] == [*range(1, 10), None]
    assert set(seen.samples("decode").values()) == {1}
    complete = {number for number, _ in seen.samples("decode")}
    assert {7, 8, 9} <= complete, "what was begun after the trace is in it"


def test_an_error_of_a_stage_is_in_its_slice(tmp_path):
    with loader_of(num_workers=1, stages=[Stage(decode), Stage(fail_at_five)]) as loader:
        trace = observe.Trace(loader)
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ValueError, match="five"):
            next(iterator)
        assert [*iterator] == [[*range(i, i + 4)] for i in range(8, 24, 4)]
    seen = Seen(trace, tmp_path)
    seen.check()
    (failed,) = [one for one in seen.slices("fail_at_five") if "error" in one["args"]]
    assert failed["args"] == {"batch": 1, "index": 5, "error": "ValueError"}
    assert seen.samples("decode")[1, 5] == 1
    assert [one["args"].get("error", False) for one in seen.slices("wait")][:3] == [False, True, False]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_collate_is_in_its_slice(num_workers, tmp_path):
    def fail(samples):
        raise KeyError("no")

    with loader_of(Numbers(4), num_workers=num_workers, collate_fn=fail) as loader:
        trace = observe.Trace(loader)
        with pytest.raises(KeyError):
            batches_of(loader)
    (failed,) = Seen(trace, tmp_path).slices("collate")
    assert failed["args"]["error"] == "KeyError"


def test_two_iterators_at_once_do_not_cross_on_a_track(tmp_path):
    with loader_of() as loader:
        trace = observe.Trace(loader, num_batches=100)
        assert len([*zip(loader, loader, strict=True)]) == 6
    seen = Seen(trace, tmp_path)
    seen.check()
    assert len(seen.slices("step")) == 12
    assert len({one["tid"] for one in seen.slices("step")}) == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_and_their_order_are_the_same_while_it_is_traced(num_workers):
    def draw(value):
        return value, torch.rand(()).item(), random.random()

    def batches(is_traced):
        torch.manual_seed(3)
        random.seed(3)
        with loader_of(num_workers=num_workers, shuffle=True, stages=[Stage(draw)]) as loader:
            trace = observe.Trace(loader) if is_traced else None
            made = batches_of(loader)
            if trace is not None:
                trace.stop()
            return made

    assert batches(True) == batches(False)


def test_the_statistics_count_the_same_while_it_is_traced():
    with loader_of(batch_size=8, collate_fn=as_it_is) as loader:
        with observe.Trace(loader):
            batches_of(loader)
        batches_of(loader)
        stats = loader.stats()
    assert [(stage.name, stage.samples) for stage in stats.stages] == [("fetch", 48), ("decode", 48), ("collate", 48)]
    assert stats.batches == 6


@pytest.mark.timing
@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_telling_takes_is_no_stages_time(num_workers):
    """What it took to tell of a batch is not taken off the samples of the next one, either."""

    class Slow(Listener):
        def ran(self, one):
            if one.stage == "collate":
                time.sleep(0.02)

    def rest(value):
        time.sleep(0.002)
        return value

    with loader_of(num_workers=num_workers, stages=[Stage(rest)]) as loader:
        Listening(loader, Slow(), "it").begin()
        batches_of(loader)
        works = loader.ledger.total().works
    assert works[False, ("fetch", "rest")].seconds >= 24 * 0.002
    assert works[True, ("collate",)].seconds < 6 * 0.02


def test_a_fault_of_the_recorder_leaves_loading_alone_and_is_told(tmp_path, monkeypatch):
    with loader_of() as loader:
        trace = observe.Trace(loader)

        def fail(one):
            raise RuntimeError("broken recorder")

        monkeypatch.setattr(trace, "ran", fail)
        assert len(batches_of(loader)) == 6
    with pytest.warns(RuntimeWarning, match="broken recorder"):
        trace.save(tmp_path / "trace.json")


def test_no_more_than_a_number_of_events_is_kept_and_the_trace_says_so(tmp_path):
    with loader_of(Numbers(400), batch_size=10) as loader:
        trace = observe.Trace(loader, num_batches=40, max_events=50)
        batches_of(loader)
    seen = Seen(trace, tmp_path)
    assert len([one for one in seen.events if one["ph"] in "XC" and one["name"] != "samples queued"]) == 50
    assert seen.whole["torchstage"]["events_lost"] == trace.num_lost > 0
    (said,) = [one["name"] for one in seen.events if one["ph"] == "i"]
    assert said == f"{trace.num_lost} events beyond max_events were not kept"


def test_what_it_is_given_wrong_is_said():
    with pytest.raises(TypeError, match=r"observe\.Trace needs a StageLoader, got a list"):
        observe.Trace([1, 2])
    with loader_of() as loader:
        for wrong in ({"num_batches": 0}, {"max_events": -1}, {"num_batches": 1.5}):
            with pytest.raises(ValueError, match="must be a positive number"):
                observe.Trace(loader, **wrong)
        assert loader.ledger.probes.now is None
