"""Seeds: a sample's place in the order of an epoch in, bytes that seed its random generators out.

Guarantees: the bytes depend on nothing but the base seed, the epoch and the sample, in every process and release of
Python; two samples never get the same ones.
"""

import hashlib
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import numpy as np
from numpy.random import RandomState
from torch import Generator as TorchGenerator

AnyGenerator = TorchGenerator | Random | np.random.Generator | RandomState

# Parts of a digest: no two generators get the same seed, or Python's and numpy's twisters would draw alike.
FOR_TORCH, FOR_PYTHON, FOR_NUMPY_LEGACY, FOR_NUMPY = slice(0, 8), slice(8, 16), slice(16, 24), slice(24, 32)
DIGEST_BYTES = 32
WORD = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Seeds:
    """What all samples of one epoch have in common. ``repeat`` tells apart passes over the same epoch."""

    base: int
    epoch: int
    repeat: int = 0

    def digest(self, kind: str, index: Any, salt: int = 0) -> bytes:
        """32 bytes that belong to this sample (or batch: ``kind`` says which) alone.

        An index that is not stable does not count: the salt must then tell the samples of an epoch apart.
        """
        # Once a sample, with its code no longer in the processor's cache: of several ways the one that takes the least.
        head = f"{self.base} {self.epoch} {self.repeat} {salt} {kind} "
        text = f"{head}i{index}".encode() if type(index) is int else head.encode() + (_encoded(index) or b"?")
        return hashlib.blake2b(text, digest_size=DIGEST_BYTES).digest()


def is_stable(index: Any) -> bool:
    """Whether the index itself says which sample it is, in every run: numbers, strings, None, and tuples or lists of
    these. Anything else may compare, hash or print differently in another run."""
    return _encoded(index) is not None


def _encoded(index: Any) -> bytes | None:
    """The index as bytes that no other one has, None if it is not stable. Integers of any type count by value."""
    if isinstance(index, str):
        return b"s" + index.encode("utf-8", "surrogatepass")
    if isinstance(index, bytes):
        return b"b" + index
    if isinstance(index, float):
        return b"f" + float.__repr__(index).encode()
    if index is None:
        return b"n"
    if isinstance(index, tuple | list):
        parts = [_encoded(part) for part in cast(Sequence[Any], index)]
        known = [part for part in parts if part is not None]
        sized = b"".join(b"%d:%b" % (len(part), part) for part in known)
        return (b"(" if isinstance(index, tuple) else b"[") + sized if len(known) == len(parts) else None
    try:
        return b"i%d" % operator.index(index)
    except (TypeError, ValueError, RuntimeError):  # tensors of several elements raise any of them
        return None


# Generators -------------------------------------------------------------------------------------------------


def reseed(generator: AnyGenerator, seed: bytes) -> None:
    """Set a generator of any of the three libraries to what these bytes (16 or more) say. Takes 2 to 20 us."""
    number = int.from_bytes(seed, "little")
    if isinstance(generator, TorchGenerator):
        generator.manual_seed(number & WORD)
    elif isinstance(generator, Random):
        generator.seed(number)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _state_like(generator.bit_generator, number)
    else:
        bits = cast(Any, generator)._bit_generator
        if isinstance(bits, np.random.MT19937):  # four times as fast
            generator.seed(np.frombuffer(seed, "<u4"))
        else:
            generator.set_state(_state_like(bits, number))  # which forgets a second normal draw that was in store


def _state_like(bits: Any, number: int) -> Any:
    """A state for a bit generator of this type, made from the number."""
    name = type(bits).__name__
    if name in ("PCG64", "PCG64DXSM"):  # numpy's default: two 128-bit words, the second one odd; ten times as fast
        words = {"state": number & (2**128 - 1), "inc": (number >> 127) & (2**128 - 1) | 1}
        return {"bit_generator": name, "state": words, "has_uint32": 0, "uinteger": 0}
    return type(bits)(np.random.SeedSequence(number)).state


def digest_of(generator: AnyGenerator) -> bytes:
    """32 bytes that stand for the state that a generator is in."""
    state = state_of(generator)
    flat = _flat(state.numpy() if isinstance(generator, TorchGenerator) else state)
    return hashlib.blake2b(flat, digest_size=DIGEST_BYTES).digest()


def state_of(generator: AnyGenerator) -> Any:
    """The state that a generator is in, to be given to ``set_state``."""
    if isinstance(generator, TorchGenerator):
        return generator.get_state()
    if isinstance(generator, Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def set_state(generator: AnyGenerator, state: Any) -> None:
    """Put a generator into a state that it was in."""
    if isinstance(generator, Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _flat(state: Any) -> bytes:
    """A generator's state as bytes; repr would shorten arrays."""
    if isinstance(state, dict):
        items = cast(dict[str, Any], state)
        return b"".join(name.encode() + b"=" + _flat(items[name]) + b";" for name in sorted(items))
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state).encode()
