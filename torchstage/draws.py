"""Draws: random generators in, what state they are in as text out, and back.

A sampler draws its order from generators of its own, or from the process's. With the states from before its first draw,
the same sampler gives the same order again.

Guarantees: the text is plain and equal for equal states; what was put back draws what would have been drawn.
"""

import json
import random
from base64 import b64decode, b64encode
from binascii import b2a_base64
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from ctypes import string_at
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch

from torchstage.seeds import AnyGenerator, set_state, state_of

# The generators that the whole process shares, by whose they are.
OF_PROCESS: dict[str, AnyGenerator] = {
    "torch": torch.default_generator,
    "python": vars(random)["_inst"],
    "numpy": vars(np.random.mtrand)["_rand"],
}
PROCESS = tuple(OF_PROCESS)
States = dict[str, str]  # a generator's name -> its state


def text_of(generator: AnyGenerator) -> str:
    """The state of a generator as text, 3 to 7 kB for the twisters."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return _encoded(string_at(state.data_ptr(), state.numel()))  # by way of numpy() it takes twice as long
    return json.dumps(_plain(state_of(generator)))


@lru_cache(maxsize=8)
def _encoded(words: bytes) -> str:
    """Of torch's twister. Where a state is asked for at each step, most generators are where they were."""
    return b2a_base64(words, newline=False).decode()


def restore(generator: AnyGenerator, text: str) -> None:
    """Put a generator into the state that ``text_of`` told."""
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(b64decode(text)), dtype=torch.uint8))
    else:
        set_state(generator, _unplain(json.loads(text)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        array = cast(np.ndarray[Any, Any], value)
        return {"array": b64encode(array.tobytes()).decode(), "dtype": array.dtype.str}
    if isinstance(value, tuple):
        items = cast(tuple[Any, ...], value)
        if len(items) > 100:  # the words of Python's twister
            return {"words": b64encode(np.array(items, "<u4").tobytes()).decode()}
        return {"tuple": [_plain(item) for item in items]}
    if isinstance(value, dict):
        return {"dict": {name: _plain(item) for name, item in cast(dict[str, Any], value).items()}}
    return cast(Any, value).item() if isinstance(value, np.generic) else value


def _unplain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    known = cast(dict[str, Any], value)
    if "array" in known:
        return np.frombuffer(b64decode(known["array"]), known["dtype"]).copy()
    if "words" in known:
        return tuple(np.frombuffer(b64decode(known["words"]), "<u4").tolist())
    if "tuple" in known:
        return tuple(_unplain(item) for item in known["tuple"])
    return {name: _unplain(item) for name, item in known["dict"].items()}


# The process's --------------------------------------------------------------------------------------------------


def capture(kinds: Iterable[str]) -> States:
    """The states of the process's generators of these kinds."""
    return {kind: text_of(OF_PROCESS[kind]) for kind in kinds}


def put_back(states: States) -> None:
    """Put the process's generators into these states."""
    for kind, text in states.items():
        if kind in OF_PROCESS:
            restore(OF_PROCESS[kind], text)


@contextmanager
def elsewhere(states: States, kinds: Sequence[str]) -> Generator[States]:
    """Inside, the process's generators are in these states, and afterwards as they were before. What is yielded holds,
    afterwards, the states that they were left in."""
    real = capture(kinds)
    left: States = {}
    try:
        put_back(states)
        yield left
    finally:
        left.update(capture(kinds))
        put_back(real)


class Stream:
    """The process's generators as the sampler of a resumed run should see them, for one epoch after another.

    A run draws the orders of its epochs from generators that the whole process shares. When a new process resumes it,
    its generators are in other states. So the orders go on to be drawn from the states that were saved, until somebody
    else draws from the process's generators or seeds them: then these are the run's own from there on, as torch has it.
    """

    def __init__(self) -> None:
        self._states: States = {}  # what it draws from next, of each kind that is not drawn from the process's own
        self._mark: States = {}  # the process's generators of these kinds when they were last seen
        self._is_drawing = False

    def follow(self, states: States) -> None:
        """Go on from these states; from the process's own where they are the same."""
        now = capture(states)
        self._states = {kind: text for kind, text in states.items() if now[kind] != text}
        self._mark = {kind: now[kind] for kind in self._states}

    def states(self, kinds: Iterable[str]) -> States:
        """What is drawn from next."""
        self._leave_alone()
        return {kind: self._states.get(kind) or text_of(OF_PROCESS[kind]) for kind in kinds}

    @property
    def apart(self) -> States:
        """The states, of the kinds that are not drawn from the process's generators."""
        self._leave_alone()
        return self._states

    def rewind(self, states: States) -> None:
        """Go back to these states, of the kinds that nobody else drew from since."""
        self._states = {**self.apart, **{kind: text for kind, text in states.items() if kind in self.apart}}

    def _leave_alone(self) -> None:
        """Where somebody else drew from the process's generator or seeded it, that is the run's own from here on."""
        if self._mark and not self._is_drawing:
            now = capture(self._mark)
            self._states = {kind: text for kind, text in self._states.items() if now[kind] == self._mark[kind]}
            self._mark = {kind: now[kind] for kind in self._states}

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Around whatever draws for the sampler; also around itself."""
        if self._is_drawing or not self.apart:
            yield
            return
        self._is_drawing = True
        left = self._states
        try:
            with elsewhere(self._states, tuple(self._states)) as left:
                yield
        finally:
            self._is_drawing = False
            self._states = left
