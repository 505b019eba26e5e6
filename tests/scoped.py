"""Fixtures of the tests that draw from a scope. Test modules ask for them with ``pytest_plugins = "scoped"``."""

from collections.abc import Iterator

import pytest
from drawing import SEEDS, states_kept

from torchstage import rng


@pytest.fixture
def process_keeps_its_states() -> Iterator[None]:
    """The process's generators are after the test what they were before, and no scope is left."""
    with states_kept():
        yield
    assert rng.current() is None


@pytest.fixture
def scope() -> Iterator[rng.Scope]:
    """The scope that this thread draws from, at a sample."""
    with rng.drawing_from(rng.Scope()) as scope:
        scope.begin(SEEDS, "sample", 0)
        yield scope
