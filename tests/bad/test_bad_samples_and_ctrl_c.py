"""Ctrl-C while batches are filled up: wherever it comes, no sample is lost and none comes twice."""

from typing import Any

import pytest

from tests.bad.test_bad_samples import Broken, batches_of
from torchstage import StageLoader
from torchstage.engine.gather import InFlight
from torchstage.engine.pool import Pool
from torchstage.engine.regroup import Regroup

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. [0-9]+ bad samples:UserWarning")

STEPS = [(Regroup, "step"), (InFlight, "put_in_place"), (Regroup, "take"), (Pool, "call"), (Regroup, "rest")]


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_ctrl_c_in_any_step_loses_no_sample(
    owner: Any, name: str, is_after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    function = getattr(owner, name)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2 and not is_after:
            raise KeyboardInterrupt
        value = function(*arguments, **named)
        if calls % 2:
            raise KeyboardInterrupt
        return value

    monkeypatch.setattr(owner, name, interrupted)
    found: list[list[int]] = []
    num_interrupts = 0
    with StageLoader(
        Broken(22), 4, num_workers=2, worker_method="thread", on_error="skip", isolation="shared"
    ) as loader:
        batches = iter(loader)
        while True:
            try:
                found.append(next(batches).tolist())
            except KeyboardInterrupt:
                num_interrupts += 1
            except StopIteration:
                break
    assert num_interrupts
    assert found == batches_of([index for index in range(22) if index not in (3, 4, 17)], 4)
