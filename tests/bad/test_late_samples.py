"""Late samples: a sample that does not come in its time is a bad one like any other."""

import threading
import warnings
from typing import Any

import pytest
from torch.utils.data import Dataset

from torchstage import Stage, StageLoader, StageTimeout
from torchstage.tolerance import BadSample

pytestmark = pytest.mark.timing  # it is about how long things take

SECONDS = 0.3


class Stuck(Dataset[int]):
    """One sample waits for something that comes when the test is over."""

    def __init__(self, length: int, at: int) -> None:
        self.length, self.at = length, at
        self.is_over = threading.Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            assert self.is_over.wait(60)
        return index


def stuck_at(number: int, is_over: threading.Event) -> Any:
    def read_the_socket(value: int) -> int:
        if value == number:
            assert is_over.wait(60)
        return value

    return read_the_socket


@pytest.mark.parametrize("num_workers", [1, 2])
def test_ur_065_a_sample_that_blocks_for_ever_is_left_out(num_workers: int) -> None:
    data = Stuck(12, at=5)
    loader = StageLoader(
        data, 4, num_workers=num_workers, timeout=SECONDS, on_error="skip", worker_method="thread", isolation="shared"
    )
    with pytest.warns(UserWarning, match="1 bad samples in this epoch: index 5, stage 'fetch': StageTimeout"):
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 6, 7, 8], [9, 10, 11]]
    (bad,) = loader.stats().bad
    assert "self.is_over.wait(60)" in bad.message
    data.is_over.set()
    loader.close()


@pytest.mark.parametrize("num_workers", [1, 3])
@pytest.mark.parametrize("limits", [{}, {"concurrency": 2}])
def test_a_stage_that_is_stuck_goes_by_the_same_rules(num_workers: int, limits: dict[str, Any]) -> None:
    is_over = threading.Event()
    stage = Stage(stuck_at(6, is_over), timeout_seconds=SECONDS, **limits)
    seen: list[BadSample] = []

    def mend(bad: BadSample) -> int:
        seen.append(bad)
        return -1

    arguments: dict[str, Any] = {"num_workers": num_workers, "stages": [stage], "worker_method": "thread"}
    loader = StageLoader(range(12), 4, on_error=mend, isolation="shared", **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, -1, 7], [8, 9, 10, 11]]
    (bad,) = seen
    assert isinstance(bad.error, StageTimeout)
    assert (bad.stage, bad.index) == ("read_the_socket", 6)
    is_over.set()
    loader.close()
