"""Lanes in general: whatever the shards, batches, errors and epochs, what comes is what a plain account of torch's
workers says."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.compare import story
from parity.faults import pretend_accelerator
from parity.test_pinning import Pinnable, make_pinnable
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import StageLoader

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

Shard = list[bool]  # the samples of one lane: whether reading each of them raises


class Reader:
    """An iterator that goes on after an error."""

    def __init__(self, lane: int, shard: Shard) -> None:
        self.lane, self.shard, self.at = lane, shard, -1

    def __iter__(self) -> "Reader":
        return self

    def __next__(self) -> tuple[int, int]:
        self.at += 1
        if self.at >= len(self.shard):
            raise StopIteration
        if self.shard[self.at]:
            raise ValueError(self.lane, self.at)
        return self.lane, self.at


class Shards(IterableDataset):
    def __init__(self, shards: list[Shard]) -> None:
        self.shards = shards

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        return Reader(info.id, self.shards[info.id])


def events_of_lane(lane: int, shard: Shard, batch_size: int | None, drop_last: bool) -> list[Any]:
    """What torch's worker of this number gives: an error loses the samples read for its batch so far."""
    events: list[Any] = []
    batch: list[tuple[int, int]] = []
    for at, raises in enumerate(shard):
        if raises:
            events.append(("ValueError", (lane, at)))
            batch = []
            continue
        batch.append((lane, at))
        if len(batch) == (batch_size or 1):
            events.append(batch if batch_size else batch[0])
            batch = []
    if batch and not drop_last:
        events.append(batch)
    return events


def in_turn(lanes: list[list[Any]]) -> list[Any]:
    rounds = range(max(map(len, lanes)))
    return [events[number] for number in rounds for events in lanes if number < len(events)]


def told(events: list[Any]) -> list[Any]:
    return [("ValueError", event.args) if isinstance(event, ValueError) else event for event in events]


def next_of(iterator: Iterator[Any]) -> Any:
    try:
        return next(iterator)
    except ValueError as error:
        return error


def as_given(samples: Any) -> Any:
    return samples


@pytest.mark.fuzz
@settings(max_examples=60)
@given(
    shards=st.lists(st.lists(st.sampled_from([False, False, False, True]), max_size=9), min_size=1, max_size=5),
    batch_size=st.sampled_from([None, 1, 2, 3, 20]),
    drop_last=st.booleans(),
    prefetch_factor=st.integers(1, 4),
    persistent_workers=st.booleans(),
    num_left=st.integers(0, 4),
)
def test_what_comes_is_each_lane_s_in_turn(
    shards: list[Shard],
    batch_size: int | None,
    drop_last: bool,
    prefetch_factor: int,
    persistent_workers: bool,
    num_left: int,
) -> None:
    """In an epoch left after some batches too, and in those after it."""
    drop_last = drop_last and batch_size is not None
    loader = StageLoader(
        Shards(shards),
        batch_size,
        num_workers=len(shards),
        collate_fn=as_given,
        drop_last=drop_last,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
    )
    expected = in_turn([events_of_lane(lane, shard, batch_size, drop_last) for lane, shard in enumerate(shards)])
    for _ in range(2):
        assert told(story(loader)) == expected
        left = iter(loader)
        assert told([next_of(left) for _ in expected[:num_left]]) == expected[:num_left]
        del left
    loader.close()


def test_lanes_pin_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)
    dataset = Shards([[False] * 3, [False]])
    loader = StageLoader(dataset, 2, num_workers=2, collate_fn=make_pinnable, pin_memory=True)
    batches: list[Pinnable] = [*loader]
    assert all(batch.is_pinned for batch in batches)
    assert [batch.value for batch in batches] == [[(0, 0), (0, 1)], [(1, 0)], [(0, 2)]]
