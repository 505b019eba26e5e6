"""Reports of processes: what slowed a training down. Counted, not timed: speeds are measured by the benchmarks."""

import os
import sys
import threading
import time
import warnings
from typing import Any

import pytest
import torch

from torchstage import Stage, StageLoader

from .data import (
    LENGTH,
    Made,
    Pickled,
    PickledAndHeld,
    decoded,
    num_threads_of_torch,
    parsed,
    waits_for_the_network,
)

pytestmark = pytest.mark.timing  # it is about how long things take

METHODS = ["thread", "multiprocessing", "auto"]
NUM_TRIES = 4  # a choice is measured: a busy machine may spoil one


def told_of_fetch(loader: StageLoader) -> tuple[str, str]:
    """Where the loader says that dataset[index] runs, and why."""
    explanation: Any = loader.explain()  # type: ignore[attr-defined] - new with worker_method
    (stage,) = (stage for stage in explanation.stages if stage.name == "fetch")
    return stage.choice, stage.reason


def samples_of(loader: StageLoader) -> list[Any]:
    return [sample for batch in loader for sample in batch]


# UR-019: a helper thread that held the GIL froze the training; somebody else's remedy was the switch interval ------


@pytest.mark.parametrize("method", METHODS)
def test_ur_019_the_switch_interval_stays(method):
    before = sys.getswitchinterval()
    with StageLoader(Made(parsed_number), batch_size=4, num_workers=2, worker_method=method) as loader:
        for _ in range(2):
            for _ in loader:
                assert sys.getswitchinterval() == before
    assert sys.getswitchinterval() == before


def parsed_number(index: int) -> int:
    return parsed((b"%d" % index, 0))[0]


# UR-020: pickle.load in __getitem__: more threads made it slower ---------------------------------------------------


def test_ur_020_what_holds_the_gil_goes_to_processes_and_the_reason_is_told(tmp_path):
    dataset = Pickled(tmp_path)
    for _ in range(NUM_TRIES):
        with StageLoader(
            dataset, batch_size=4, num_workers=2, worker_method="auto", sampler=[*range(LENGTH)] * 10
        ) as loader:
            assert [value for batch in loader for value in batch.tolist()] == [*range(LENGTH)] * 10
            choice, reason = told_of_fetch(loader)
        if choice == "process":
            assert "GIL" in reason
            return
    pytest.fail(f"it never chose processes: {choice}, {reason}")


def test_ur_020_where_processes_cannot_be_used_it_is_told_once_with_the_way_out(tmp_path):
    dataset = PickledAndHeld(tmp_path)
    told: list[str] = []
    for _ in range(NUM_TRIES):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with StageLoader(
                dataset, batch_size=4, num_workers=2, worker_method="auto", sampler=[*range(LENGTH)] * 5000
            ) as loader:  # so long an epoch that processes would pay, of which only the beginning is taken
                seen: list[int] = []
                deadline = time.monotonic() + 20
                for batch in loader:
                    seen += batch.tolist()
                    if len(seen) % LENGTH == 0 and (caught or time.monotonic() > deadline):
                        break
                assert seen == [*range(LENGTH)] * (len(seen) // LENGTH)
        told = [str(one.message) for one in caught if "dataset.lock" in str(one.message)]
        assert len(told) <= 1
        if told:
            return
    pytest.fail("it never told")


def test_ur_020_what_holds_the_gil_has_one_thread(tmp_path):
    """Where processes cannot be used, more threads would only get into each other's way."""
    dataset = PickledAndHeld(tmp_path)
    threads: list[int] = []

    def with_thread(samples: list[int]) -> list[int]:
        threads.append(threading.get_ident())
        return samples

    for _ in range(NUM_TRIES):
        arguments: Any = {"worker_method": "auto", "collate_fn": with_thread, "sampler": [*range(LENGTH)] * 20}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with StageLoader(dataset, batch_size=4, num_workers=4, **arguments) as loader:
                threads.clear()
                assert samples_of(loader) == [*range(LENGTH)] * 20
        if len(set(threads[len(threads) // 2 :])) == 1:
            return
    pytest.fail(f"{len(set(threads))} threads made the second half of the batches")


# UR-022: a source that waits, a parse in Python, a decode without the GIL ------------------------------------------


def mixed_plan(**arguments: Any) -> StageLoader:
    stages = [Stage(parsed, executor="process"), Stage(decoded)]
    return StageLoader(
        Made(waits_for_the_network), batch_size=4, num_workers=2, stages=stages, collate_fn=list, **arguments
    )


def test_ur_022_waits_in_threads_a_parse_in_processes_and_a_decode_in_threads():
    right = [parsed((b"%d" % index, 0))[0] for index in range(LENGTH)]
    with mixed_plan() as loader:
        for _ in range(2):
            samples = samples_of(loader)
            assert [number for number, *_ in samples] == right
            fetched, parsed_in, decoded_in = ({sample[at] for sample in samples} for at in (1, 2, 3))
            assert fetched == decoded_in == {os.getpid()}
    assert os.getpid() not in parsed_in
    assert 1 <= len(parsed_in) <= 2


def test_ur_022_a_resumed_mixed_plan_goes_on_with_the_sample_that_is_next():
    with mixed_plan(seed=3) as loader:
        whole = [number for number, *_ in samples_of(loader)]
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        state = loader.state_dict()
    with mixed_plan(seed=3) as loader:
        loader.load_state_dict(state)
        assert [number for number, *_ in samples_of(loader)] == whole[20:]


# UR-023: a helper that set the number of torch's threads made the whole process single-threaded --------------------


@pytest.mark.parametrize("method", METHODS)
def test_ur_023_the_number_of_torchs_threads_stays_here_and_is_one_in_a_process(method):
    before, environment = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(2)
    seen: list[int] = []
    try:
        with StageLoader(Made(num_threads_of_torch), batch_size=4, num_workers=2, worker_method=method) as loader:
            for _ in range(2):
                for batch in loader:
                    seen += batch.tolist()
                    assert torch.get_num_threads() == 2
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert torch.get_num_threads() == seen.pop() == 2
    finally:
        torch.set_num_threads(before)
    if method == "multiprocessing":
        assert set(seen) == {1}  # as in torch's worker processes
    assert dict(os.environ) == environment
