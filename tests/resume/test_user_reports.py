"""What users of other loaders reported, as tests. Costs are counted in calls and bytes, not in seconds."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from . import custom
from .runs import Plain, plain, reseed, through_torch


def new(length: int = 100, **arguments: Any) -> StageLoader[Any]:
    return StageLoader(Plain(length), **{"batch_size": 8, "shuffle": True, "num_workers": 2, "seed": 5, **arguments})


def epochs(loader: StageLoader[Any], count: int) -> list[list[Any]]:
    return [[plain(batch) for batch in loader] for _ in range(count)]


@pytest.mark.parametrize("moment", ["before the first batch", "between epochs", "after the last batch", "at the end"])
def test_the_epochs_after_a_resume_are_those_of_an_uninterrupted_run(moment: str) -> None:
    """UR-036: the epoch after a resume repeated the same data, or was lost."""
    reseed(1)
    expected = epochs(new(), 4)
    reseed(1)
    loader = new()
    seen = epochs(loader, 2)
    if moment == "before the first batch":
        iter(loader)
        state = loader.state_dict()
    elif moment == "between epochs":
        state = loader.state_dict()
    else:
        iterator = iter(loader)
        seen.append([plain(next(iterator)) for _ in range(len(loader))])
        if moment == "at the end":
            assert next(iterator, None) is None
        state = loader.state_dict()
    reseed(2)
    other = new()
    other.load_state_dict(through_torch(state))
    assert other.state_dict() == state
    assert seen + epochs(other, 4 - len(seen)) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_only_the_resumed_epoch_is_short(persistent: bool) -> None:
    """UR-037: with persistent workers all epochs after a resume had only what was left of the interrupted one."""
    reseed(1)
    expected = epochs(new(persistent_workers=persistent), 4)
    reseed(1)
    loader = new(persistent_workers=persistent)
    iterator = iter(loader)
    seen = [plain(next(iterator)) for _ in range(len(loader) - 3)]
    state = loader.state_dict()
    loader.close()
    reseed(2)
    with new(persistent_workers=persistent) as other:
        other.load_state_dict(through_torch(state))
        rest = epochs(other, 4)
    assert [len(batches) for batches in rest] == [3, 13, 13, 13]
    assert [seen + rest[0], *rest[1:]] == expected


class Counted(Sampler[int]):
    """A sampler with a state. ``counts``: what was asked of all of its kind."""

    counts: Counter[str]

    def __init__(self, length: int, counts: Counter[str]) -> None:
        self.length, self.counts, self.at = length, counts, 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.counts["index"] += 1
            self.at += 1
            yield self.length - self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_asks_the_dataset_for_nothing_that_was_skipped(num_workers: int) -> None:
    """UR-039: the loader was replayed to skip batches, for hours."""
    length = 400_000
    loader = new(length, batch_size=1000, num_workers=0)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    # What it would be 390 batches later, but for the samples themselves.
    order = torch.randperm(length, generator=_generator_of(state)).tolist()
    state = {**state, "position": 390_000, "last_index": order[389_999]}
    other = new(length, batch_size=1000, num_workers=num_workers)
    other.load_state_dict(state)
    assert plain(next(iter(other))) == order[390_000:391_000]
    assert set(other.dataset.asked) <= set(order[390_000:])  # type: ignore[attr-defined]


def _generator_of(state: dict[str, Any]) -> torch.Generator:
    """As torch's RandomSampler makes it of the process's generator."""
    import base64

    words = bytearray(base64.b64decode(state["generators"]["torch"]))
    process = torch.Generator()
    process.set_state(torch.frombuffer(words, dtype=torch.uint8))
    return torch.Generator().manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=process)))


def test_a_sampler_with_a_state_is_not_replayed() -> None:
    """UR-039: at most 32 batches are."""
    counts: Counter[str] = Counter()
    loader = new(100_000, shuffle=None, sampler=Counted(100_000, counts), batch_size=10, num_workers=0, seed=None)
    iterator = iter(loader)
    for _ in range(9_000):
        batch = next(iterator)
    state = loader.state_dict()
    counts.clear()
    other = new(100_000, shuffle=None, sampler=Counted(100_000, counts), batch_size=10, num_workers=0, seed=None)
    other.load_state_dict(state)
    assert plain(next(iter(other)))[0] == plain(batch)[-1] - 1
    assert counts["index"] <= 33 * 10


def test_an_elastic_sampler_starts_anywhere_with_no_list_of_what_was_before() -> None:
    """UR-039: a billion samples, of which nearly all were handed out."""
    length = 1_000_000_000
    dataset = Plain(length)
    loader = StageLoader(dataset, 4, sampler=ElasticSampler(dataset, 1, 0))
    next(iter(loader))
    state = {**loader.state_dict(), "position": length - 6}
    other = StageLoader(Plain(length), 4, sampler=ElasticSampler(dataset, 1, 0), num_workers=2)
    other.load_state_dict(state)
    assert [len(batch) for batch in other] == [4, 2]


@pytest.mark.parametrize("sampler", [None, "stateful", "own"])
def test_a_state_is_small_and_tells_what_was_handed_out(sampler: str | None) -> None:
    """UR-040: a full snapshot at each step."""
    of = {"stateful": custom.Stateful, "own": lambda: custom.Own("numpy of old", at_once=True)}
    arguments: dict[str, Any] = {} if sampler is None else {"shuffle": None, "sampler": of[sampler]()}
    loader = new(11, batch_size=1, **arguments)
    sizes = []
    for number, _ in enumerate(loader):
        state = loader.state_dict()
        sizes.append(len(json.dumps(state)))
        assert state["position"] == (number + 1) % 11
    assert max(sizes) - min(sizes[:-1]) < 100 or sizes[-1] == max(sizes)
    assert max(sizes) < 64 * 1024


class Asked(Counted):
    def state_dict(self) -> dict[str, Any]:
        self.counts["state"] += 1
        return super().state_dict()


def test_a_sampler_s_state_is_asked_for_every_32_batches_however_often_the_loader_s_is() -> None:
    """UR-040: two seconds a step."""
    counts: Counter[str] = Counter()
    loader = new(3200, shuffle=None, sampler=Asked(3200, counts), batch_size=10, num_workers=0)
    for _ in loader:
        loader.state_dict()
    assert counts["state"] <= 320 // 32 + 3
