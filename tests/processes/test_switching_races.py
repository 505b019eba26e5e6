"""Threads that go over to processes: whatever comes in between, batches are those of the dataset as it is."""

import threading
import time
from typing import Any

import pytest
import torch

from torchstage import Stage, StageLoader
from torchstage.placement.choice import Choice, UnitChoice

from .datasets import Numbers, doubled

WHOLE = Choice((UnitChoice(("fetch",), "process", "", 1.0, 1.0),), "process", 1.0, 1.0)
LONG = 60.0

is_pickled, may_go_on = threading.Event(), threading.Event()


class DrawingFrom(Numbers):
    """Each sample draws from a generator that others have, too."""

    def __init__(self, generator: torch.Generator, num_samples: int) -> None:
        super().__init__(num_samples)
        self.generator = generator

    def __getitem__(self, index: int) -> Any:
        return index + torch.rand((), generator=self.generator).item() / 2


class SlowToPickle(Numbers):
    """While it is being pickled for the first time, the test goes on."""

    def __getstate__(self) -> Any:
        state = dict(self.__dict__)
        if not is_pickled.is_set():
            is_pickled.set()
            assert may_go_on.wait(LONG)
        return state


def begin(loader: Any) -> Any:
    """An iterator that measures nothing."""
    iterator = iter(loader)
    iterator._placement.needs_measuring = lambda *_: False
    return iterator


def choose_processes(iterator: Any, choice: Choice = WHOLE) -> None:
    iterator._placement.choice, iterator._placement._is_told = choice, True
    iterator._begin_switch()


def wait_until(is_true: Any) -> None:
    until = time.monotonic() + LONG
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.001)


def rest_of(iterator: Any) -> list[Any]:
    return [batch.tolist() for batch in iterator]


def test_the_next_epoch_of_kept_threads_may_begin_while_the_dataset_is_being_pickled() -> None:
    is_pickled.clear()
    may_go_on.clear()
    everything = [[n, n + 1] for n in range(0, 60, 2)]
    with StageLoader(SlowToPickle(60), 2, num_workers=2, persistent_workers=True, prefetch_factor=1) as loader:
        iterator = begin(loader)
        batches = [next(iterator).tolist()]
        choose_processes(iterator)
        assert is_pickled.wait(LONG)
        assert batches + rest_of(iterator) == everything
        iterator = iter(loader)  # the same
        batches = [next(iterator).tolist()]
        told = [processes for processes in iterator._hired._found.values() if processes.told]
        assert not told, "nothing of this epoch runs there: what they are being told comes from the epoch before"
        may_go_on.set()
        wait_until(lambda: iterator._switch is None or iterator._switch.is_ready)
        assert batches + rest_of(iterator) == everything
        for _ in range(2):
            assert rest_of(iter(loader)) == everything
        assert iterator._hired.is_up()
        assert loader._iterator._whole is not None, "processes make the batches"  # type: ignore[union-attr]


def test_the_dataset_may_follow_a_stage_that_is_in_processes_already() -> None:
    stages = [Stage(doubled), Stage(doubled, executor="process")]
    everything = [[4 * n, 4 * n + 4] for n in range(0, 200, 2)]
    for moved in ([None, 0, 1], [0, 1], [None, 1]):
        units = tuple(UnitChoice(("any",), "process", "", 1.0, 1.0, None, number) for number in moved)
        with StageLoader(Numbers(200), 2, num_workers=2, prefetch_factor=1, stages=stages) as loader:
            iterator = begin(loader)
            batches = [next(iterator).tolist()]
            choose_processes(iterator, Choice(units, "process", 1.0, 1.0))
            batches += [next(iterator).tolist() for _ in range(3)]
            wait_until(lambda iterator=iterator: iterator._switch is None or iterator._switch.is_ready)
            assert batches + rest_of(iterator) == everything
            assert iterator._recipe.line.has_moved
            assert rest_of(iter(loader)) == everything


@pytest.mark.parametrize("keeps", [False, True])
def test_a_generator_that_the_sampler_draws_from_too_draws_the_same_after_a_change(keeps: bool) -> None:
    def loader_of(method: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        dataset = DrawingFrom(generator, 200)
        common: Any = {"persistent_workers": keeps, "prefetch_factor": 1, "worker_method": method}
        return StageLoader(dataset, 2, True, num_workers=2, generator=generator, **common)

    torch.manual_seed(1)
    with loader_of("thread") as loader:
        expected = [rest_of(loader) for _ in range(3)]
    torch.manual_seed(1)
    with loader_of("auto") as loader:
        iterator = begin(loader)
        batches = [next(iterator).tolist()]
        choose_processes(iterator)
        if not keeps:
            wait_until(lambda: iterator._hired._found and iterator._hired.is_up())
        assert batches + rest_of(iterator) == expected[0]
        assert [rest_of(loader) for _ in range(2)] == expected[1:]
