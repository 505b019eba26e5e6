"""Arguments: every combination is taken or refused as torch does, with torch's words, and gives torch's batches."""

import itertools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from torchstage import StageLoader

from .compare import assert_same, story
from .datasets import Counting, Indices, as_given
from .ways import INLINE, PROCESSES, STAGED_INLINE, TWO_THREADS, on, on_both, on_both_classes

GRID: dict[str, list[Any]] = {
    "dataset": [Indices(5), Counting(5)],
    "batch_size": [1, 2, None, 0],
    "shuffle": [None, False, True],
    "sampler": [None, [1, 2]],
    "batch_sampler": [None, [[1], [2]]],
    "num_workers": [-1, 0, 2],
    "drop_last": [False, True],
    "timeout": [-1, 0, 5],
    "prefetch_factor": [None, -1, 0, 3],
    "persistent_workers": [False, True],
    "multiprocessing_context": [None, "teleport"],
}
STORED = ("batch_size", "drop_last", "prefetch_factor", "timeout", "persistent_workers", "num_workers", "collate_fn")


def outcome(loader_class: type[DataLoader], arguments: dict[str, Any]) -> Any:
    """What came of the constructor: the error's type and words, or what the loader holds now."""
    try:
        loader = loader_class(**arguments)
    except Exception as error:
        return type(error), str(error)
    return [getattr(loader, name) for name in STORED], type(loader.sampler), type(loader.batch_sampler)


def combinations(grid: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))


@pytest.mark.parametrize("num_workers", GRID["num_workers"])
def test_every_combination_is_taken_or_refused_as_torch_does(num_workers: int) -> None:
    outcomes = set()
    for arguments in combinations({**GRID, "num_workers": [num_workers]}):
        ours, torch_s = outcome(StageLoader, arguments), outcome(DataLoader, arguments)
        assert ours == torch_s, arguments
        outcomes.add(str(ours))
    assert len(outcomes) >= (1 if num_workers < 0 else 10)  # the grid reaches many of torch's checks


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_workers": -1}, ValueError, "num_workers option should be non-negative"),
    ({"timeout": -1}, ValueError, "timeout option should be non-negative"),
    ({"prefetch_factor": 2}, ValueError, "prefetch_factor option could only be specified in multiprocessing"),
    ({"num_workers": 1, "prefetch_factor": -1}, ValueError, "prefetch_factor option should be non-negative"),
    ({"persistent_workers": True}, ValueError, "persistent_workers option needs num_workers > 0"),
    ({"sampler": [1], "shuffle": True}, ValueError, "sampler option is mutually exclusive with shuffle"),
    ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[1]], "shuffle": True}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[1]], "sampler": [1]}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_sampler": [[1]], "drop_last": True}, ValueError, "batch_sampler option is mutually exclusive"),
    ({"batch_size": None, "drop_last": True}, ValueError, "batch_size=None option disables auto-batching"),
    ({"batch_size": 0}, ValueError, "batch_size should be a positive integer value"),
    ({"batch_size": -3}, ValueError, "batch_size should be a positive integer value"),
    ({"batch_size": 2.5}, ValueError, "batch_size should be a positive integer value"),
    ({"batch_size": True}, ValueError, "batch_size should be a positive integer value"),
    ({"drop_last": "yes"}, ValueError, "drop_last should be a boolean value"),
    ({"multiprocessing_context": "fork"}, ValueError, "multiprocessing_context can only be used with"),
    ({"num_workers": 1, "multiprocessing_context": "teleport"}, ValueError, "multiprocessing_context option should"),
    ({"num_workers": 1, "multiprocessing_context": 7}, TypeError, "multiprocessing_context option should be a valid"),
    ({"dataset": Counting(3), "sampler": [1]}, ValueError, "DataLoader with IterableDataset: expected unspecified"),
    ({"dataset": Counting(3), "batch_sampler": [[1]]}, ValueError, "DataLoader with IterableDataset: expected"),
    ({"dataset": Counting(3), "shuffle": True}, ValueError, "DataLoader with IterableDataset: expected"),
    ({"num_workers": "two"}, TypeError, "'<' not supported between instances of 'str' and 'int'"),
]


@on_both_classes
def test_bad_arguments_are_refused_with_torch_s_words(loader_class: type[DataLoader]) -> None:
    for arguments, error_type, words in BAD:
        with pytest.raises(error_type) as caught:
            loader_class(**{"dataset": Indices(5), **arguments})
        assert str(caught.value).startswith(words), arguments


@on_both_classes
def test_a_timeout_needs_workers(loader_class: type[DataLoader]) -> None:
    """The constructor takes it; iter() does not."""
    loader = loader_class(Indices(5), timeout=3)
    with pytest.raises(AssertionError, match=r"timeout|^$"):  # torch 2.9 asserts it without a word
        iter(loader)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's half-made iterator
@on_both_classes
def test_prefetching_nothing_is_refused_by_iter(loader_class: type[DataLoader]) -> None:
    loader = loader_class(Indices(5), num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match=r"prefetch_factor must be greater than 0|^$"):
        iter(loader)


@on_both
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_sampler_that_cannot_be_iterated_fails_as_it_would_alone(make_loader: Any, batch_size: int | None) -> None:
    with pytest.raises(TypeError, match="'int' object is not iterable"):
        next(iter(make_loader(Indices(5), batch_size=batch_size, sampler=5)))


@on_both
def test_a_batch_that_cannot_be_iterated_is_an_error_in_its_place(make_loader: Any) -> None:
    first, error, last = story(make_loader(Indices(5), batch_sampler=[[1], 2, [3]]))
    assert (first.tolist(), last.tolist()) == ([1], [3])
    assert type(error) is TypeError
    assert str(error) == "'int' object is not iterable"


@on_both
def test_a_dataset_without_a_length_needs_a_sampler(make_loader: Any) -> None:
    with pytest.raises(TypeError, match=r"object of type 'type' has no len\(\)|has no len\(\)"):
        next(iter(make_loader(object())))


@on_both_classes
def test_an_unknown_isolation_is_refused_by_us_alone(loader_class: type[DataLoader]) -> None:
    error_type = ValueError if loader_class is StageLoader else TypeError
    with pytest.raises(error_type, match="isolation"):
        loader_class(Indices(5), isolation="splendid")


# Good ones ------------------------------------------------------------------------------------------------------------


BATCHINGS: dict[str, dict[str, Any]] = {
    "of 1": {"batch_size": 1},
    "of 3": {"batch_size": 3},
    "of 3, without the last": {"batch_size": 3, "drop_last": True},
    "of all": {"batch_size": 23},
    "of more than there are": {"batch_size": 99, "drop_last": True},
    "none": {"batch_size": None},
    "a batch sampler's": {"batch_sampler": [[3, 1], [], [4, 1, 5, 9, 2], [6]], "collate_fn": as_given},
}
ORDERS = [{}, {"shuffle": False}, {"shuffle": True}, {"sampler": [*range(22, 2, -2)]}]
THREADS: dict[str, list[Any]] = {
    "num_workers": [1, 4],
    "prefetch_factor": [None, 1, 5],
    "persistent_workers": [False, True],
}
EXTRAS = itertools.cycle(
    [{}, {"timeout": 60}, {"worker_init_fn": as_given}, {"isolation": "shared"}, {"isolation": "serial"}]
)


def epochs(loader_class: type[DataLoader], seed: int | None, **arguments: Any) -> list[Any]:
    torch.manual_seed(1)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    loader = loader_class(Indices(23), generator=generator, **arguments)
    return [list(loader) for _ in range(2)]


@pytest.mark.parametrize("batching", BATCHINGS.values(), ids=BATCHINGS)
def test_every_combination_that_torch_takes_gives_torch_s_batches(batching: dict[str, Any]) -> None:
    for order, seed in itertools.product(ORDERS, (None, 7)):
        if order and "batch_sampler" in batching:
            continue
        expected = epochs(DataLoader, seed, **batching, **order)
        for threads in combinations(THREADS):
            got = epochs(StageLoader, seed, **batching, **order, **threads, **next(EXTRAS))
            if threads["persistent_workers"] and order.get("shuffle"):  # one base seed less: another second epoch
                got, expected_here = got[:1], expected[:1]
            else:
                expected_here = expected
            assert_same(got, expected_here, f"{order} {seed} {threads}")


# Warnings -------------------------------------------------------------------------------------------------------------


def warned(loader_class: type[DataLoader], **arguments: Any) -> list[tuple[str, type[Warning], str]]:
    """What was said when the loader was made, and during each of two epochs."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python's, of forks
        loader = loader_class(Indices(4), **arguments)
        for moment in ("made", "first epoch", "second epoch"):
            if moment != "made":
                list(loader)
            said += [(moment, warning.category, str(warning.message)) for warning in caught]
            caught.clear()
    return said


def pretend_cores(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Where torch looks for them. 2.9 asks the system itself."""
    if hasattr(torch._utils, "cpu_count"):
        monkeypatch.setattr(torch._utils, "cpu_count", lambda: number)
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(number)), raising=False)


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


WARNED: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"pin_memory_device": "cuda"}, []),
    ({"pin_memory": True}, ["'pin_memory' argument is set as true but no accelerator is found"]),
    (
        {"pin_memory": True, "pin_memory_device": "cuda"},
        ["pin_memory_device is deprecated", "'pin_memory' argument is set as true but no accelerator is found"],
    ),
]


@pytest.mark.usefixtures("no_accelerator")
@on(INLINE, STAGED_INLINE, PROCESSES, TWO_THREADS)
def test_pinning_without_a_device_is_warned_of_in_each_epoch(make_loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cores(monkeypatch, 64)
    for arguments, words in WARNED:
        said = warned(make_loader.loader_class, num_workers=make_loader.num_workers, **arguments)
        expected = [(moment, start) for moment in ("first epoch", "second epoch") for start in words]
        assert [moment for moment, _, _ in said] == [moment for moment, _ in expected]
        assert {category for _, category, _ in said} <= {UserWarning}
        for (_, _, text), (_, start) in zip(said, expected, strict=True):
            assert text.startswith(start)


@pytest.mark.usefixtures("no_accelerator")
def test_warnings_have_torch_s_words() -> None:
    for arguments in ({"pin_memory": True}, {"pin_memory": True, "pin_memory_device": "xpu"}):
        assert warned(StageLoader, **arguments) == warned(DataLoader, **arguments)


def test_too_many_workers_are_warned_of_when_made_and_in_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cores(monkeypatch, 1)
    said = warned(StageLoader, num_workers=2)
    assert said == warned(DataLoader, num_workers=2)
    assert [moment for moment, _, _ in said] == ["made", "first epoch", "second epoch"]
    assert {category for _, category, _ in said} == {UserWarning}
