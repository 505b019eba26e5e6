"""Permutation: places in an epoch's order in, the dataset indices that stand there out; no list of the whole order.

Up to ``MAX_TABLE`` samples the order is a table: the ranks of as many random 64-bit numbers, all different. Every order
is then equally likely, which no short network of rounds gives on a small set; the table takes 512 KiB and 5 ms.

Above, it is computed by index. The places are laid out as a sheet of ``num_rows`` rows and ``num_columns`` columns,
near a square, and moved along the rows and the columns in turn, each time by a random function of the other coordinate:
a Feistel network. Each round can be undone, so no two places meet. The sheet is too large by less than one column; a
place that lands on that excess moves on until it is inside, which keeps it a permutation.

Guarantees: a permutation of range(length) for every length; the same for the same seed, epoch and length, on every
rank, machine and release of Python, numpy and torch; constant memory and time to start anywhere.
"""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

MAX_TABLE = 2**16
# Four rounds would hide where a place came from if the functions were perfect; places of one column of a sheet still
# show that they were. After six nothing is seen, not even on a sheet of 1500 places; two more are the margin.
NUM_ROUNDS = 8
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the finalizer of SplitMix64
S27, S30, S32 = np.uint64(27), np.uint64(30), np.uint64(32)


class Permutation:
    """One order of ``range(length)``, for 1 <= length < 2**63."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        self.length = length
        self._key = f"torchstage order {seed} {epoch} {length}"
        self._table = _shuffled(length, self._key) if length <= MAX_TABLE else None
        self.num_rows = math.isqrt(length - 1) + 1
        self.num_columns = -(-length // self.num_rows)
        self.keys = [np.uint64(key) for key in random_words(NUM_ROUNDS, self._key)]

    def at(self, places: Words) -> Words:
        """The indices at these places, each in range(length)."""
        if self._table is not None:
            return self._table[places]
        indices = self._moved(places)
        while (outside := indices >= np.uint64(self.length)).any():
            indices[outside] = self._moved(indices[outside])
        return indices

    def _moved(self, places: Words) -> Words:
        num_rows, num_columns = np.uint64(self.num_rows), np.uint64(self.num_columns)
        rows, columns = np.divmod(places, num_columns)
        for row_key, column_key in zip(self.keys[::2], self.keys[1::2], strict=True):
            rows = _sum_modulo(rows, scattered(columns, row_key, num_rows), num_rows)
            columns = _sum_modulo(columns, scattered(rows, column_key, num_columns), num_columns)
        rows *= num_columns
        rows += columns
        return rows


def scattered(coordinates: Words, key: np.uint64, size: np.uint64) -> Words:
    """A random function of the coordinates that the key chooses; its values are below ``size``, itself below 2**32."""
    mixed = coordinates ^ key
    mixed ^= mixed >> S30
    mixed *= MIX_1
    mixed ^= mixed >> S27
    mixed *= MIX_2
    mixed >>= S32
    mixed *= size
    mixed >>= S32
    return mixed


def random_words(count: int, key: str) -> Words:
    """As many random 64-bit numbers, from a hash: generators of numpy and torch may change with a release."""
    stream = hashlib.shake_256(key.encode()).digest(8 * count)
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def _sum_modulo(values: Words, others: Words, size: np.uint64) -> Words:
    """Both are below ``size``. Where the sum is too, taking ``size`` away wraps around to something greater."""
    values = values + others
    return np.minimum(values, values - size)


def _shuffled(length: int, key: str) -> Words:
    """All orders are equally likely: numbers that are all different are drawn anew until they are."""
    attempt = 0
    while True:
        numbers = random_words(length, f"{key} table {attempt}")
        order = np.argsort(numbers)
        if (np.diff(numbers[order]) != 0).all():
            return order.astype(np.uint64)
        attempt += 1
