"""Fixtures of processes: the nursery takes seconds to start, so one serves all tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes_programs import Running, double

from torchstage.executors.processes import Processes, end_nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[None]:
    """It is there before the test begins."""
    with Processes(1) as processes:
        processes.send(Running(double), {})
        assert processes.submit(1).result(timeout=100) == 2
    yield
    end_nursery()


@pytest.fixture
def hire(nursery: None) -> Iterator[Callable[..., Processes]]:
    """Makes processes that run a function of processes_programs, and ends them after the test."""
    hired: list[Processes] = []

    def make(function: Any = double, data: Any = None, num_processes: int = 2, **options: Any) -> Processes:
        processes = Processes(num_processes, **options)
        hired.append(processes)
        processes.send(Running(function, data), {"data": data})
        return processes

    yield make
    for processes in hired:
        processes.shutdown(cancel_futures=True)
