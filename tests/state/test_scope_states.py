"""The states of a lane's random generators are told, and put back, with nothing left out."""

from typing import Any

import numpy as np
import pytest
import torch

from torchstage.rng import Scope
from torchstage.scope_states import Texts, Watch, drawn_of, put_into, seeded

DRAWS: dict[str, Any] = {
    "torch": lambda scope: torch.rand((), generator=scope.torch).item(),
    "python": lambda scope: scope.python.random(),
    "python's normal": lambda scope: scope.python.gauss(0, 1),
    "numpy's functions": lambda scope: scope.numpy_legacy.rand(),
    "numpy's normal": lambda scope: scope.numpy_legacy.randn(),
    "numpy": lambda scope: scope.numpy.random(),
}


def next_of(scope: Scope) -> list[Any]:
    return [draw(scope) for _ in range(2) for draw in DRAWS.values()]


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("num_draws", [0, 1, 2, 3])
def test_what_was_put_back_draws_what_would_have_been_drawn(name: str, num_draws: int) -> None:
    scope = seeded(7, 2)
    for _ in range(num_draws):
        DRAWS[name](scope)
    raw, texts = drawn_of(scope), Texts(7, 2).of(drawn_of(scope))
    expected = next_of(scope)
    for known in (raw, texts):
        other = seeded(1, 1)
        next_of(other)
        put_into(other, known, 7, 2)
        assert next_of(other) == expected


def test_generators_that_nobody_drew_from_take_no_room() -> None:
    scope = seeded(7, 2)
    assert Texts(7, 2).of(drawn_of(scope)) is None
    scope.python.random()
    assert list(Texts(7, 2).of(drawn_of(scope)) or ()) == ["python"]


@pytest.mark.parametrize("name", DRAWS)
def test_a_watch_sees_each_draw(name: str) -> None:
    """Also the second of two normal numbers, which numpy has in store."""
    scope, texts = seeded(7, 2), Texts(7, 2)
    watch = Watch(scope)
    for _ in range(7):
        DRAWS[name](scope)
        seen = watch.now()
        assert seen is not None
        assert texts.of(seen) == Texts.of(texts, drawn_of(scope))
        np.testing.assert_equal(seen[2], (drawn_of(scope) or ())[2])


def test_a_watch_that_cannot_look_at_the_twister_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchstage.scope_states._words_of", lambda generator: None)
    scope = seeded(7, 2)
    watch = Watch(scope)
    for _ in range(3):
        scope.numpy_legacy.randn()
        np.testing.assert_equal((watch.now() or ())[2], (drawn_of(scope) or ())[2])
