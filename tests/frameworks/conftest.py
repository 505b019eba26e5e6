"""What the framework tests share: quiet trainers, and a process that is afterwards what it was before."""

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Lightning writes to the environment, and seeds the process's generators, where it is told to."""
    environment = dict(os.environ)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    os.environ.clear()
    os.environ.update(environment)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
