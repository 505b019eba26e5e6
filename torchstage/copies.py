"""Copies: objects that threads must not share in, one private copy for each thread out."""

import copy
from typing import Any


class CannotCopy(Exception):  # noqa: N818  # never leaves the package
    """Something that would have to be copied for each thread cannot be; the message names it."""


def private_copies(count: int, **roots: Any) -> list[dict[str, Any]]:
    """That many copies of the named objects, each with one memo, so that what they share stays shared."""
    return [copy.deepcopy(roots) for _ in range(count)]
