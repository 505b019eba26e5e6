"""Bad samples and time-outs: what is late is named, also a function that mends samples."""

import threading
from typing import Any

import pytest

from tests.bad.test_bad_samples import Broken
from torchstage import BadSample, StageLoader
from torchstage.executors.failures import ProcessDied
from torchstage.tolerance import Tolerance

pytestmark = pytest.mark.timing  # it is about how long things take


def test_a_function_that_hangs_is_named_by_its_stage() -> None:
    release = threading.Event()

    def hang(bad: BadSample) -> Any:
        release.wait()
        return -1

    arguments: dict[str, Any] = {"num_workers": 2, "worker_method": "thread", "on_error": hang}
    with StageLoader(Broken(8, bad=(1,)), 2, timeout=0.5, **arguments) as loader:
        batches = iter(loader)
        with pytest.raises(RuntimeError, match=r"timed out after 0.5 seconds: stage 'fetch', batch 0 is late"):
            next(batches)
        release.set()
        with pytest.warns(UserWarning, match="1 bad samples"):
            assert [batch.tolist() for batch in batches] == [[0, -1], [2, 3], [4, 5], [6, 7]]


def test_where_no_process_can_go_on_that_is_no_samples_fault() -> None:
    tolerance = Tolerance("skip", [], is_batched=True)
    assert tolerance.takes(ProcessDied("it died in this sample", pid=7))
    assert not tolerance.takes(ProcessDied("the processes cannot go on"))
