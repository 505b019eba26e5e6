"""Scenarios: a loader that one thing holds back says which one, and what to do about it."""

import sys
import time

import pytest

from torchstage import Stage, StageLoader
from torchstage.engine.parking import usable_cores

from .working import Waiting, as_it_is, decode, tokenize, trained, wait_a_little

pytestmark = pytest.mark.timing  # it is about how long things take


def loader_of(num_samples, seconds, *stages, num_workers=2, **arguments):
    dataset = Waiting(num_samples, seconds)
    return StageLoader(
        dataset,
        batch_size=8,
        num_workers=num_workers,
        stages=stages,
        collate_fn=as_it_is,
        isolation="shared",
        **arguments,
    )


def test_a_slow_fetch_asks_for_more_threads():
    seen = trained(loader_of(200, 0.01, Stage(wait_a_little)), 0.0)
    assert seen.bottleneck == "fetch"
    assert "2 threads: raise num_workers" in seen.advice
    assert seen.wait_share > 0.9


def test_a_slow_decode_on_one_thread_asks_for_more_threads():
    if usable_cores() < 2:
        pytest.skip("one core has no room for more")
    seen = trained(loader_of(200, 0.0, Stage(decode), num_workers=1), 0.0)
    assert seen.bottleneck == "decode"
    assert "on 1 thread: raise num_workers" in seen.advice


def test_a_stage_with_threads_of_its_own_asks_for_more_of_them():
    seen = trained(loader_of(200, 0.0, Stage(wait_a_little, concurrency=1), num_workers=2), 0.0)
    assert seen.bottleneck == "wait_a_little"
    assert "on 1 thread: raise its Stage's concurrency" in seen.advice


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL to hold")
@pytest.mark.parametrize("num_workers", [1, 3])
def test_python_code_asks_for_processes(num_workers):
    seen = trained(loader_of(240, 0.0005, Stage(tokenize), num_workers=num_workers), 0.0)
    assert seen.bottleneck == "tokenize"
    assert seen.advice.startswith("tokenize holds the GIL")
    assert "process" in seen.advice


def test_slow_training_asks_for_fewer_threads():
    seen = trained(loader_of(160, 0.002, num_workers=8), 0.04)
    assert seen.bottleneck == "training"
    assert seen.advice in [f"training is the limit: {few} would do." for few in ("1 thread", "2 threads")]
    assert seen.wait_share < 0.05


def test_what_is_balanced_asks_for_nothing():
    """Two threads need 80 ms for a batch of eight; a step takes a little longer."""
    seen = trained(loader_of(200, 0.02), 0.1)
    assert seen.bottleneck is None
    assert seen.advice.startswith("balanced")


def test_loading_in_the_training_thread_asks_for_threads():
    seen = trained(loader_of(80, 0.004, num_workers=0), 0.0)
    assert seen.bottleneck == "fetch"
    assert "set num_workers=2" in seen.advice


def test_a_dataset_that_one_thread_uses_at_a_time_asks_for_no_more_threads():
    loader = StageLoader(Waiting(120, 0.004), batch_size=8, num_workers=3, isolation="serial", collate_fn=as_it_is)
    seen = trained(loader, 0.0)
    assert seen.bottleneck == "fetch"
    assert seen.stages[0].threads == 1
    assert "one thread at a time" in seen.advice


def test_too_little_to_be_in_flight_is_seen():
    """One batch at a time: while it is trained on, nothing is made."""
    seen = trained(loader_of(160, 0.002, num_workers=8, prefetch_bytes=1), 0.03)
    assert seen.bottleneck is None or seen.wait_share < 0.05
    assert seen.sampler_held_seconds > 0


def slow_collate(samples):
    time.sleep(0.05)
    return samples


def test_a_slow_collate_asks_for_more_threads():
    dataset = Waiting(160, 0.001)
    loader = StageLoader(dataset, batch_size=8, num_workers=2, collate_fn=slow_collate, isolation="shared")
    seen = trained(loader, 0.0)
    assert seen.bottleneck == "collate"
    assert "2 threads: raise num_workers" in seen.advice


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL to hold")
def test_of_a_source_that_waits_a_parse_in_python_and_a_decode_the_parse_is_the_limit():
    """In threads alone, where all wait for the GIL that the parse holds."""
    stages = Stage(tokenize, "parse"), Stage(decode)
    seen = trained(loader_of(160, 0.02, *stages, num_workers=4, worker_method="thread"), 0.0)
    assert seen.bottleneck == "parse"
