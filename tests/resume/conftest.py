"""What the tests of state share: the process's generators are afterwards what they were before."""

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The tests seed the process's generators, again and again."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
