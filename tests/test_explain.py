"""Explain: the table of where each stage runs and why; before anything was measured, too."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from torchstage import Stage, StageLoader
from torchstage.line import Line
from torchstage.placement import explain
from torchstage.placement.choice import choice_of
from torchstage.placement.measuring import Measured
from torchstage.placement.model import Scene, Seen, Unit
from torchstage.placement.parts import Asked, parts_of
from torchstage.placement.placement import placement_of


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


class Lanes(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def tokenize(value: torch.Tensor) -> torch.Tensor:
    return value


async def ask(value: torch.Tensor) -> torch.Tensor:
    return value


def shown(**arguments: Any) -> str:
    return str(explain.explained(StageLoader(Numbers(), **arguments)))


def test_before_anything_was_measured_it_says_so() -> None:
    explanation = explain.explained(StageLoader(Numbers(), num_workers=2, stages=[Stage(tokenize)]))
    assert not explanation.is_measured
    assert [stage.name for stage in explanation.stages] == ["fetch", "tokenize"]
    assert {stage.choice for stage in explanation.stages} == {"thread"}
    assert "Not measured yet" in str(explanation)


def test_inline_explicit_and_iterable_loaders_say_why_nothing_is_measured() -> None:
    assert "num_workers=0" in shown()
    assert "inline" in shown()
    assert "worker_method='thread': as you said" in shown(num_workers=2, worker_method="thread")
    assert "process" in shown(num_workers=2, worker_method="multiprocessing")
    assert "multiprocessing_context is set" in shown(num_workers=2, multiprocessing_context="spawn")
    assert "lane" in str(explain.explained(StageLoader(Lanes(), num_workers=2)))
    assert "num_workers=0" in str(explain.explained(StageLoader(Lanes())))
    asked = explain.explained(StageLoader(Lanes(), num_workers=2, worker_method="multiprocessing"))
    assert [stage.choice for stage in asked.stages] == ["process"]
    assert "torch's own worker processes" in asked.summary
    assert "lane" not in str(asked)


def test_without_a_gil_it_says_that_threads_are_all_it_takes(monkeypatch: Any) -> None:
    monkeypatch.setattr(explain, "has_gil", lambda: False)
    assert "no GIL" in shown(num_workers=2)


def test_stages_that_are_not_placed_say_where_they_run() -> None:
    stages = [Stage(ask), Stage(tokenize, concurrency=2)]
    rows = {row.name: row for row in explain.explained(StageLoader(Numbers(), num_workers=2, stages=stages)).stages}
    assert (rows["ask"].choice, rows["ask"].reason) == ("event loop", "its function is async")
    assert (rows["tokenize"].choice, rows["tokenize"].reason) == ("thread", "as you said")


def chosen(why_not: str | None = None) -> StageLoader[Any]:
    """A loader of which 5 ms of Python after 6 ms of decoding were measured."""
    loader = StageLoader(Numbers(), num_workers=4, stages=[Stage(tokenize)])
    placement = placement_of(loader.ledger)
    units = (
        Unit((Seen("fetch", 6e-3, 6e-3, 0.5e-3, 40),)),
        Unit((Seen("tokenize", 5e-3, 5e-3, 5e-3, 40),), number=0),
    )
    placement.scene = Scene(units, 4, 4, 8, Seen("collate", 1e-5, 1e-5, None), why_not=why_not)
    placement.measured = Measured({}, 0.0, 1.0, 60, 0.25)
    placement.choice, placement.why_not = choice_of(placement.scene), why_not
    return loader


def test_what_was_measured_and_chosen_stands_in_the_table() -> None:
    explanation = explain.explained(chosen())
    rows = {row.name: row for row in explanation.stages}
    assert explanation.is_measured
    assert rows["tokenize"].choice == "process"
    assert rows["tokenize"].share_without_gil == 0.0
    assert rows["fetch"].share_without_gil == pytest.approx(1 - 0.5 / 6)
    assert rows["collate"].reason
    text = str(explanation)
    assert "4 threads  4 processes" in text
    assert "Measured in 0.25 s (60 beats) on 4 cores." in text
    assert "until they pay their start" in text
    assert "Choice: processes. " in text


def test_processes_that_cannot_be_used_leave_one_thread_in_the_table() -> None:
    text = str(explain.explained(chosen("dataset.fn is a lambda")))
    assert "thread (at most 1)" in text
    assert "processes cannot be used: dataset.fn is a lambda" in text


def test_a_record_is_frozen() -> None:
    explanation = explain.explained(chosen())
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanation.summary = ""  # type: ignore[misc]


def test_asking_starts_nothing() -> None:
    loader = StageLoader(Numbers(), num_workers=2)
    explain.explained(loader)
    assert not loader._pools


def test_the_datasets_stages_are_one_unit_and_the_users_are_one_each() -> None:
    parts, elsewhere = parts_of(Line(Numbers(), [Stage(tokenize), Stage(tokenize)]), is_batched=True)
    assert [(part.labels, part.number) for part in parts] == [
        (("fetch",), None),
        (("tokenize",), 0),
        (("tokenize-2",), 1),
    ]
    assert not elsewhere
    assert Asked.of(StageLoader(Numbers(), batch_size=4, num_workers=2)).batch_size == 4
