"""Scope states: the random generators of a lane in, their states out, and back.

Guarantees: a state that nothing was drawn from since the lane was seeded takes no room; the text is plain, and equal
for equal states.
"""

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data._utils.worker as torch_worker

from torchstage.draws import States, restore, text_of
from torchstage.rng import Scope
from torchstage.seeds import AnyGenerator, set_state, state_of

Drawn = tuple[Any, ...]  # the states of a scope's generators, in the order of NAMES
NAMES = ("torch", "python", "numpy_legacy", "numpy")
_numpy_seed: Callable[[int, int], list[int]] = vars(torch_worker)["_generate_state"]  # torch leaves it untyped


def seeded(base_seed: int, number: int) -> Scope:
    """The generators of a lane of this number before anything was drawn from them."""
    return Scope.of_worker(base_seed, number, _numpy_seed(base_seed, number))


def drawn_of(scope: Scope | None) -> Drawn | None:
    """The states of its generators; None without a scope."""
    return None if scope is None else tuple(state_of(generator) for generator in _generators(scope))


class Watch:
    """The states of a scope's generators, asked for again and again: numpy takes 50 us to tell that of its twister, so
    it is asked only if that has changed."""

    def __init__(self, scope: Scope | None) -> None:
        self._scope = scope
        self._legacy: Any = None
        self._words = b""

    def now(self) -> Drawn | None:
        """10 us where numpy's functions were not drawn from; None without a scope."""
        scope = self._scope
        if scope is None:
            return None
        words = _words_of(scope.numpy_legacy)
        # A normal draw makes two numbers of the twister's: the second one is in store, and is taken without it.
        if words is None or words != self._words or self._legacy["has_gauss"]:
            self._words, self._legacy = words or b"", state_of(scope.numpy_legacy)
        return state_of(scope.torch), state_of(scope.python), self._legacy, state_of(scope.numpy)


def _words_of(generator: np.random.RandomState) -> bytes | None:
    """The twister's memory: 624 words and its place in them; None if it does not show it."""
    try:
        address: int = cast(Any, generator)._bit_generator.ctypes.state_address
    except (AttributeError, ImportError):
        return None
    return ctypes.string_at(address, 625 * 4)


def put_into(scope: Scope, draws: Drawn | States | None, base_seed: int, number: int) -> None:
    """Put its generators into these states; those that are not named, into that in which they were seeded."""
    if isinstance(draws, tuple):
        for generator, state in zip(_generators(scope), draws, strict=True):
            set_state(generator, state)
        return
    fresh = drawn_of(seeded(base_seed, number))
    assert fresh is not None
    for name, generator, state in zip(NAMES, _generators(scope), fresh, strict=True):
        if draws is not None and name in draws:
            restore(generator, draws[name])
        else:
            set_state(generator, state)


class Texts:
    """The states of one lane's generators as text."""

    def __init__(self, base_seed: int, number: int) -> None:
        self._scope = seeded(base_seed, number)
        self._fresh = drawn_of(self._scope) or ()
        self._known: list[tuple[Drawn, States | None]] = []  # the latest, and those at the start of the epoch

    def of(self, draws: Drawn | States | None) -> States | None:
        """Those that differ from what they were seeded to, None if there are none."""
        if draws is None or isinstance(draws, dict):
            return draws or None
        for states, texts in self._known:
            if states is draws:
                return texts
        texts: States | None = {}
        for name, generator, state, fresh in zip(NAMES, _generators(self._scope), draws, self._fresh, strict=True):
            if not _same(state, fresh):
                set_state(generator, state)
                texts[name] = text_of(generator)
        texts = texts or None
        self._known = [*self._known[-1:], (draws, texts)]
        return texts


def _generators(scope: Scope) -> tuple[AnyGenerator, ...]:
    return scope.torch, scope.python, scope.numpy_legacy, scope.numpy


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(cast("np.ndarray[Any, Any]", one), other)
    if isinstance(one, dict):
        known = cast("dict[str, Any]", one)
        return known.keys() == other.keys() and all(_same(known[name], other[name]) for name in known)
    return bool(one == other)
