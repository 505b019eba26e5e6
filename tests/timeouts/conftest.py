"""Fixtures: what is stuck is let go at the end of its test, whatever became of that."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .stuck import Stuck


@pytest.fixture
def stuck_at() -> Iterator[Callable[..., Stuck]]:
    made: list[Stuck] = []

    def make(*values: Any) -> Stuck:
        made.append(Stuck(*values))
        return made[-1]

    yield make
    for one in made:
        one.let_go()
