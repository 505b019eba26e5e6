"""What tests of randomness share: the states of the process's generators, many threads that make samples, an oracle."""

import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torchstage import rng

SEEDS = rng.Seeds(base=20, epoch=3)
PATIENCE_SECONDS = 60.0


def states() -> tuple[Any, ...]:
    """The process's generators, as values that can be compared."""
    name, words, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), name, words.tobytes(), *rest


@contextmanager
def states_kept() -> Iterator[None]:
    """Fails if the process's generators are not what they were before."""
    before = states()
    yield
    assert states() == before


def by_hand(make: Callable[[int], Any], index: int) -> Any:
    """The sample as one thread makes it without a scope: the process's generators are seeded for it, and restored."""
    digest = SEEDS.digest("sample", index)
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.manual_seed(int.from_bytes(digest[:8], "little"))
    random.seed(int.from_bytes(digest[8:16], "little"))
    np.random.seed(np.frombuffer(digest[16:24], "<u4"))
    try:
        return make(index)
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def in_threads(make: Callable[[int], Any], num_samples: int, num_threads: int) -> list[Any]:
    """Samples made by threads that take them in shuffled order and are switched between as often as Python allows."""
    order = list(range(num_samples))
    random.Random(num_threads).shuffle(order)
    waiting = deque(order)
    samples: list[Any] = [None] * num_samples
    errors: list[BaseException] = []
    start = threading.Barrier(num_threads)

    def work() -> None:
        scope = rng.Scope()
        rng.enter_thread(scope)
        try:
            start.wait(PATIENCE_SECONDS)
            while True:
                index = waiting.popleft()
                scope.begin(SEEDS, "sample", index)
                samples[index] = make(index)
        except IndexError:  # no sample is left
            if waiting:
                raise
        except BaseException as error:
            errors.append(error)
        finally:
            rng.leave_thread()

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return samples


def same(one: Any, other: Any) -> bool:
    """Whether two samples are bit-identical, and of the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "tobytes"):  # Pillow's images
        return one.tobytes() == other.tobytes()
    return one == other
