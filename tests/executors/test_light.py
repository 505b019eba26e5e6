"""Light: only small values of numbers and text are sent bare, and they come out the same."""

import numpy as np
import pytest
import torch

from torchstage.executors.light import is_light, opened, packed
from torchstage.executors.parcel import Parcel


@pytest.mark.parametrize(
    "value", [3, None, "text", (1, [2.5, True], {"a": b"x", 3: None}), [], {"deep": [[(1,)]]}, [1] * 100], ids=repr
)
def test_numbers_and_text_are_sent_bare(value):
    sent = packed(value)
    assert type(sent) is bytes
    assert opened(sent) == value
    assert type(opened(sent)) is type(value)


class Number(int):
    """Of a type of its own."""


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2),
        np.ones(2),
        np.float32(1),
        [torch.ones(2)],
        {"a": (np.int64(3),)},
        "a" * 1001,
        [1] * 101,
        Number(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_a_parcel(value):
    sent = packed(value)
    assert type(sent) is Parcel
    assert type(opened(sent)) is type(value)


def test_a_value_that_holds_itself_is_a_parcel():
    value = []
    value.append(value)
    assert not is_light(value)
