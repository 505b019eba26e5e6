"""Random arguments: whatever hypothesis thinks of, StageLoader's batches are those of torch's own inline loop."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torchstage import StageLoader

from .compare import assert_same, story
from .datasets import Bulk, Indices, Made

pytestmark = pytest.mark.fuzz

CLOSED, ENDED = -1, -2  # in place of an iterator's position

# The fixture that watches for leaks may run once for all examples: it looks at the whole test.
settings_here = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def make_sample(index: int) -> dict[str, Any]:
    return {"index": index, "name": str(index), "pair": (torch.full((2,), index), [index / 2])}


@dataclass
class Case:
    """Arguments that both loaders take, arguments of workers, and after how many batches each epoch is left."""

    dataset: Any
    arguments: dict[str, Any]
    seed: int
    generator_seed: int | None
    workers: dict[str, Any]
    lengths: list[int | None] = field(default_factory=list)

    def epochs(self, loader_class: type[DataLoader], workers: dict[str, Any]) -> list[list[Any]]:
        """Batches and errors of each epoch, up to where it is left."""
        torch.manual_seed(self.seed)
        generator = None if self.generator_seed is None else torch.Generator().manual_seed(self.generator_seed)
        loader = loader_class(self.dataset, generator=generator, **self.arguments, **workers)
        return [list(itertools.islice(loader, length)) for length in self.lengths]


@st.composite
def batchings(draw: st.DrawFn, length: int) -> dict[str, Any]:
    """batch_size, a batch sampler, or neither; with an order."""
    if draw(st.booleans()) and length:
        batches = st.lists(st.lists(st.integers(0, length - 1), min_size=1, max_size=7), max_size=9)
        return {"batch_sampler": draw(batches)}
    arguments: dict[str, Any] = {"batch_size": draw(st.none() | st.integers(1, 9) | st.just(length + 1))}
    if arguments["batch_size"] is not None:
        arguments["drop_last"] = draw(st.booleans())
    order = draw(st.sampled_from(["in order", "shuffled", "a sampler's"])) if length else "in order"
    if order == "shuffled":
        arguments["shuffle"] = True
    elif order == "a sampler's":
        arguments["sampler"] = draw(st.lists(st.integers(0, length - 1), max_size=40))
    return arguments


@st.composite
def cases(draw: st.DrawFn) -> Case:
    length = draw(st.integers(0, 40))
    num_workers = draw(st.integers(0, 4))
    workers: dict[str, Any] = {"num_workers": num_workers}
    if num_workers:
        workers["prefetch_factor"] = draw(st.none() | st.integers(1, 6))
        workers["persistent_workers"] = draw(st.booleans())
        workers["timeout"] = draw(st.sampled_from([0, 60]))
    return Case(
        dataset=draw(st.sampled_from([Indices(length), Bulk(length), Made(length, make_sample), [*range(length)]])),
        arguments=draw(batchings(length)),
        seed=draw(st.integers(0, 2**32)),
        generator_seed=draw(st.none() | st.integers(0, 2**32)),
        workers=workers,
        lengths=draw(st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=3)),
    )


@settings_here
@given(cases())
def test_batches_are_torch_s_for_any_arguments(case: Case) -> None:
    if case.workers.get("persistent_workers") and case.arguments.get("shuffle"):
        case.lengths = case.lengths[:1]  # kept workers draw one base seed, so the second order is another
    if case.arguments.get("shuffle") and case.generator_seed is not None:
        case.lengths = [*case.lengths[:1]]  # how far ahead the sampler is when an epoch is left decides what it drew
    assert_same(case.epochs(StageLoader, case.workers), case.epochs(DataLoader, {"num_workers": 0}))


@settings_here
@given(cases())
def test_batches_without_order_are_the_same(case: Case) -> None:
    case.lengths = [None]
    case.arguments["collate_fn"] = str
    workers = {**case.workers, "in_order": False}
    ours, torch_s = case.epochs(StageLoader, workers), case.epochs(DataLoader, {"num_workers": 0})
    assert sorted(ours[0]) == sorted(torch_s[0])


@settings_here
@given(cases(), st.sets(st.integers(0, 40), max_size=5))
def test_errors_are_torch_s_for_any_arguments(case: Case, broken: set[int]) -> None:
    def make(index: int) -> int:
        if index in broken:
            raise LookupError(index)
        return index

    def events(loader_class: type[DataLoader], workers: dict[str, Any]) -> list[str]:
        torch.manual_seed(case.seed)
        dataset = Made(len(case.dataset), make)
        return [repr(event) for event in story(loader_class(dataset, **case.arguments, **workers))]

    assert events(StageLoader, case.workers) == events(DataLoader, {"num_workers": 0})


@settings_here
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=4),
    st.integers(1, 5),
    st.lists(st.integers(0, 3), max_size=60),
)
def test_iterators_may_be_advanced_in_any_order(nums_workers: list[int], batch_size: int, turns: list[int]) -> None:
    """Several iterators of several loaders, each of which gives its batches in order however they are interleaved."""
    loaders = [StageLoader(Indices(17), batch_size, num_workers=number) for number in nums_workers]
    iterators = [iter(loader) for loader in loaders]
    got: list[list[Any]] = [[] for _ in iterators]
    for turn in [turn % len(iterators) for turn in turns]:
        got[turn] += itertools.islice(iterators[turn], 1)
    for batches, iterator in zip(got, iterators, strict=True):
        assert_same([*batches, *iterator], list(DataLoader(Indices(17), batch_size)))


@settings_here
@given(st.data())
def test_a_nested_sample_is_collated_as_torch_does(data: st.DataObject) -> None:
    leaf = st.sampled_from([int, float, str, lambda i: torch.full((2,), i)])
    shape = data.draw(
        st.recursive(
            leaf,
            lambda inner: (
                st.lists(inner, min_size=1, max_size=3)
                | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
            ),
            max_leaves=6,
        )
    )

    def fill(shape: Any, index: int) -> Any:
        if isinstance(shape, list):
            return [fill(inner, index) for inner in shape]
        if isinstance(shape, dict):
            return {key: fill(inner, index) for key, inner in shape.items()}
        return shape(index)

    batch_size, num_workers = data.draw(st.none() | st.integers(1, 5)), data.draw(st.integers(0, 4))
    dataset = Made(7, lambda index: fill(shape, index))
    ours = StageLoader(dataset, batch_size, num_workers=num_workers)
    assert_same(list(ours), list(DataLoader(dataset, batch_size)))


@settings_here
@given(
    st.integers(0, 4),
    st.booleans(),
    st.lists(st.sampled_from(["iter", "next", "drop", "close"]), max_size=40),
    st.data(),
)
def test_any_program_is_followed(num_workers: int, keep: bool, program: list[str], data: st.DataObject) -> None:
    """Iterators are made, advanced and dropped, and the loader is closed, in any order.

    The model: an iterator is a position. Kept workers have one iterator, which a new epoch sets back. Closing ends
    every iterator, unless it has come to its end.
    """
    length = 3
    loader = StageLoader(range(length), None, num_workers=num_workers, persistent_workers=keep and num_workers > 0)
    held: list[tuple[Any, list[int]]] = []  # an iterator, and its position in a list, for it changes
    for action in program:
        if action == "iter":
            iterator = iter(loader)
            known = next((entry for entry in held if entry[0] is iterator), None)
            if known is None:
                held.append((iterator, [0]))
            else:
                known[1][0] = 0
        elif action == "close":
            loader.close()
            for _, position in held:
                if position[0] != ENDED:  # inline: a known bug, test_epochs has it
                    position[0] = CLOSED
        elif held:
            which = data.draw(st.integers(0, len(held) - 1))
            if action == "drop":
                del held[which]
            else:
                advance(*held[which], length)


def advance(iterator: Any, position: list[int], length: int) -> None:
    if position[0] == CLOSED:
        with pytest.raises(RuntimeError, match="is closed"):
            next(iterator)
    elif position[0] in (length, ENDED):
        assert next(iterator, "the end") == "the end"
        position[0] = ENDED
    else:
        assert next(iterator) == position[0]
        position[0] += 1
