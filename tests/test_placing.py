"""Placing: loaders that measure what they load, and loaders that have no reason to."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from torchstage import Stage, StageLoader
from torchstage.line import Line
from torchstage.placement import measuring
from torchstage.placement import placement as placing
from torchstage.placement.choice import choice_of
from torchstage.placement.model import Scene, Seen, Unit
from torchstage.placement.parts import parts_of
from torchstage.placement.placement import Placement, placement_of

pytestmark = pytest.mark.filterwarnings("ignore:StageLoader. one loader thread kept")


class Made(Dataset[torch.Tensor]):
    """Samples that take ``work()``: as many as it takes to see enough of them."""

    def __init__(self, work: Callable[[], object], length: int = 240) -> None:
        self.work = work
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = self.work()
        return torch.full((1000,), index + drawn if isinstance(drawn, float) else float(index))


def in_python(times: int = 60_000) -> int:
    return sum(number * number for number in range(times))


def without_the_gil(data: bytes = bytes(8_000_000)) -> bytes:
    return hashlib.sha256(data).digest()


def waiting() -> None:
    time.sleep(0.006)


def drawing() -> float:
    waiting()
    return float(torch.rand(()))


def python_stage(value: torch.Tensor) -> torch.Tensor:
    in_python()
    return value


def made(loader: StageLoader[Any]) -> Placement:
    """What was found out in an epoch."""
    for _ in loader:
        pass
    return placement_of(loader.ledger)


@contextmanager
def loader_of(dataset: Any, **arguments: Any) -> Iterator[StageLoader[Any]]:
    with StageLoader(dataset, **{"batch_size": 4, "num_workers": 2, **arguments}) as loader:
        yield loader


@pytest.mark.parametrize(
    ("work", "method"),
    [(in_python, "process"), (without_the_gil, "thread"), (waiting, "thread")],
    ids=lambda given: getattr(given, "__name__", given),
)
@pytest.mark.timing
def test_each_kind_of_work_finds_its_place(work: Callable[[], object], method: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(placing, "usable_cores", lambda: 2)
    with loader_of(Made(work)) as loader:
        choice = made(loader).choice
    assert choice is not None
    assert [unit.method for unit in choice.units] == [method]


@pytest.mark.timing
def test_a_python_stage_after_a_waiting_dataset_is_told_apart(monkeypatch: Any) -> None:
    monkeypatch.setattr(placing, "usable_cores", lambda: 2)
    with loader_of(Made(waiting), stages=[Stage(python_stage)]) as loader:
        placement = made(loader)
    assert placement.scene is not None
    waits, python = placement.scene.units
    assert waits.share_without_gil > 0.75
    assert python.is_gil_bound
    assert (waits.number, python.number) == (None, 0)
    assert python.bytes_in == 4000


@pytest.mark.timing
def test_python_work_has_one_thread_from_then_on(monkeypatch: Any) -> None:
    monkeypatch.setattr(placing, "usable_cores", lambda: 1)
    with loader_of(Made(in_python), num_workers=4) as loader:
        iterator = iter(loader)
        for _ in zip(range(60), iterator, strict=False):
            pass
        placement = placement_of(loader.ledger)
        assert placement.max_threads == 1
    inside: list[int] = []
    most: list[int] = []

    def counted() -> None:
        inside.append(1)
        most.append(len(inside))
        in_python()
        inside.pop()

    loader.dataset.work = counted  # type: ignore[attr-defined]
    for _ in loader:  # the next epoch knows it from the beginning
        pass
    loader.close()
    assert max(most) == 1


def test_what_comes_is_the_same_as_unmeasured() -> None:
    def order() -> torch.Generator:
        return torch.Generator().manual_seed(7)

    with loader_of(Made(drawing), shuffle=True, seed=7, generator=order()) as measured:
        found = [batch.tolist() for batch in measured]
        assert placement_of(measured.ledger).num_measurements == 1
    with loader_of(Made(drawing), shuffle=True, seed=7, generator=order(), worker_method="thread") as other:
        assert [batch.tolist() for batch in other] == found


def test_it_is_measured_once_and_not_again() -> None:
    with loader_of(Made(waiting)) as loader:
        placement = made(loader)
        choice, kept = placement.choice, placement.kept_seconds
        assert choice is not None
        made(loader)
        assert (placement.num_measurements, placement.choice, placement.kept_seconds) == (1, choice, kept)
    assert kept <= measuring.MOST_SECONDS + 0.5  # of which a beat on a busy machine may be the last


def test_nobody_listens_any_more_when_it_is_over() -> None:
    with loader_of(Made(waiting), persistent_workers=True) as loader:
        made(loader)
        assert loader.ledger.probes.now is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_workers": 0},
        {"worker_method": "thread"},
        {"stages": [Stage(python_stage, concurrency=2)], "is_async": True},
    ],
    ids=["inline", "explicit", "nothing to place"],
)
def test_nothing_is_measured_where_nothing_could_change(arguments: dict[str, Any]) -> None:
    dataset: Any = Gives() if arguments.pop("is_async", False) else Made(waiting, 8)
    with loader_of(dataset, **arguments) as loader:
        placement = made(loader)
    assert (placement.num_measurements, placement.num_holds, placement.kept_seconds) == (0, 0, 0.0)


class Gives(Dataset[Any]):
    """A dataset whose own stages are coroutines: an event loop's."""

    def __len__(self) -> int:
        return 8

    async def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.zeros(3) for _ in indices]

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(3)


def test_without_a_gil_nothing_is_measured(monkeypatch: Any) -> None:
    monkeypatch.setattr(placing, "has_gil", lambda: False)
    with loader_of(Made(waiting, 8)) as loader:
        assert made(loader).num_measurements == 0


def test_in_the_users_executor_a_stage_is_not_placed() -> None:
    with (
        ThreadPoolExecutor(2) as pool,
        loader_of(Made(waiting, 8), stages=[Stage(python_stage, executor=pool)]) as loader,
    ):
        parts, elsewhere = parts_of(Line(loader.dataset, loader.stages), is_batched=True)
    assert [part.labels for part in parts] == [("fetch",)]
    assert elsewhere == ("python_stage",)


class Lanes(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_lanes_are_not_measured() -> None:
    with loader_of(Lanes()) as loader:
        assert made(loader).num_measurements == 0


@pytest.mark.timing
def test_nobody_is_held_for_what_is_made_in_no_time() -> None:
    with loader_of(Made(lambda: None, 2000), batch_size=16) as loader:
        placement = made(loader)
    assert placement.choice is None
    assert placement.num_beats < 100  # a busy machine makes some


def test_samples_that_wait_for_other_threads_are_made() -> None:
    """One thread alone works at first, but not for ever."""
    barrier = threading.Barrier(2)
    with loader_of(Made(lambda: barrier.wait(20), 8), isolation="shared") as loader:
        assert len(list(loader)) == 2


def test_an_iterator_that_is_dropped_leaves_the_rest_to_the_next_one() -> None:
    with loader_of(Made(waiting)) as loader:
        next(iter(loader))
        loader._iterator = None
        placement = made(loader)
        assert placement.choice is not None
        assert loader.ledger.probes.now is None


def test_an_error_in_the_first_samples_comes_in_its_place() -> None:
    def fails() -> None:
        raise KeyError("no such sample")

    with loader_of(Made(fails, 8)) as loader, pytest.raises(KeyError, match="no such sample"):
        next(iter(loader))


def test_processes_are_wanted_when_they_pay_and_not_before() -> None:
    scene = Scene((Unit((Seen("fetch", 5e-3, 5e-3, 5e-3, 30),)),), 2, 2, 32)
    placement = Placement()
    placement.scene, placement.choice = scene, choice_of(scene)
    placement.handed_out(1, num_left=1)
    assert placement.moves is None
    placement.handed_out(1, num_left=10**9)
    assert placement.moves is placement.choice


@pytest.mark.timing
def test_processes_that_are_refused_are_said_once_with_what_to_change(monkeypatch: Any) -> None:
    monkeypatch.setattr(placing, "usable_cores", lambda: 2)
    with loader_of(Made(in_python)) as loader:
        placement = made(loader)
        assert placement.choice is not None
        assert placement.choice.wants_processes
        with pytest.warns(
            UserWarning, match=r"fetch would be faster in processes.*dataset.fn is a lambda.*Change that"
        ):
            placement.refused("dataset.fn is a lambda")
        placement.refused("dataset.fn is a lambda")  # a second time it is known
        assert not placement.choice.wants_processes
        assert placement.choice.units[0].max_threads == 1
