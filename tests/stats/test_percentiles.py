"""Percentiles: those of the stage's own clock, wherever it runs, in totals and in windows."""

import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from torchstage import Stage, StageLoader

from .working import Waiting, as_it_is, tokenize

pytestmark = pytest.mark.timing  # it is about how long things take

NUM_SAMPLES = 400


def timed(value):
    """Waits for 0.5 ms to 20 ms, mostly for 1 ms. What is handed on is how long it took by the stage's own clock."""
    begin = time.perf_counter()
    time.sleep(min(0.02, 0.0005 + 0.0005 * random.Random(value).lognormvariate(0.0, 1.0)))
    return time.perf_counter() - begin


async def timed_later(value):
    return timed(value)  # it keeps the loop: one after another


def loader_of(stage, **arguments):
    return StageLoader(
        Waiting(NUM_SAMPLES, 0.0),
        stages=[stage],
        isolation="shared",
        **{"batch_size": 10, "num_workers": 3, "collate_fn": as_it_is, **arguments},
    )


def between(seconds, share):
    """What may be told as this percentile. On a machine that others use, a thread may lose its core between its own
    look at the clock and the loader's: so one sample in a hundred may be out of its place."""
    low, high = (np.percentile(seconds, 100 * min(1, share + more), method="inverted_cdf") for more in (-0.01, 0.01))
    return 0.95 * low, 1.05 * high + 100e-6


def check(stage, seconds):
    for name, share in (("p50_seconds", 0.50), ("p95_seconds", 0.95), ("p99_seconds", 0.99)):
        low, high = between(seconds, share)
        assert low <= getattr(stage, name) <= high, name
    assert stage.mean_seconds == pytest.approx(np.mean(seconds), rel=0.15)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_in_threads_and_inline(num_workers):
    with loader_of(Stage(timed), num_workers=num_workers) as loader:
        own = [seconds for batch in loader for seconds in batch]
        check(loader.stats().stages[1], own)


def test_in_threads_of_its_own_and_in_an_event_loop():
    for stage in (Stage(timed, concurrency=2), Stage(timed_later)):
        with loader_of(stage) as loader:
            own = [seconds for batch in loader for seconds in batch]
            check(loader.stats().stages[1], own)


def test_in_an_executor_of_threads():
    with ThreadPoolExecutor(3) as executor, loader_of(Stage(timed, executor=executor)) as loader:
        own = [seconds for batch in loader for seconds in batch]
        check(loader.stats().stages[1], own)


def test_inside_of_processes():
    """The time is that of the process itself, without the way there and back; so is the CPU time."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        with loader_of(Stage(timed, executor=executor)) as loader:
            own = [seconds for batch in loader for seconds in batch]
            stage = loader.stats().stages[1]
        check(stage, own)
        assert (stage.executor, stage.threads, stage.samples) == ("ProcessPoolExecutor", 2, NUM_SAMPLES)
        with loader_of(Stage(tokenize, executor=executor)) as loader:
            for _ in loader:
                pass
            busy = loader.stats().stages[1]
    assert stage.cpu_seconds < 0.5 * stage.busy_seconds
    assert 0 < busy.cpu_seconds <= 1.05 * busy.busy_seconds


def test_of_a_window():
    with loader_of(Stage(timed)) as loader:
        for _ in loader:
            pass
        since = loader.stats()
        own = [seconds for batch in loader for seconds in batch]
        window = loader.stats(since).stages[1]
    check(window, own)
    assert window.samples == NUM_SAMPLES


def test_of_the_user_s_waits():
    """A batch takes as long as its sample, and the next is begun when it is handed out."""
    with loader_of(Stage(timed), batch_size=1, num_workers=1, prefetch_factor=1) as loader:
        iterator, own = iter(loader), []
        next(iterator)
        while True:
            begin = time.perf_counter()
            if next(iterator, None) is None:
                break
            own.append(time.perf_counter() - begin)
        seen = loader.stats()
    assert len(own) == NUM_SAMPLES - 1
    for name, share in (("wait_p50_seconds", 0.50), ("wait_p95_seconds", 0.95), ("wait_p99_seconds", 0.99)):
        low, high = between(own, share)
        assert low <= getattr(seen, name) <= high, name
    assert seen.wait_seconds == pytest.approx(sum(own), rel=0.05)
