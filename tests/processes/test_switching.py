"""Automatic placement: threads go on until processes are up; the data never changes."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchstage import Stage, StageLoader, switching
from torchstage.placement.choice import Choice, UnitChoice
from torchstage.placement.placement import placement_of

from .datasets import Drawing, Numbers, OnlyHere, Whereabouts, with_draws
from .test_same_as_threads import plain

LONG = 60


def chosen(*numbers: int | None, num_stages: int = 0) -> Choice:
    """A choice of processes for the dataset (None) and for these of the user's stages."""
    units = tuple(
        UnitChoice(("fetch",) if number is None else ("stage",), method, "", 1.0, 2.0, None, number)
        for number in (None, *range(num_stages))
        for method in ["process" if number in numbers else "thread"]
    )
    return Choice(units, "process" if len(numbers) == num_stages + 1 else "thread", 2.0, 1.0, 1.0, 0.0)


def moved(loader: Any, *numbers: int | None) -> Any:
    """The same loader, to which it was said that processes pay from the first batch on."""
    placement_of(loader.ledger).choice = chosen(*numbers, num_stages=len(loader.stages))
    return loader


def slowly(loader: Any) -> Iterator[Any]:
    """Its batches; after the third, no more before processes are up or refused."""
    for number, batch in enumerate(loader):
        yield batch
        deadline = time.monotonic() + 60
        while number == 2 and any(is_under_way(iterator) for iterator in loader._live):
            assert time.monotonic() < deadline, "processes do not come up"
            time.sleep(0.01)


def is_under_way(iterator: Any) -> bool:
    switch = iterator._switch
    return switch is not None and switch.why_not is None and not switch.is_ready


def told(loader: Any) -> tuple[list[int], list[int]]:
    """The indices, and for each the method of the worker that made it: 1 threads, 2 processes."""
    rows = torch.cat(list(slowly(loader)))
    return rows[:, 0].tolist(), rows[:, 3].tolist()


def test_threads_begin_and_processes_go_on() -> None:
    with moved(StageLoader(Whereabouts(LONG), 2, num_workers=2), None) as loader:
        for epoch in range(2):
            indices, methods = told(loader)
            assert indices == list(range(LONG))
            assert methods == sorted(methods), "at one batch border, once"
            assert methods[-1] == 2
            assert epoch or methods[0] == 1, "nobody waits for processes to start"


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("numbers", [(None,), (0,), (1,), (0, 1), (None, 0, 1)])
def test_what_comes_is_the_same_as_from_threads(numbers: Any, persistent_workers: bool) -> None:
    stages = [Stage(with_draws), Stage(with_draws)]
    arguments: dict[str, Any] = {"shuffle": True, "num_workers": 2, "persistent_workers": persistent_workers}
    epochs = []
    for is_moved in (False, True):
        torch.manual_seed(3)
        method = "auto" if is_moved else "thread"
        with StageLoader(Drawing(LONG), 2, stages=stages, worker_method=method, **arguments) as loader:
            if is_moved:
                moved(loader, *numbers)
            epochs.append([[plain(batch) for batch in slowly(loader)] for _ in range(2)])
            if is_moved:
                assert any(stage.executor == "process" for stage in loader.stats().stages)
    assert epochs[0] == epochs[1]


def test_a_cut_around_the_change_goes_on_exactly() -> None:
    torch.manual_seed(3)
    arguments: dict[str, Any] = {"batch_size": 2, "shuffle": True, "num_workers": 2, "seed": 1}
    with StageLoader(Drawing(200), worker_method="thread", **arguments) as loader:
        whole = [plain(batch) for batch in loader]
    batches: list[Any] = []
    state = None
    for num_steps in (1, 5, 40, 100):
        torch.manual_seed(3)
        with moved(StageLoader(Drawing(200), **arguments), None) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _, batch in zip(range(num_steps), slowly(loader), strict=False):
                batches.append(plain(batch))
            state = loader.state_dict()
    assert batches == whole


def test_what_cannot_be_sent_stays_in_threads_with_one_warning() -> None:
    dataset = Numbers(LONG)
    dataset.transform = lambda value: value  # type: ignore[attr-defined]
    with moved(StageLoader(dataset, 2, num_workers=2), None) as loader:
        with pytest.warns(UserWarning, match=r"dataset\.transform") as caught:
            first = [value for batch in slowly(loader) for value in batch.tolist()]
        again = [value for batch in loader for value in batch.tolist()]
    assert first == again == list(range(LONG))
    assert len(caught) == 1


def test_what_no_process_can_begin_with_stays_in_threads_with_one_warning() -> None:
    """It was pickled, but cannot be made again elsewhere."""
    with moved(StageLoader(OnlyHere(LONG), 2, num_workers=2), None) as loader:
        with pytest.warns(UserWarning, match=r"a process cannot begin with.*LookupError: no such place") as caught:
            first = [value for batch in slowly(loader) for value in batch.tolist()]
        again = [value for batch in loader for value in batch.tolist()]
        assert "no such place" in str(placement_of(loader.ledger).why_not)
    assert first == again == list(range(LONG))
    assert [warning.filename for warning in caught] == [__file__], "the line that iterates over the loader"


def test_much_memory_is_not_taken_unasked(monkeypatch: Any) -> None:
    monkeypatch.setattr(switching, "MAX_BYTES", 1_000_000)
    dataset = Numbers(LONG)
    dataset.rows = torch.zeros(5_000_000, dtype=torch.uint8)  # type: ignore[attr-defined]
    with moved(StageLoader(dataset, 2, num_workers=2), None) as loader:
        with pytest.warns(UserWarning, match=r"hold 0.005 GB or more.*pass worker_method='multiprocessing' to have"):
            values = [value for batch in slowly(loader) for value in batch.tolist()]
        assert values == list(range(LONG))
    with StageLoader(dataset, 2, num_workers=2, worker_method="multiprocessing") as loader:
        assert [value for batch in loader for value in batch.tolist()] == values


def test_an_iterator_that_is_dropped_while_processes_start_leaves_nothing() -> None:
    for _ in range(3):
        loader = moved(StageLoader(Whereabouts(LONG), 2, num_workers=2), None)
        iterator = iter(loader)
        next(iterator), next(iterator)
        del iterator, loader
