"""Parity tests use 4 threads on any machine, and run torch's DataLoader, which forks."""

from pathlib import Path

import pytest

# Also in pyproject.toml; a mark holds where pytest was started with -W error, too.
BENIGN_WARNINGS = (
    "ignore:This DataLoader will create \\d+ worker processes in total:UserWarning",
    "ignore:This process \\(pid=\\d+\\) is multi-threaded, use of fork\\(\\):DeprecationWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for line in BENIGN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line), append=False)
