"""Pinning: every batch is pinned once, by torch's own rules, where there is an accelerator; else it stays as it is."""

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.data._utils.pin_memory as torch_pinning

from .datasets import Indices, Made, as_given
from .faults import pretend_accelerator
from .ways import lists, on_both


class Pinnable:
    """A user's own type: pinning makes another of it."""

    def __init__(self, value: Any, is_pinned: bool = False) -> None:
        self.value, self.is_pinned = value, is_pinned

    def pin_memory(self) -> "Pinnable":
        assert not self.is_pinned, "pinned twice"
        return Pinnable(self.value, True)


PINNED_TUPLE = type(torch_pinning.pin_memory((), None))  # torch 2.9 makes a list of it


class Pair(NamedTuple):
    one: Any
    other: Any


def make_pinnable(samples: list[int]) -> Pinnable:
    return Pinnable(samples)


@on_both
def test_a_batch_of_a_user_s_type_is_pinned_once(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)
    loader = make_loader(Indices(5), batch_size=2, collate_fn=make_pinnable, pin_memory=True)
    for _ in range(2):
        assert [(batch.value, batch.is_pinned) for batch in loader] == [([0, 1], True), ([2, 3], True), ([4], True)]


@on_both
def test_everything_in_a_batch_is_pinned_and_keeps_its_type(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)

    def make(index: int) -> Any:
        p = Pinnable(index)
        return OrderedDict(list=[p, [p]], tuple=(p,), pair=Pair(p, "word"), word=b"word", number=index)

    for number, batch in enumerate(make_loader(Made(3, make), batch_size=None, collate_fn=as_given, pin_memory=True)):
        assert type(batch) is OrderedDict
        assert (batch["word"], batch["number"], batch["pair"].other) == (b"word", number, "word")
        assert [type(batch[name]) for name in ("list", "tuple", "pair")] == [list, PINNED_TUPLE, Pair]
        pinned = [batch["list"][0], batch["list"][1][0], batch["tuple"][0], batch["pair"].one]
        assert [p.is_pinned for p in pinned] == [True] * 4
    assert number == 2


@on_both
def test_without_pinning_nothing_is_pinned(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)
    assert not any(batch.is_pinned for batch in make_loader(Indices(5), collate_fn=make_pinnable))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
@on_both
def test_without_an_accelerator_nothing_is_pinned(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    loader = make_loader(Indices(5), collate_fn=make_pinnable, pin_memory=True)
    assert not any(batch.is_pinned for batch in loader)
    assert lists(make_loader(Indices(3), pin_memory=True)) == [[0], [1], [2]]


@on_both
def test_pinning_begins_with_the_next_epoch(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)
    loader = make_loader(Indices(3), collate_fn=make_pinnable)
    assert [batch.is_pinned for batch in loader] == [False] * 3
    loader.pin_memory = True
    assert [batch.is_pinned for batch in loader] == [True] * 3


@on_both
def test_batches_are_pinned_in_order_whichever_is_done_first(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)
    second_is_pinned = threading.Event()

    class Late(Pinnable):
        def pin_memory(self) -> Pinnable:
            if self.value == [1] and make_loader.num_workers == 4:
                assert second_is_pinned.wait(60)
            if self.value == [2]:
                second_is_pinned.set()
            return super().pin_memory()

    loader = make_loader(Indices(4), collate_fn=Late, pin_memory=True)
    assert [batch.value for batch in loader] == [[0], [1], [2], [3]]


@pytest.mark.cuda
@on_both
def test_tensors_are_pinned_on_a_device(make_loader: Any) -> None:
    dataset = Made(5, lambda i: {"image": torch.full((3,), i), "label": i, "name": str(i)})
    for batch in make_loader(dataset, batch_size=2, pin_memory=True):
        assert batch["image"].is_pinned()
        assert batch["label"].is_pinned()
        assert batch["image"][:, 0].tolist() == batch["label"].tolist() == [int(name) for name in batch["name"]]
