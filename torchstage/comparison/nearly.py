"""Nearly: two stored values in, where they are further apart than is allowed out.

Guarantees: NaN is near NaN, and infinite values near the same. Types, dtypes and shapes are compared elsewhere.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchstage.comparison.leaf import Leaf, Stored


@dataclass(frozen=True, slots=True)
class Tolerance:
    """``|candidate - reference| <= absolute + relative * |reference|``, as numpy.allclose has it."""

    relative: float
    absolute: float


@dataclass(frozen=True, slots=True)
class Distance:
    words: tuple[str, str]
    row: int | None
    note: str


def far(one: Leaf, other: Leaf, tolerance: Tolerance) -> Distance | None:
    """Where they are too far apart first; None: nowhere, or they are not compared with a tolerance."""
    if one.stored is None or other.stored is None:
        return None
    a, b = _read(one.stored), _read(other.stored)
    is_near = np.isclose(b, a, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True)
    if is_near.all():
        return None
    at = int(np.flatnonzero(~is_near)[0])
    shape = one.stored.shape
    place = [int(n) for n in np.unravel_index(at, shape)] if shape else []
    with np.errstate(invalid="ignore"):
        distances = np.abs(a - b)
    largest = float(distances[~np.isnan(distances)].max(initial=0.0))
    words = [f"{value[at]} at {place}" if place else str(value[at]) for value in (a, b)]
    note = f"{int((~is_near).sum())} of {a.size} elements are too far apart, by {largest:.6g} at most"
    return Distance((words[0], words[1]), place[0] if place else None, note)


def _read(stored: Stored) -> Any:
    """As float64 or complex128, flat."""
    with Path(stored.file).open("rb") as file:
        file.seek(stored.start)
        data = bytearray(file.read(stored.num_bytes))
    library, _, dtype = stored.dtype.partition(" ")
    if library == "numpy":
        array: Any = np.frombuffer(data, np.dtype(dtype))
    elif not data:
        array = np.zeros(0)
    else:
        tensor = torch.frombuffer(data, dtype=getattr(torch, dtype))
        array = (tensor if tensor.is_complex() else tensor.double()).numpy()
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
