"""Executors of the user's: any that keeps to concurrent.futures works; the death of one is a clear error, and soon."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.parity.compare import assert_same, story
from tests.stages.placing import FUNCTIONS, PATIENCE_SECONDS, Composed, Numbers, echo, processes
from torchstage import Stage, StageLoader
from torchstage.engine.executors import ExecutorDiedError

LENGTH = 20
EXPECTED = [Composed(Numbers(LENGTH), FUNCTIONS)[index] for index in range(LENGTH)]


def samples_of(stages: list[Stage], **arguments: Any) -> list[Any]:
    arguments = {"batch_size": 4, "num_workers": 2, "collate_fn": list, **arguments}
    with StageLoader(Numbers(LENGTH), stages=stages, **arguments) as loader:
        return [sample for batch in loader for sample in batch]


class AtOnce(Executor):
    """Runs what it is given inside ``submit``."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Refusing(Executor):
    """Takes nothing."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise ValueError("not today")


@pytest.mark.parametrize("concurrency", [None, 1, 3])
def test_one_that_runs_everything_inside_submit(concurrency):
    executor = AtOnce()
    stages = [Stage(function, executor=executor, concurrency=concurrency) for function in FUNCTIONS]
    assert_same(samples_of(stages), EXPECTED)


def test_one_that_takes_nothing_is_an_error_for_each_batch_and_the_epoch_ends():
    with StageLoader(Numbers(LENGTH), 4, num_workers=2, stages=[Stage(FUNCTIONS[0], executor=Refusing())]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [ValueError] * 5


def test_no_more_samples_are_given_to_it_than_the_stage_says():
    most = [0]
    inside: set[int] = set()
    lock = threading.Lock()

    def count(value: int) -> int:
        with lock:
            inside.add(value)
            most[0] = max(most[0], len(inside))
        time.sleep(0.001)
        with lock:
            inside.discard(value)
        return value

    with ThreadPoolExecutor(8) as executor:
        assert samples_of([Stage(count, executor=executor, concurrency=3)], num_workers=4) == list(range(0, 200, 10))
    assert most[0] <= 3


def test_an_executor_may_serve_two_loaders_and_its_owner():
    with ThreadPoolExecutor(2) as executor:
        stages = [Stage(function, executor=executor) for function in FUNCTIONS]
        arguments = {"batch_size": 4, "num_workers": 2, "collate_fn": list, "stages": stages}
        with StageLoader(Numbers(LENGTH), **arguments) as one, StageLoader(Numbers(LENGTH), **arguments) as other:
            for batch, same in zip(one, other, strict=True):
                assert_same(batch, same)
                assert executor.submit(abs, -1).result(PATIENCE_SECONDS) == 1


def test_closing_the_loader_leaves_the_executor_open():
    with ThreadPoolExecutor(2) as executor:
        loader = StageLoader(Numbers(LENGTH), 4, num_workers=2, stages=[Stage(FUNCTIONS[0], executor=executor)])
        next(iter(loader))
        loader.close()
        assert executor.submit(abs, -1).result(PATIENCE_SECONDS) == 1


# Death ------------------------------------------------------------------------------------------------------


def dies(value: int) -> int:
    if value == 90:
        os._exit(1)
    return value


def died(events: list[Any]) -> list[BaseException]:
    """The errors among what an epoch was like, each of which tells what to do."""
    errors = [event for event in events if isinstance(event, BaseException)]
    for error in errors:
        assert type(error) is ExecutorDiedError
        assert str(error).startswith("Stage 'dies': its executor, a ProcessPoolExecutor, takes no more work")
        assert "a new Stage" in str(error)
    return errors


@pytest.mark.timing
@pytest.mark.parametrize("before", [[], [Stage(abs)], [Stage(abs, concurrency=1)]])
def test_a_worker_process_that_dies_is_a_clear_error_at_once(before):
    executor = processes(2)
    try:
        with StageLoader(
            Numbers(LENGTH), 4, num_workers=2, prefetch_factor=1, stages=[*before, Stage(dies, executor=executor)]
        ) as loader:
            begin = time.monotonic()
            events = story(loader)
            assert time.monotonic() - begin < PATIENCE_SECONDS
        assert len(events) == 5
        errors = died(events)
        assert errors
        assert any("dataset index 9" in note for error in errors for note in error.__notes__)
    finally:
        executor.shutdown()


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_an_executor_that_was_shut_down_is_a_clear_error(num_workers, when):
    executor = ThreadPoolExecutor(2)
    loader = StageLoader(
        Numbers(400), 4, num_workers=num_workers, stages=[Stage(abs, "step", executor=executor)], prefetch_factor=1
    )
    with loader:
        if when == "before":
            executor.shutdown()
            events = story(loader)
        else:
            iterator = iter(loader)
            assert next(iterator).tolist() == [0, 10, 20, 30]
            executor.shutdown(cancel_futures=True)
            events = story(iterator)
    errors = [event for event in events if isinstance(event, BaseException)]
    assert len(events) == 100 - (when == "during")
    assert errors
    assert len(errors) == 100 or when == "during"
    for error in errors:
        assert type(error) is ExecutorDiedError
        assert "was shut down while the loader used it" in str(error)


def test_futures_that_somebody_else_cancels_are_a_clear_error():
    class Cancelled(Executor):
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.cancel()
            return future

    with StageLoader(Numbers(8), 4, num_workers=2, stages=[Stage(abs, executor=Cancelled())]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [ExecutorDiedError] * 2


def test_what_was_given_and_is_not_wanted_any_more_is_taken_back():
    begun, may_go_on, num_run = threading.Event(), threading.Event(), []

    def wait(value: int) -> int:
        num_run.append(value)
        begun.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        return value

    with ThreadPoolExecutor(1) as executor:
        loader = StageLoader(
            Numbers(100), 4, num_workers=1, stages=[Stage(wait, executor=executor)], isolation="shared"
        )
        iterator = iter(loader)
        consumer = threading.Thread(target=ask, args=(iterator,))
        consumer.start()
        assert begun.wait(PATIENCE_SECONDS)
        threading.Timer(0.05, may_go_on.set).start()
        loader.close()
        consumer.join()
        assert executor.submit(abs, -1).result(PATIENCE_SECONDS) == 1
    assert len(num_run) == 1


def ask(iterator: Any) -> None:
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)


# Dask -------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["threads", "processes"])
def dask_client(request: pytest.FixtureRequest) -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=request.param, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.submit(echo, -1).result()  # its process imports torch
        yield client


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_dask_runs_stages(dask_client):
    executor = dask_client.get_executor()
    stages = [Stage(function, executor=executor) for function in FUNCTIONS]
    assert_same(samples_of(stages), EXPECTED)
    stages[1] = Stage(FUNCTIONS[1])
    assert_same(samples_of(stages), EXPECTED)

    def fails(value: int) -> int:
        return 1 // (value - 90)

    with StageLoader(Numbers(LENGTH), 4, num_workers=2, stages=[Stage(fails, executor=executor)]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [torch.Tensor] * 2 + [ZeroDivisionError] + [torch.Tensor] * 2
    assert events[2].__notes__[-1] == "torchstage: raised in stage 'fails', dataset index 9, batch 2"
