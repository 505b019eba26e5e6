"""Fault: what a decoder raises for data that it cannot turn into pixels, and how it names where the data came from.

Guarantees: the message begins with the source's name; a source given as bytes is named by its length, never by its
content.
"""

from __future__ import annotations

import os


class DecodeError(ValueError):
    """The data cannot be decoded as asked. The message names the source and gives the library's own words."""


def name_of(source: bytes | bytearray | memoryview | str | os.PathLike[str]) -> str:
    """The path as it was given; `<1234 bytes>` for a source in memory."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"<{len(source)} bytes>"
    return os.fspath(source)
