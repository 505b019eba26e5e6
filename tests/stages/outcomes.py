"""Outcomes: a call in, what came of it out: its value, or the type and message of its error.

Guarantees: a Split's stages are run one after another in this thread, as a loader without threads would.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from parity.compare import assert_same

from torchstage.split import Split, split
from torchstage.stage import is_coroutine_function

ODD_INDICES: list[Any] = [
    *(0, 1, 2, 3, -1, -2, -3, -100, 100, True, False, 2**63, 2**70),
    *(np.int64(1), np.uint8(2), np.int32(-1), np.bool_(True), np.array(1), np.array([0, 1]), np.float32(1)),
    *(torch.tensor(1), torch.tensor([1]), torch.tensor([0, 1]), torch.tensor(True), torch.tensor(-1)),
    *(1.0, 1.5, float("inf"), "1", "", b"1", None, ..., [0, 1], [], [[0], [1]], (0,), (0, 1), (), {0: 1}, {1}),
    *(slice(0, 2), slice(None), slice(5, 1, -1), range(2), object),
]


def outcome(function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    try:
        return "gave", function(*arguments)
    except Exception as error:
        return "raised", type(error), str(error)


def assert_same_outcome(got: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    if got[0] == expected[0] == "gave":
        assert_same(got[1], expected[1])
    else:
        assert got == expected


def composed(parts: Split, index: Any) -> Any:
    """What the stages make of this index."""
    value = index
    if parts.fetch_many is not None and not parts.collated:
        value = call(parts.fetch_many, [index])[0]
    for stage in parts.stages:
        value = call(stage.fn, value)
    return value


def call(function: Callable[[Any], Any], value: Any) -> Any:
    return asyncio.run(function(value)) if is_coroutine_function(function) else function(value)


def assert_split_is_the_same(dataset: Any, index: Any) -> None:
    """The stages have the same outcome as ``dataset[index]``, and leave the random generators as that does."""
    seed()
    expected, states = outcome(lambda: dataset[index]), drawn()
    seed()
    assert_same_outcome(outcome(composed, split(dataset), index), expected)
    assert drawn() == states


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def drawn() -> tuple[float, float, float]:
    """The next number of each generator."""
    return torch.rand(()).item(), random.random(), float(np.random.random())
