"""Error places: an error says where it was raised: stage, dataset index, batch, and the user's own line."""

import traceback
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from .compare import story
from .datasets import Bulk, Indices, Made, as_given
from .faults import IN_LOADER, IN_SAMPLERS, PLACES, Fault, pretend_accelerator
from .ways import (
    ONE_THREAD,
    STAGED,
    STAGED_INLINE,
    THREADED,
    TWO_THREADS,
    on,
    on_both,
    on_staged,
    on_threads,
    on_workers,
)

WHERE = {
    "dataset": ("stage 'fetch'", "dataset index 7", "batch 3"),
    "bulk": ("stage 'fetch'", "dataset index [6, 7]", "batch 3"),
    "collate": ("stage 'collate'", "batch 3"),
    "pinning": ("stage 'pin_memory'", "batch 3"),
    "sampler": ("stage 'sampler'", "batch 3"),
    "batch sampler": ("stage 'sampler'", "batch 3"),
}
USER_LINES = {
    "dataset": "in __getitem__\n    self.fault.raise_in(index // BATCH_SIZE)",
    "bulk": "in __getitems__\n    self.fault.raise_in(indices[0] // BATCH_SIZE)",
    "collate": "in faulty_collate\n    fault.raise_in(samples[0] // BATCH_SIZE)",
    "pinning": "in pin_memory\n    self.fault.raise_in(self.samples[0] // BATCH_SIZE)",
    "sampler": "in __next__\n    self.fault.raise_in(self.number)",
    "batch sampler": "in __next__\n    self.fault.raise_in(self.number)",
}


@pytest.fixture(autouse=True)
def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)


def notes_of(error: Any) -> list[str]:
    return [note for note in getattr(error, "__notes__", []) if note.startswith("torchstage: ")]


@pytest.mark.parametrize("place", IN_LOADER)
@on_staged
def test_a_note_names_stage_index_and_batch(make_loader: Any, place: str) -> None:
    error = ValueError("three")
    story(make_loader(**PLACES[place](Fault({3: error}))))
    (note,) = notes_of(error)
    assert [words for words in WHERE[place] if words not in note] == []


@pytest.mark.parametrize("place", IN_SAMPLERS)
@on_threads
def test_a_note_names_the_sampler_and_the_batch(make_loader: Any, place: str) -> None:
    error = ValueError("three")
    story(make_loader(**PLACES[place](Fault({3: error}))))
    (note,) = notes_of(error)
    assert [words for words in WHERE[place] if words not in note] == []


@pytest.mark.parametrize("place", PLACES)
@on_both
def test_the_traceback_shows_the_user_s_line(make_loader: Any, place: str) -> None:
    error = ValueError("three")
    story(make_loader(**PLACES[place](Fault({3: error}))))
    assert USER_LINES[place] in "".join(traceback.format_exception(error))


@on_workers
def test_the_words_of_a_printed_traceback_name_the_user_s_line(make_loader: Any) -> None:
    error = story(make_loader(**PLACES["dataset"](Fault({3: ValueError("three")}))))[3]
    assert "self.fault.raise_in(index // BATCH_SIZE)" in "".join(traceback.format_exception(error))


@on_staged
def test_an_exception_that_forbids_to_set_attributes_gets_its_note_too(make_loader: Any) -> None:
    @dataclass(frozen=True)
    class FrozenError(Exception):
        code: int

    error = FrozenError(7)
    story(make_loader(**PLACES["dataset"](Fault({3: error}))))
    (note,) = notes_of(error)
    assert "dataset index 7, batch 3" in note


@on_threads
def test_an_error_that_is_raised_in_each_epoch_gets_one_note(make_loader: Any) -> None:
    error = ValueError("always the same")
    loader = make_loader(**PLACES["dataset"](Fault({3: error})))
    for _ in range(3):
        story(loader)
    assert len(notes_of(error)) == 1


@on_staged
def test_an_exception_keeps_its_cause_its_context_and_its_notes(make_loader: Any) -> None:
    def make(index: int) -> int:
        try:
            raise KeyError("the first")
        except KeyError as error:
            if index == 1:
                raise RuntimeError("the second") from error
            second = ValueError("the third")
            second.add_note("the user's own note")
            raise second  # noqa: B904 - its context is what is tested

    caused, in_context = story(make_loader(Made(2, make), batch_size=None, sampler=[1, 0]))
    assert repr(caused.__cause__) == repr(in_context.__context__) == "KeyError('the first')"
    assert in_context.__cause__ is None
    assert in_context.__notes__[0] == "the user's own note"
    assert len(notes_of(in_context)) == 1


@on_staged
def test_the_index_is_the_sampler_s(make_loader: Any) -> None:
    def fail(index: Any) -> Any:
        raise ValueError(index)

    errors = story(make_loader(Made(9, fail), sampler=[5, 3, 8], batch_size=None))
    assert [f"dataset index {index}, batch {n}" in notes_of(errors[n])[0] for n, index in enumerate([5, 3, 8])] == [
        True
    ] * 3
    (error,) = story(make_loader({"a": 1}, sampler=["a", "cat"], batch_size=2))
    assert "dataset index 'cat'" in notes_of(error)[0]


@on_staged
def test_a_file_is_named_where_the_dataset_knows_it(make_loader: Any) -> None:
    """torchvision's folders keep ``samples``; a subset has its own numbers."""

    class Folder(Indices):
        def __init__(self) -> None:
            super().__init__(4)
            self.samples = [(f"cat/{number}.jpg", 0) for number in range(4)]

        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise OSError("truncated")
            return index

    *_, error, _ = story(make_loader(Folder(), batch_size=None))
    assert "dataset index 2 (cat/2.jpg)" in notes_of(error)[0]
    errors = [e for e in story(make_loader(Subset(Folder(), [3, 2]), batch_size=None)) if isinstance(e, Exception)]
    assert "dataset index 1 (cat/2.jpg)" in notes_of(errors[0])[0]


@on_staged
def test_samples_that_do_not_fit_together_are_named(make_loader: Any) -> None:
    def make(index: int) -> dict[str, Any]:
        return {"image": torch.zeros(3, 5 if index == 6 else 4), "label": index}

    *_, error = story(make_loader(Made(8, make), sampler=[0, 1, 2, 3, 4, 5, 6, 7], batch_size=4))
    assert type(error) is RuntimeError
    assert str(error).startswith("stack expects each tensor to be equal size")
    words = "\n".join(error.__notes__)
    for part in ("['image']", "dataset index 6", "(3, 5)", "(3, 4)", "batch 1"):
        assert part in words


@on(STAGED_INLINE, ONE_THREAD, TWO_THREADS)
def test_a_sample_of_bulk_is_named_by_its_place_in_the_batch(make_loader: Any) -> None:
    class Uneven(Bulk):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [torch.zeros(index // 3 + 1) for index in indices]

    *_, error = story(make_loader(Uneven(4), batch_size=4))
    assert "dataset index 3" in "\n".join(error.__notes__)


@on(*STAGED)
def test_a_user_s_collate_function_is_not_second_guessed(make_loader: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        raise ValueError("mine")

    (error,) = story(make_loader([[1], [1, 2]], batch_size=2, collate_fn=collate))
    assert len(error.__notes__) == 1


@on(*THREADED)
def test_an_error_names_its_batch_when_batches_come_in_any_order(make_loader: Any) -> None:
    error = ValueError("five")
    arguments = {**PLACES["dataset"](Fault({5: error})), "in_order": False, "collate_fn": as_given}
    assert error in story(make_loader(**arguments))
    assert "dataset index 11, batch 5" in notes_of(error)[0]
