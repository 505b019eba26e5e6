"""Reports of processes: a sample that kills its process, a handle that does not travel, a tensor of the device."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchstage import StageLoader

from .data import LENGTH, Deadly, OnDevice, Rows, RowsOfAnInit, RowsOpenedAgain, open_rows_again, write_rows

KINDS = ["abort", "segfault", "out of memory", "exit"]
NUM_ROWS = 1000  # numbers in each row
MOST_ASKED = 1000  # batches that are asked for of a loader that has none to give


def processes_of(dataset, **arguments) -> StageLoader:
    own = {"batch_size": 4, "num_workers": 2, "worker_method": "multiprocessing"}
    return StageLoader(dataset, **{**own, **arguments})


def outcomes(loader: StageLoader) -> Iterator[Any]:
    """Each batch as a list; where there is none, its error."""
    iterator = iter(loader)
    for _ in range(MOST_ASKED):
        try:
            yield next(iterator).tolist()
        except StopIteration:
            return
        except RuntimeError as error:
            yield error
    pytest.fail("it does not end")


def told_by(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


# UR-066: one bad file killed a worker by a signal in a job of 70,000 images; nothing said which -------------------


@pytest.mark.parametrize("kind", KINDS)
def test_ur_066_the_sample_that_kills_is_named_and_all_others_come(kind, tmp_path):
    dataset = Deadly({13: kind}, tmp_path)
    with processes_of(dataset) as loader:
        found = list(outcomes(loader))
    assert len(found) == LENGTH // 4
    (error,) = [one for one in found if isinstance(one, RuntimeError)]
    assert found.index(error) == 3  # in its place
    assert "dataset index 13" in told_by(error)
    right = [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(LENGTH // 4) if k != 3]
    assert [one for one in found if one is not error] == right
    assert len(set(dataset.pids_of(13))) == 2  # tried once more, in a process of its own


def test_ur_066_two_that_kill_in_two_ways_are_told_apart(tmp_path):
    dataset = Deadly({6: "abort", 41: "out of memory"}, tmp_path)
    with processes_of(dataset, num_workers=4) as loader:
        first, second = (one for one in outcomes(loader) if isinstance(one, RuntimeError))
    assert "dataset index 6" in told_by(first)
    assert "dataset index 41" in told_by(second)
    assert "SIGABRT" in told_by(first)
    assert "SIGKILL" in told_by(second)
    assert "memory" in told_by(second)


def test_ur_066_samples_in_flight_beside_it_come_once(tmp_path):
    """Eight batches are in flight when it dies; theirs are the user's, each once and in order."""
    dataset = Deadly({17: "abort"}, tmp_path)
    with processes_of(dataset, num_workers=4, prefetch_factor=8) as loader:
        samples = [sample for one in outcomes(loader) if isinstance(one, list) for sample in one]
    assert samples == [index for index in range(LENGTH) if not 16 <= index < 20]


def test_ur_066_the_error_comes_in_the_next_epoch_as_well(tmp_path):
    dataset = Deadly({13: "abort"}, tmp_path, length=16)
    with processes_of(dataset, persistent_workers=True) as loader:
        for _ in range(3):
            assert [isinstance(one, RuntimeError) for one in outcomes(loader)] == [False, False, False, True]


def test_ur_066_restarts_are_bounded(tmp_path):
    """Each sample kills: the loader says so, and does not start processes for ever."""
    dataset = Deadly(dict.fromkeys(range(2000), "abort"), tmp_path, length=2000)
    with processes_of(dataset) as loader:
        found = list(outcomes(loader))
    assert found
    assert all(isinstance(one, RuntimeError) for one in found)
    started = {pid for index in range(2000) for pid in dataset.pids_of(index)}
    assert 2 <= len(started) < 100


# UR-068: a file of HDF5 that was opened before the workers started -------------------------------------------------


@pytest.fixture
def rows_path(tmp_path):
    write_rows(tmp_path / "rows.h5")
    return tmp_path / "rows.h5"


def close_of(dataset) -> None:
    if dataset.file is not None:
        dataset.file.close()


def test_ur_068_a_handle_that_does_not_travel_is_named_before_the_first_batch(rows_path):
    dataset = Rows(rows_path)
    with pytest.raises(TypeError, match=r"dataset\.file") as caught:
        next(iter(processes_of(dataset)))
    assert "worker_method='thread'" in str(caught.value)  # a way out
    assert dataset[3] == 3.0 * NUM_ROWS  # the user's own is as it was
    close_of(dataset)


@pytest.mark.parametrize(
    ("kind", "init"), [(RowsOpenedAgain, None), (RowsOfAnInit, open_rows_again)], ids=["at first use", "by init"]
)
def test_ur_068_every_row_is_right_where_each_process_opens_the_file(kind, init, rows_path):
    dataset = kind(rows_path)
    with processes_of(dataset, shuffle=True, num_workers=4, worker_init_fn=init) as loader:
        for _ in range(3):
            sums = sorted(value for batch in loader for value in batch.tolist())
            assert sums == [float(NUM_ROWS * index) for index in range(LENGTH)]
    close_of(dataset)


# UR-029: tensors that are moved to the device inside of the dataset ------------------------------------------------


@pytest.mark.cuda
def test_ur_029_threads_give_what_the_device_holds():
    for number, batch in enumerate(StageLoader(OnDevice(), batch_size=4, num_workers=2)):
        assert batch.device.type == "cuda"
        assert batch.sum(1).tolist() == [2000.0 * (4 * number + slot) for slot in range(4)]


@pytest.mark.cuda
@pytest.mark.parametrize("collate_fn", [None, list])
def test_ur_029_processes_refuse_it_and_say_what_to_do(collate_fn):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = processes_of(OnDevice(), collate_fn=collate_fn)
        with pytest.raises((RuntimeError, TypeError), match=r"(?i)cuda") as caught:
            next(iter(loader))
    assert "device=" in told_by(caught.value)
    assert "re-initialize" not in told_by(caught.value)
    loader.close()
    assert torch.cuda.is_available()
