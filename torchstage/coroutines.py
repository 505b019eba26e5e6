"""Coroutines: an async stage and a sample in, a coroutine that draws from that sample's own generators out.

One thread runs many samples at once, so here a scope belongs to the coroutine: it is entered whenever the coroutine
goes on, and left whenever it waits.

Guarantees: a draw belongs to its sample, however the coroutines take turns.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any

from torchstage import loops, rng
from torchstage.engine.probe import ByHand
from torchstage.order import index_and_salt
from torchstage.seeds import AnyGenerator, Seeds, set_state, state_of

Draws = tuple[Seeds, Any, int]  # of which epoch, dataset index and salt

coming: ContextVar[Draws | None] = ContextVar("coming", default=None)  # the sample that is made in this context
_idle: list[rng.Scope] = []  # scopes that nobody draws from: it takes 20 us to make one


def remember(seeds: Seeds | None) -> Callable[[Any], None]:
    """What is told which sample comes, before its stages are called in the same context."""

    def begin(item: Any) -> None:
        index, salt = index_and_salt(item)
        coming.set(None if seeds is None else (seeds, index, salt))

    return begin


def drawing(
    function: Callable[[Any], Awaitable[Any]], draws: str, private: Callable[[], Any] = lambda: None
) -> Callable[[Any], Awaitable[Any]]:
    """``function``, whose coroutine draws for the sample that was told last; also from the generators that the calling
    thread's own copy of it keeps."""

    def begun(value: Any) -> Awaitable[Any]:
        sample, own = coming.get(), private()
        made = function(value)
        return made if sample is None else _Drawing(made, sample, draws, () if own is None else own.held)

    return begun


class _Drawing(ByHand):
    """An awaitable that goes on inside a scope."""

    def __init__(
        self, made: Awaitable[Any], sample: Draws, draws: str, held: Sequence[tuple[AnyGenerator, bytes]]
    ) -> None:
        self.awaits: Any = made
        self._held = held
        self._sample = sample
        self._draws = draws

    def close(self) -> None:
        """Nobody will wait for it."""
        self.awaits.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            scope = _idle.pop()
        except IndexError:
            scope = rng.Scope()
        seeds, index, salt = self._sample
        scope.begin(seeds, self._draws, index, salt, self._held)
        kept = [generator for generator, _ in self._held]  # many coroutines draw from these in turn
        states: list[Any] = []
        steps: Any = self.awaits.__await__()
        go_on, argument = steps.send, None
        try:
            while True:
                for generator, state in zip(kept, states, strict=False):
                    set_state(generator, state)
                with rng.drawing_from(scope):
                    try:
                        waits_for = go_on(argument)
                    except StopIteration as end:
                        return end.value
                states = [state_of(generator) for generator in kept]
                try:
                    go_on, argument = steps.send, (yield waits_for)
                except BaseException as error:  # cancelled, or what it waited for failed: the coroutine's own business
                    go_on, argument = steps.throw, error
        finally:
            _idle.append(scope)


# Waiting for one --------------------------------------------------------------------------------------------


class RunHere:
    """Waits for a coroutine in the calling thread; where an event loop runs there already (a notebook), in another.

    Each thread that calls it has one event loop of it, which lives as long as this object, or until ``close``: what the
    coroutines keep open, such as connections, serves the next sample as well.
    """

    def __call__(self, awaitable: Awaitable[Any]) -> Any:
        return loops.run(self, _awaited(awaitable))

    def close(self) -> None:
        """Close its event loops; a later call begins with a new one."""
        loops.leave(self)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
