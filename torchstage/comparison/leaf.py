"""Leaf: one value inside a batch, as it is kept: what it is, a hash of its contents, and words about it.

Guarantees: two leaves are equal exactly if their path, their description and the hash of all their bytes are; what is
kept of a tensor does not grow with the size of its samples.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

DIGEST_BYTES = 16  # two different values have the same hash once in 2**128
NUM_SHOWN = 60  # characters


@dataclass(frozen=True, slots=True)
class Stored:
    """Bytes of a value that is compared with a tolerance, in a file. ``dtype``: torch's name of it."""

    file: str
    start: int
    num_bytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The places along the first dimension of a tensor or array, or the items of a list of plain values.

    ``digests``: DIGEST_BYTES each, joined. ``words``: what each one holds, for people.
    """

    count: int
    digests: bytes
    words: "tuple[str, ...] | Numbers"

    def digest(self, row: int) -> bytes:
        return self.digests[row * DIGEST_BYTES : (row + 1) * DIGEST_BYTES]

    def first_other(self, other: "Rows") -> int | None:
        """The first place where they differ; None: nowhere. Both have as many."""
        return next((row for row in range(self.count) if self.digest(row) != other.digest(row)), None)

    def num_other(self, other: "Rows") -> int:
        return sum(self.digest(row) != other.digest(row) for row in range(self.count))

    def say(self, row: int) -> str:
        if not isinstance(self.words, tuple):
            return self.words.say(row)
        return self.words[row] if row < len(self.words) else "something else"


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of each row of a tensor: the smallest, largest and mean value, float64, in this order. ``raw``: all bytes of a
    tensor with small rows, which can be shown as they are."""

    limits: bytes
    raw: bytes | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()

    def say(self, row: int) -> str:
        import numpy as np

        low, high, mean = np.frombuffer(self.limits, np.float64)[3 * row : 3 * row + 3].tolist()
        return f"min {low:.6g}, max {high:.6g}, mean {mean:.6g}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """``path``: as ``[0]['image']``; empty: the batch itself. ``what``: type, dtype, shape: compared. ``digest``: of
    the contents: compared. ``shown``: for people, not compared. ``how``: by what it is compared where that is not its
    own bytes. ``kind`` of a folded list of plain values: the type of its items."""

    path: str
    what: str
    digest: bytes
    shown: str
    rows: Rows | None = None
    how: str = ""
    kind: str = ""
    stored: Stored | None = None

    def say(self) -> str:
        return f"{self.what}: {self.shown}" if self.shown else self.what


def digest_of(*parts: "bytes | memoryview") -> bytes:
    """Of these parts, in their order; where one ends and the next begins is part of it."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def digest_of_leaves(leaves: Iterable[Leaf]) -> bytes:
    """Of all that is compared, bytes that are compared with a tolerance left out."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for leaf in leaves:
        path, what = leaf.path.encode(errors="surrogatepass"), leaf.what.encode(errors="surrogatepass")
        found.update(digest_of(path, what, b"" if leaf.stored else leaf.digest, leaf.how.encode()))
    return found.digest()


def shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= NUM_SHOWN else text[: NUM_SHOWN - 3] + "..."


def kind_of(value: Any) -> type[Any]:
    """Its type, of which nothing is assumed."""
    return cast("type[Any]", type(value))


def type_name(kind: type) -> str:
    """With its module, unless it is Python's own."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
