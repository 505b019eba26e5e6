"""Placing: the same functions as stages at every place where stages run; and the dataset that one would write without.

Of this module, so that other processes can import them.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import Dataset

from torchstage import Stage

Function = Callable[[Any], Any]

PATIENCE_SECONDS = 20.0  # far above what is promised, so that a busy machine fails no test


class Numbers(Dataset[int]):
    """The item is ten times its index."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return 10 * index


class Composed(Dataset[Any]):
    """The dataset whose item is g(f(dataset[index])): what a loader with stages is compared with."""

    def __init__(self, dataset: Any, functions: Sequence[Function]) -> None:
        self.dataset = dataset
        self.functions = functions

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        value = self.dataset[index]
        for function in self.functions:
            value = function(value)
        return value


def triple(value: int) -> torch.Tensor:
    return torch.tensor([3 * value, value])


def label(value: torch.Tensor) -> dict[str, Any]:
    return {"tensor": value + 1, "name": f"sample {value[1].item()}"}


def pair(value: dict[str, Any]) -> tuple[Any, float]:
    return value, value["tensor"].sum().item() / 2


FUNCTIONS: tuple[Function, ...] = (triple, label, pair)


class Awaited:
    """A function as a coroutine that lets others go first."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.__name__ = function.__name__

    async def __call__(self, value: Any) -> Any:
        await asyncio.sleep(0)
        return self.function(value)


class Places:
    """Stages of functions at places that are written in short.

    "t": the loader's threads; a number: as many threads of its own; "a": the event loop, "a2": two at once there; "x":
    a ThreadPoolExecutor, "x1": one at once there; "y": another one; "p": a ProcessPoolExecutor.
    """

    def __init__(self, executors: dict[str, Executor]) -> None:
        self.executors = executors

    def stages(self, functions: Sequence[Function], words: str) -> list[Stage]:
        return [self.stage(function, word) for function, word in zip(functions, words.split(), strict=False)]

    def stage(self, function: Function, word: str) -> Stage:
        if word == "t":
            return Stage(function)
        if word.isdigit():
            return Stage(function, concurrency=int(word))
        concurrency = int(word[1:]) if word[1:] else None
        if word[0] == "a":
            return Stage(Awaited(function), concurrency=concurrency)
        return Stage(function, executor=self.executors[word[0]], concurrency=concurrency)


def echo(value: Any) -> Any:
    return value


def processes(num_processes: int, method: str = "forkserver") -> ProcessPoolExecutor:
    """Worker processes that have started."""
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torchstage"])
    executor = ProcessPoolExecutor(num_processes, mp_context=context)
    assert list(executor.map(echo, range(num_processes))) == list(range(num_processes))
    return executor


@contextmanager
def executors_of(letters: str) -> Iterator[dict[str, Executor]]:
    """Executors whose threads and processes have all started."""
    made: dict[str, Executor] = {}
    for letter in letters:
        if letter == "p":
            made[letter] = processes(2)
            assert made[letter].submit(torch.is_tensor, torch.ones(1)).result()  # torch opens a socket to lend tensors
        else:
            made[letter] = executor = ThreadPoolExecutor(3, f"executor-{letter}")
            everyone = threading.Barrier(4)
            for _ in range(3):
                executor.submit(everyone.wait)
            everyone.wait(PATIENCE_SECONDS)
    try:
        yield made
    finally:
        for executor in made.values():
            executor.shutdown()
