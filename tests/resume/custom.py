"""Custom: samplers as users write them."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

LENGTH = 11

PERMUTATIONS: dict[str, Callable[[], list[int]]] = {
    "torch": lambda: torch.randperm(LENGTH).tolist(),
    "random": lambda: random.sample(range(LENGTH), LENGTH),
    "numpy": lambda: np.random.permutation(LENGTH).tolist(),
}
DRAWS: dict[str, Callable[[int], int]] = {
    "torch": lambda high: int(torch.randint(high, ())),
    "random": random.randrange,
    "numpy": lambda high: int(np.random.randint(high)),
}


class AtOnce(Sampler[int]):
    """Draws its order from a generator of the process, when it is asked for an iterator."""

    def __init__(self, library: str) -> None:
        self.library = library

    def __iter__(self) -> Iterator[int]:
        return iter(PERMUTATIONS[self.library]())

    def __len__(self) -> int:
        return LENGTH


class AtFirst(AtOnce):
    """Draws its order when it is asked for the first index."""

    def __iter__(self) -> Iterator[int]:
        yield from PERMUTATIONS[self.library]()


class AsItGoes(AtOnce):
    """Draws for each index."""

    def __iter__(self) -> Iterator[int]:
        left = list(range(LENGTH))
        while left:
            yield left.pop(DRAWS[self.library](len(left)))


class Endless(AtOnce):
    """Without a length, and with replacement."""

    __len__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        for _ in range(LENGTH + 4):
            yield DRAWS[self.library](LENGTH)


def generator_of(library: str) -> Any:
    return {
        "torch": lambda: torch.Generator().manual_seed(5),
        "random": lambda: random.Random(5),
        "numpy": lambda: np.random.default_rng(5),
        "numpy of old": lambda: np.random.RandomState(5),
    }[library]()


def drawn_from(generator: Any, high: int) -> int:
    if isinstance(generator, torch.Generator):
        return int(torch.randint(high, (), generator=generator))
    if isinstance(generator, random.Random):
        return generator.randrange(high)
    return int(generator.integers(high) if isinstance(generator, np.random.Generator) else generator.randint(high))


class Own(Sampler[int]):
    """Has a generator, from which it draws at once, or as it goes."""

    def __init__(self, library: str, *, at_once: bool) -> None:
        self.rng = generator_of(library)
        self.at_once = at_once

    def __iter__(self) -> Iterator[int]:
        return iter(list(self.drawn())) if self.at_once else self.drawn()

    def drawn(self) -> Iterator[int]:
        left = list(range(LENGTH))
        while left:
            yield left.pop(drawn_from(self.rng, len(left)))

    def __len__(self) -> int:
        return LENGTH


class Wrapper(Sampler[int]):
    """Has a sampler that has a generator, under whatever name."""

    def __init__(self, inner: Any) -> None:
        self.wrapped = [inner]

    def __iter__(self) -> Iterator[int]:
        return iter(self.wrapped[0])

    def __len__(self) -> int:
        return LENGTH


class CountsEpochs(Sampler[int]):
    """Counts its epochs itself: when it is asked for an iterator, for the first index, or at the end."""

    def __init__(self, when: str) -> None:
        self.epoch = 0
        self.when = when

    def __iter__(self) -> Iterator[int]:
        if self.when == "iterator":
            self.epoch += 1
            return iter(self.order())
        return self.lazily()

    def order(self) -> list[int]:
        return torch.randperm(LENGTH, generator=torch.Generator().manual_seed(self.epoch)).tolist()

    def lazily(self) -> Iterator[int]:
        order = self.order()
        if self.when == "first":
            self.epoch += 1
        yield from order
        if self.when == "end":
            self.epoch += 1

    def __len__(self) -> int:
        return LENGTH


class Stateful(Sampler[int]):
    """Has a state that says how many it gave, of which order."""

    def __init__(self, *, with_replacement: bool = False) -> None:
        self.number = self.given = 0
        self.with_replacement = with_replacement

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.number)
        order = (
            torch.randint(LENGTH, (LENGTH,), generator=generator)
            if self.with_replacement
            else torch.randperm(LENGTH, generator=generator)
        )
        for index in order[self.given :].tolist():
            self.given += 1
            yield index
        self.given = 0
        self.number += 1

    def __len__(self) -> int:
        return LENGTH

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self.given = state["number"], state["given"]


class StatefulGenerator(Sampler[int]):
    """Its state is that of its generator, from which it draws as it goes, and what is left."""

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(5)
        self.left: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        if not self.left:
            self.left = list(range(LENGTH))
        while self.left:
            yield self.left.pop(drawn_from(self.rng, len(self.left)))

    def __len__(self) -> int:
        return LENGTH

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self.rng.get_state().tolist(), "left": list(self.left or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.set_state(torch.tensor(state["rng"], dtype=torch.uint8))
        self.left = list(state["left"])


class StatefulIterator(Sampler[int]):
    """Its iterators have a state."""

    def __init__(self) -> None:
        self.rng = random.Random(7)

    def __iter__(self) -> Iterator[int]:
        return _Told(self.rng.random())

    def __len__(self) -> int:
        return LENGTH


class StatefulBoth(StatefulIterator):
    """The sampler's state is a number that each process chooses anew; its iterators say how many they gave."""

    def __init__(self) -> None:
        super().__init__()
        self.secret = random.random()

    def __iter__(self) -> Iterator[int]:
        return _Told(self.secret)

    def state_dict(self) -> dict[str, Any]:
        return {"secret": self.secret}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.secret = state["secret"]


class _Told:
    def __init__(self, seed: float) -> None:
        self.seed, self.given = seed, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        order = random.Random(self.seed).sample(range(LENGTH), LENGTH)
        if self.given == LENGTH:
            raise StopIteration
        self.given += 1
        return order[self.given - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.seed, "given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seed, self.given = state["seed"], state["given"]


class Batches(Sampler[list[int]]):
    """A batch sampler: batches of different sizes of what a sampler yields."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        size = 1
        for index in self.inner:
            batch.append(index)
            if len(batch) == size:
                yield batch
                batch, size = [], size % 3 + 1
        if batch:
            yield batch


class ReusedBatches(Batches):
    """One list, filled again and again."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.inner:
            batch.append(index)
            if len(batch) == 2:
                yield batch
                batch.clear()
        if batch:
            yield batch


class StatefulBatches(Batches):
    """Passes the state of its sampler on."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.inner:
            batch.append(index)
            if len(batch) == 2:
                yield batch
                batch = []
        if batch:
            yield batch
