"""UR-066: one bad file killed a worker by a signal in a job of 70,000 images, and nothing said which. Here it is a bad
sample as any other: on_error says what comes in its place."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bad.broken import (
    LENGTH,
    Killing,
    KillingAtOnce,
    KillingHereAndThere,
    killing_all,
    killing_collate,
    killing_twenty,
)
from torchstage import BadSample, Stage, StageLoader, TooManyBadSamples
from torchstage.executors.failures import NoProcessLeft, ProcessDied

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="it bounds the address space of its processes")
WAYS = [pytest.param("abort"), pytest.param("memory in C", marks=needs_linux)]
MOST_ASKED = 1000  # batches that are asked for of a loader that has none to give


def loader_of(dataset: Any, **arguments: Any) -> StageLoader[Any]:
    own: dict[str, Any] = {"num_workers": 2, "worker_method": "multiprocessing"}
    if "batch_sampler" not in arguments:
        own["batch_size"] = 4
    return StageLoader(dataset, **{**own, **arguments})


def listed(loader: StageLoader[Any]) -> list[list[int]]:
    with loader:
        return [batch.tolist() for batch in loader]


def outcomes(loader: StageLoader[Any]) -> Iterator[Any]:
    """Each batch as a list; where there is none, its error."""
    batches = iter(loader)
    for _ in range(MOST_ASKED):
        try:
            yield next(batches).tolist()
        except StopIteration:
            return
        except (RuntimeError, MemoryError) as error:
            yield error
    pytest.fail("it does not end")


def in_fours(indices: list[int]) -> list[list[int]]:
    return [indices[begin : begin + 4] for begin in range(0, len(indices), 4)]


@pytest.mark.parametrize("way", WAYS)
def test_with_skip_it_is_reported_and_all_others_come_in_full_batches(way: str) -> None:
    loader = loader_of(Killing({13: way, 41: "abort"}), num_workers=4, prefetch_factor=8, on_error="skip")
    with pytest.warns(UserWarning, match=r"2 bad samples .*index 13 \(photo-13.jpg\).*\(signal .*index 41 .*SIGABRT"):
        batches = listed(loader)
    assert batches == in_fours([index for index in range(LENGTH) if index not in (13, 41)])
    stats = loader.stats()
    assert [(one.index, one.file, one.stage, one.kind) for one in stats.bad] == [
        (13, "photo-13.jpg", "fetch", "ProcessDied"),
        (41, "photo-41.jpg", "fetch", "ProcessDied"),
    ]
    assert next(stage for stage in stats.stages if stage.name == "fetch").errors == 2


@pytest.mark.parametrize("way", WAYS)
def test_with_raise_its_error_comes_in_its_place_and_all_others_come(way: str) -> None:
    with loader_of(Killing({13: way}), num_workers=4, prefetch_factor=8) as loader:
        found = list(outcomes(loader))
    (error,) = (one for one in found if isinstance(one, ProcessDied))
    assert any("dataset index 13 (photo-13.jpg)" in note for note in error.__notes__)
    assert found == [error if 12 in batch else batch for batch in in_fours(list(range(LENGTH)))]


@needs_linux
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_python_has_no_memory_for_is_an_error_that_names_the_sample(on_error: Any) -> None:
    """The process lives on; whether the sample or the machine is to blame, nobody knows: it is never skipped."""
    loader = loader_of(Killing({13: "memory in Python"}, 16), on_error=on_error)
    with loader:
        found = list(outcomes(loader))
    (error,) = (one for one in found if isinstance(one, MemoryError))
    assert any("dataset index 13" in note for note in error.__notes__)
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], error]


def test_a_batch_may_lose_all_its_samples() -> None:
    loader = loader_of(Killing(dict.fromkeys(range(4, 8), "abort"), 16), num_workers=4, on_error="skip")
    with pytest.warns(UserWarning, match="4 bad samples"):
        assert listed(loader) == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_batches_of_a_sampler_of_the_users_stay_short() -> None:
    batches = [[0, 13, 1], [13], [2, 3]]
    loader = loader_of(Killing({13: "abort"}, 16), batch_sampler=batches, on_error="skip")
    with pytest.warns(UserWarning, match="2 bad samples"):
        assert listed(loader) == [[0, 1], [2, 3]]


def test_another_sample_comes_in_its_place() -> None:
    """Not one that is known to kill, too."""
    loader = loader_of(Killing({5: "abort", 6: "abort"}, 12), on_error="replace")
    with pytest.warns(UserWarning, match="index 5 .*index 7 in its place.*index 6 .*index 7 in its place"):
        assert listed(loader) == [[0, 1, 2, 3], [4, 7, 7, 7], [8, 9, 10, 11]]


def minus_its_index(bad: BadSample) -> int:
    assert isinstance(bad.error, ProcessDied)
    return -bad.index


def test_a_function_says_what_comes_in_its_place() -> None:
    loader = loader_of(Killing({5: "abort"}, 8), on_error=minus_its_index)
    with pytest.warns(UserWarning, match="1 bad samples"):
        assert listed(loader) == [[0, 1, 2, 3], [4, -5, 6, 7]]


def test_there_may_be_so_many_of_them() -> None:
    loader = loader_of(Killing({5: "abort", 10: "abort"}, 16), on_error="skip", max_bad_samples=1)
    with loader, pytest.raises(TooManyBadSamples, match=r"2 bad samples .*index 5 .*index 10 "):
        for _ in loader:
            pass


def test_a_resumed_run_is_without_it_too() -> None:
    def new_loader() -> StageLoader[Any]:
        return loader_of(Killing({5: "abort", 13: "abort"}, 24), on_error="skip")

    with new_loader() as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 6, 7, 8]]
        state = loader.state_dict()
    loader = new_loader()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="2 bad samples .*index 5 .*index 13 "):
        assert listed(loader) == [[9, 10, 11, 12], [14, 15, 16, 17], [18, 19, 20, 21], [22, 23]]


@pytest.mark.parametrize("persistent", [False, True])
def test_one_file_ends_no_training_of_many_epochs(persistent: bool) -> None:
    """Two processes die of it in each epoch: more, in all, than may die in one."""
    dataset, right = Killing({2: "abort"}, 8), [[0, 1, 3, 4], [5, 6, 7]]
    with loader_of(dataset, on_error="skip", persistent_workers=persistent) as loader:
        for _ in range(7):
            with pytest.warns(UserWarning, match="1 bad samples"):
                assert [batch.tolist() for batch in loader] == right


def test_a_stage_that_runs_in_processes_may_kill_them() -> None:
    stages = [Stage(killing_twenty, executor="process")]
    loader = loader_of(range(24), stages=stages, worker_method="thread", on_error="skip")
    with pytest.warns(UserWarning, match="1 bad samples .*index 20, stage 'killing_twenty': ProcessDied"):
        assert listed(loader) == in_fours([index for index in range(24) if index != 20])


@pytest.mark.parametrize("stages", [[], [Stage(killing_all, executor="process")]], ids=["dataset", "stage"])
def test_where_every_sample_kills_that_is_said_and_not_skipped(stages: list[Stage]) -> None:
    dataset: Any = range(400) if stages else Killing(dict.fromkeys(range(400), "abort"), 400)
    method = "thread" if stages else "multiprocessing"
    loader = loader_of(dataset, stages=stages, worker_method=method, on_error="skip")
    with loader:
        found = list(outcomes(loader))
    errors = [one for one in found if isinstance(one, NoProcessLeft)]
    assert len(errors) > 80  # of 100 batches
    assert "processes died in" in str(errors[-1])
    assert not any(isinstance(one, list) for one in found)
    assert loader.stats().bad_samples < 20


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_collate_function_that_kills_is_no_sample_s_fault(on_error: Any) -> None:
    batches = [[0, 1], [4, 5], [6, 7]]
    loader = loader_of(range(8), batch_sampler=batches, collate_fn=killing_collate, on_error=on_error)
    with loader:
        found = iter(loader)
        assert next(found) == [0, 1]
        with pytest.raises(ProcessDied) as caught:
            next(found)
        assert list(found) == [[6, 7]]
    assert not any("dataset index" in note for note in caught.value.__notes__)


def test_two_deaths_at_two_samples_accuse_neither(tmp_path: Path) -> None:
    """As if the system were short of memory: what is at fault is not known, so no sample is left out in silence."""
    with loader_of(KillingHereAndThere(tmp_path), on_error="skip") as loader:
        found = list(outcomes(loader))
        assert loader.stats().bad_samples == 0
    (error,) = (one for one in found if isinstance(one, ProcessDied))
    assert found == [[0, 1, 2, 3], error, [8, 9, 10, 11]]


def test_of_samples_that_come_at_once_none_is_accused() -> None:
    with loader_of(KillingAtOnce({5: "abort"}, 12), on_error="skip") as loader:
        found = list(outcomes(loader))
    (error,) = (one for one in found if isinstance(one, ProcessDied))
    assert found == [[0, 1, 2, 3], error, [8, 9, 10, 11]]
    assert not any("dataset index" in note for note in error.__notes__)
