"""Errors, deaths and time-outs in processes: the same types and places as in threads, and no hang."""

import multiprocessing
import re
import threading
import time
from typing import Any

import pytest
import torch

from torchstage import Stage, StageLoader

from .datasets import (
    Deadly,
    Failing,
    FailingOddly,
    FailingWithItsOwn,
    Locked,
    Numbers,
    OddError,
    doubled,
    on_a_device_that_is_not_there,
)

PROCESSES: dict[str, Any] = {"worker_method": "multiprocessing", "num_workers": 2}


def story(loader: Any) -> list[Any]:
    """Each batch as a list, and each error in its place."""
    events: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            events.append(next(iterator).tolist())
        except StopIteration:
            return events
        except Exception as error:
            events.append(error)


def notes_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


KEY, OS = KeyError("no"), OSError(2, "gone", "a/file")


@pytest.mark.parametrize(
    ("dataset", "error"),
    [(Failing((9,), KEY), KEY), (Failing((9,), OS), OS), (FailingOddly(), OddError("it", 5))],
    ids=["key", "os", "odd"],
)
def test_an_error_comes_in_its_place_with_its_type_and_its_index(dataset: Any, error: Exception) -> None:
    with StageLoader(dataset, 4, **PROCESSES) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [list, list, type(error), list, list]
    assert [event for event in events if isinstance(event, list)] == [[*range(b, b + 4)] for b in (0, 4, 12, 16)]
    found: Any = events[2]
    assert str(found) == str(error)
    if isinstance(error, OddError):
        assert (found.name, found.number) == ("it", 5)
    assert "stage 'fetch', dataset index 9, batch 2" in notes_of(found)
    assert "__getitem__" in str(found.__cause__) + notes_of(found), "where it was raised, as text"


def odd(value: int) -> int:
    if value == 9:
        raise OddError("it", 5)
    return value


def test_an_error_that_pickle_would_lose_keeps_its_type_out_of_a_single_stage_too() -> None:
    with StageLoader(range(20), 4, num_workers=2, stages=[Stage(odd, executor="process")]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [list, list, OddError, list, list]
    found: Any = events[2]
    assert (str(found), found.name, found.number) == ("it is odd", "it", 5)
    assert "stage 'odd', dataset index 9, batch 2" in notes_of(found)
    assert "raise OddError" in str(found.__cause__)


def test_an_error_of_a_class_of_its_own_comes_in_words_with_its_index() -> None:
    with StageLoader(FailingWithItsOwn(), 4, **PROCESSES) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [list, list, RuntimeError, list, list]
    assert "OwnError: of its own" in str(events[2])
    assert "stage 'fetch', dataset index 9, batch 2" in notes_of(events[2])


def as_they_are(samples: list[Any]) -> Any:
    return samples


def locked(value: Any) -> Any:
    return [threading.Lock()]


def test_a_batch_that_cannot_be_sent_says_what_in_it() -> None:
    with StageLoader(Locked(4), 2, collate_fn=as_they_are, **PROCESSES) as loader:
        events = story(loader)
    assert "What a process made cannot be sent" in str(events[0])
    assert "batch[0]['lock'] is an object for threads" in str(events[0])
    assert "batch 1" in notes_of(events[1])
    with StageLoader(Numbers(4), 2, num_workers=2, stages=[Stage(locked, executor="process")]) as loader:
        events = story(loader)
    assert "value[0] is an object for threads" in str(events[0])
    assert "stage 'locked', dataset index 0, batch 0" in notes_of(events[0])


def test_a_stop_iteration_does_not_end_the_epoch() -> None:
    with StageLoader(Failing((9,), StopIteration()), 4, **PROCESSES) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [list, list, RuntimeError, list, list]
    assert "dataset index 9" in str(events[2])


def test_an_error_of_a_stage_says_which() -> None:
    stages = [Stage(doubled), Stage(one_over, "divide")]
    with StageLoader(Numbers(8), 4, stages=stages, **PROCESSES) as loader:
        events = story(loader)
    assert isinstance(events[0], ZeroDivisionError)
    assert "stage 'divide', dataset index 0, batch 0" in notes_of(events[0])
    stages = [Stage(doubled), Stage(one_over, "divide", executor="process")]
    with StageLoader(Numbers(8), 4, num_workers=2, stages=stages) as loader:
        events = story(loader)
    assert "stage 'divide', dataset index 0, batch 0" in notes_of(events[0])


def one_over(value: float) -> float:
    return 1 / value


def bad_collate(samples: list[Any]) -> Any:
    raise ValueError("they do not fit")


def test_an_error_of_collate_says_so() -> None:
    with StageLoader(Numbers(8), 4, collate_fn=bad_collate, **PROCESSES) as loader:
        events = story(loader)
    assert [str(event) for event in events] == ["they do not fit"] * 2
    assert "stage 'collate', batch 1" in notes_of(events[1])


def failing_init(number: int) -> None:
    raise LookupError(f"no set-up for {number}")


def test_an_error_of_worker_init_fn_is_the_first_batch_s() -> None:
    with StageLoader(Numbers(8), 4, worker_init_fn=failing_init, **PROCESSES) as loader:
        events = story(loader)
    assert all(isinstance(event, LookupError) for event in events)
    assert "worker_init_fn" in notes_of(events[0])


def test_a_sample_that_ends_its_process_once_is_made_by_another(tmp_path: Any) -> None:
    with StageLoader(Deadly(tmp_path, {9: 1}), 4, **PROCESSES) as loader:
        assert story(loader) == [[*range(begin, begin + 4)] for begin in range(0, 20, 4)]


def test_a_sample_that_always_ends_its_process_is_named(tmp_path: Any) -> None:
    with StageLoader(Deadly(tmp_path, {9: 99}), 4, **PROCESSES) as loader:
        events = story(loader)
    assert [type(event) for event in events if isinstance(event, list)] == [list] * 4
    (error,) = (event for event in events if not isinstance(event, list))
    assert isinstance(error, RuntimeError)
    assert "SIGABRT" in str(error)
    assert "dataset index 9" in notes_of(error)


def test_processes_that_die_again_and_again_are_not_started_for_ever(tmp_path: Any) -> None:
    with StageLoader(Deadly(tmp_path, dict.fromkeys(range(60), 99), 60), 2, **PROCESSES) as loader:
        events = story(loader)
    assert len(events) == 30
    assert all(isinstance(event, RuntimeError) for event in events)


@pytest.mark.parametrize("keeps", [False, True])
def test_the_next_epoch_has_other_processes_after_too_many_died(tmp_path: Any, keeps: bool) -> None:
    dataset = Deadly(tmp_path, dict.fromkeys(range(20), 99))
    with StageLoader(dataset, 2, persistent_workers=keeps, **PROCESSES) as loader:
        assert all(isinstance(event, RuntimeError) for event in story(loader))
        dataset.bad = {}
        assert story(loader) == [[n, n + 1] for n in range(0, 20, 2)]


def sleepy(value: Any) -> Any:
    time.sleep(60 if value == 5 else 0)
    return value


@pytest.mark.timing
def test_a_late_batch_is_a_time_out_and_close_does_not_wait_for_it() -> None:
    begin = time.monotonic()
    with StageLoader(Numbers(8), 2, stages=[Stage(sleepy)], timeout=8, **PROCESSES) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(RuntimeError, match="timed out after 8 seconds") as caught:
            next(iterator)
        assert re.search(r"stage 'fetch', dataset index 5, batch 2 is late, in process \d+\.", str(caught.value))
    assert time.monotonic() - begin < 40


def test_what_cannot_be_pickled_is_named_before_anything_is_made() -> None:
    dataset = Numbers(8)
    dataset.transform = lambda value: value  # type: ignore[attr-defined]
    with StageLoader(dataset, 2, **PROCESSES) as loader, pytest.raises(TypeError) as caught:
        next(iter(loader))
    assert "dataset.transform" in str(caught.value)
    assert "worker_method='thread'" in str(caught.value)


def test_a_forked_process_has_what_cannot_be_pickled() -> None:
    dataset = Numbers(8)
    dataset.transform = lambda value: value  # type: ignore[attr-defined]
    context = multiprocessing.get_context("fork")
    with StageLoader(dataset, 2, num_workers=2, multiprocessing_context=context) as loader:
        assert story(loader) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_a_stage_that_wants_cuda_says_what_torch_says() -> None:
    with StageLoader(Numbers(4), 2, stages=[Stage(on_a_device_that_is_not_there)], **PROCESSES) as loader:
        events = story(loader)
    assert all("CUDA" in str(event) or "NVIDIA" in str(event) for event in events)
