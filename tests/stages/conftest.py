"""What the tests of stages share: executors, started once for a file, so that each test can be judged for leaks."""

from collections.abc import Iterator

import pytest

from tests.stages.placing import Places, executors_of
from torchstage.sites import new_event_loop


@pytest.fixture(scope="session", autouse=True)
def event_loops() -> None:
    """The first loop of uvloop opens a pipe that it keeps for good."""
    new_event_loop().close()


@pytest.fixture(scope="session")
def everywhere() -> Iterator[Places]:
    """Every place, worker processes too."""
    with executors_of("xyp") as executors:
        yield Places(executors)


@pytest.fixture
def somewhere() -> Iterator[Places]:
    """Every place in this process."""
    with executors_of("xy") as executors:
        yield Places(executors)
