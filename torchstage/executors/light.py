"""Light: a small value of numbers and text in, its bare pickle out; anything else is left to parcels.

Guarantees: a value comes out as it went in. A parcel of such a value costs ten times as much, which matters where a job
is one short sample.
"""

import pickle
from typing import Any, cast

from torchstage.executors.parcel import Parcel, pack, unpack

MAX_PARTS = 100  # of a container
MAX_DEPTH = 4
MAX_TEXT = 1_000  # characters or bytes

_SCALARS = frozenset((int, float, bool, type(None), complex))
_TEXTS = frozenset((str, bytes))
_SEQUENCES = frozenset((tuple, list))


def is_light(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether it consists of a few numbers and short texts."""
    kind = cast(Any, type(value))
    if kind in _SCALARS:
        return True
    if kind in _TEXTS:
        return len(value) <= MAX_TEXT
    if kind in _SEQUENCES:
        parts = cast("list[Any]", value)
    elif kind is dict:
        parts = [*value, *value.values()]
    else:
        return False
    if not depth or len(parts) > MAX_PARTS:
        return False
    for part in parts:  # noqa: SIM110  # a third faster
        if type(part) not in _SCALARS and not is_light(part, depth - 1):
            return False
    return True


def packed(value: Any) -> bytes | Parcel:
    """What travels of the value. Raises what ``torchstage.executors.parcel.pack`` raises."""
    return pickle.dumps(value, 5) if is_light(value) else pack(value)


def opened(sent: bytes | Parcel) -> Any:
    """The value. Raises what unpickling raises."""
    return pickle.loads(sent) if type(sent) is bytes else unpack(cast(Parcel, sent))
