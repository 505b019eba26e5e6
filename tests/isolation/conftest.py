"""The tests of isolation: a file that they read, and which of them may fail."""

from pathlib import Path

import pytest

from .breaking_handles import records
from .not_yet import why_it_may_fail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of one record for each sample."""
    path = tmp_path / "records"
    path.write_bytes(records())
    return path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Four and eight threads on few cores are what these tests are about. Known faults may fail."""
    for item in items:
        if "/isolation/" not in str(item.path):
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"))
        why = why_it_may_fail(item.name)
        if why is not None:  # not strict: some are races, which may go well
            item.add_marker(pytest.mark.xfail(reason=why, strict=False))
