"""Placements: wherever stages run, the batches are DataLoader's over the dataset whose item is h(g(f(ds[i])))."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.utils.data import DataLoader

from tests.parity.compare import assert_same
from tests.stages.placing import FUNCTIONS, Composed, Numbers, Places
from torchstage import Stage, StageLoader

LENGTH = 21

ONE_PLACE = ["t", "1", "3", "a", "a1", "x", "x1", "p", "p2"]
NEIGHBOURS = [f"{word} {word} {word}" for word in ("t", "2", "a", "a2", "x", "x1", "p")]
MIXTURES = [
    "a t t", "t a t", "t t a", "a 2 t", "2 a t", "2 3 t", "t 2 t", "2 t 2", "x x t", "x t x", "t x t", "x y x", "p p t",
    "p t p", "t p a", "a p x", "a x a", "x a 2", "p x a", "1 a1 x1", "a a1 a", "x x1 x",
]  # fmt: skip


def expected(num_stages: int, length: int = LENGTH, **arguments: Any) -> list[Any]:
    torch.manual_seed(0)
    return list(DataLoader(Composed(Numbers(length), FUNCTIONS[:num_stages]), **arguments))


def got(places: Places, words: str, length: int = LENGTH, **arguments: Any) -> list[Any]:
    torch.manual_seed(0)
    stages = places.stages(FUNCTIONS, words)
    with StageLoader(Numbers(length), stages=stages, **arguments) as loader:
        return list(loader)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("words", [*ONE_PLACE, *NEIGHBOURS, *MIXTURES])
def test_the_batches_are_dataloaders(words, num_workers, everywhere):
    arguments = {"batch_size": 4, "shuffle": True}
    batches = got(everywhere, words, num_workers=num_workers, **arguments)
    assert_same(batches, expected(len(words.split()), **arguments))


@pytest.mark.parametrize("words", ["t", "2", "a", "x", "p", "a 2 x", "x t a"])
@pytest.mark.parametrize(("batch_size", "drop_last"), [(1, False), (1, True), (8, False), (8, True), (None, False)])
def test_whatever_the_batches_are(batch_size, drop_last, words, everywhere):
    arguments = {"batch_size": batch_size, "drop_last": drop_last}
    assert_same(got(everywhere, words, num_workers=2, **arguments), expected(len(words.split()), **arguments))


@pytest.mark.parametrize("words", ["t", "2", "a", "x", "a 2 x"])
def test_out_of_order_the_same_batches_come(words, everywhere):
    arguments = {"batch_size": 4, "shuffle": True}
    batches = got(everywhere, words, num_workers=3, in_order=False, **arguments)
    assert sorted(map(repr, batches)) == sorted(map(repr, expected(len(words.split()), **arguments)))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(st.sampled_from(["t", "1", "2", "a", "a1", "x", "x1", "y", "p"]), min_size=0, max_size=3),
    length=st.integers(1, 30),
    batch_size=st.one_of(st.none(), st.integers(1, 9)),
    num_workers=st.integers(0, 4),
    prefetch_factor=st.integers(1, 4),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    prefetch_bytes=st.one_of(st.none(), st.integers(1, 2000)),
    device=st.sampled_from([None, "cpu"]),
    isolation=st.sampled_from(["auto", "shared", "serial"]),
)
def test_any_combination(everywhere, words, length, batch_size, num_workers, prefetch_factor, drop_last, **others):
    arguments: dict[str, Any] = {"batch_size": batch_size, "shuffle": others.pop("shuffle")}
    if batch_size is not None:
        arguments["drop_last"] = drop_last
    if num_workers:
        others["prefetch_factor"] = prefetch_factor
    batches = got(everywhere, " ".join(words), length, num_workers=num_workers, **arguments, **others)
    assert_same(batches, expected(len(words), length, **arguments))


@pytest.mark.parametrize("words", ["t", "2 a x", "p t"])
def test_an_epoch_is_like_the_next_with_threads_that_are_kept(words, everywhere):
    stages = everywhere.stages(FUNCTIONS, words)
    with StageLoader(Numbers(LENGTH), stages=stages, batch_size=4, num_workers=2, persistent_workers=True) as loader:
        for _ in range(3):
            assert_same(list(loader), expected(len(words.split()), batch_size=4))


def test_stages_that_are_set_later_count_from_the_next_epoch(somewhere):
    with StageLoader(Numbers(LENGTH), batch_size=4, num_workers=2, persistent_workers=True) as loader:
        for words in ("", "2", "2 a", "x x t", "t", "a a a"):
            loader.stages = tuple(somewhere.stages(FUNCTIONS, words))
            assert_same(list(loader), expected(len(words.split()), batch_size=4))


@pytest.mark.parametrize("words", ["t", "2", "a", "x", "2 a x"])
def test_an_empty_batch_reaches_collate_as_in_torch(words, somewhere):
    batches = [[1, 2], [], [3]]
    arguments = {"batch_sampler": batches, "collate_fn": list}
    with StageLoader(Numbers(9), num_workers=2, stages=somewhere.stages(FUNCTIONS, words), **arguments) as loader:
        assert_same(list(loader), list(DataLoader(Composed(Numbers(9), FUNCTIONS[: len(words.split())]), **arguments)))


@pytest.mark.parametrize("words", ["t", "2", "a", "x", "x a 2"])
def test_none_is_a_value_like_any_other(words, somewhere):
    def nothing(value: Any) -> None:
        return None

    stages = somewhere.stages([nothing, nothing, nothing], words)
    with StageLoader(Numbers(5), batch_size=2, num_workers=2, collate_fn=list, stages=stages) as loader:
        assert list(loader) == [[None, None], [None, None], [None]]


def test_one_executor_with_one_thread_serves_stages_apart(somewhere):
    """It must not wait for itself."""
    with ThreadPoolExecutor(1) as executor:
        stages = [Stage(FUNCTIONS[0], executor=executor), Stage(FUNCTIONS[1]), Stage(FUNCTIONS[2], executor=executor)]
        with StageLoader(Numbers(LENGTH), stages=stages, batch_size=4, num_workers=2) as loader:
            assert_same(list(loader), expected(3, batch_size=4))
