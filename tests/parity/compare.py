"""Compare: two values in; nothing out if they are alike in type, nesting and every element.

Guarantees: where they differ, the error says at which place of the nesting.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

MAX_EVENTS = 1_000  # an iterator that raises for ever must not run for ever


def assert_same(got: Any, expected: Any, where: str = "value") -> None:
    assert type(got) is type(expected), f"{where} is a {type(got)}, expected a {type(expected)}"
    if isinstance(expected, torch.Tensor):
        properties = [(t.dtype, t.shape, t.device, t.layout, t.requires_grad) for t in (got, expected)]
        assert properties[0] == properties[1], where
        assert torch.equal(got, expected), f"{where} is {got}, expected {expected}"
    elif isinstance(expected, np.ndarray):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), where
        assert np.array_equal(got, expected), f"{where} is {got}, expected {expected}"
    elif isinstance(expected, Mapping):
        assert list(got) == list(expected), f"{where} has keys {list(got)}, expected {list(expected)}"
        for key in expected:
            assert_same(got[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, str | bytes):
        assert len(got) == len(expected), f"{where} has length {len(got)}, expected {len(expected)}"
        for position, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{where}[{position}]")
    else:
        assert got == expected, f"{where} is {got!r}, expected {expected!r}"


def story(loader: Any, *also: type[BaseException]) -> list[Any]:
    """One epoch as the user meets it: batches and raised exceptions, in their order.

    ``also``: exceptions to go on after that are no ``Exception``.
    """
    iterator, events = iter(loader), []
    while len(events) < MAX_EVENTS:
        try:
            events.append(next(iterator))
        except StopIteration:
            return events
        except (Exception, *also) as error:
            events.append(error)
    raise AssertionError(f"there is no end: the last of {MAX_EVENTS} events is {events[-1]!r}")
