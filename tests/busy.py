"""Busy: a test of what is measured in, the same test with another try where the machine was too busy for it, out."""

import functools
from collections.abc import Callable
from typing import Any

NUM_TRIES = 3


def may_be_disturbed(test: Callable[..., Any]) -> Callable[..., Any]:
    """For what depends on how the machine's cores are shared out, which other programs have a say in."""

    @functools.wraps(test)
    def tried(*arguments: Any, **named: Any) -> None:
        for _ in range(NUM_TRIES - 1):
            try:
                test(*arguments, **named)
                return
            except AssertionError:
                continue
        test(*arguments, **named)

    return tried
