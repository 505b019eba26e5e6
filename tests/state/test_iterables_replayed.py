"""What was handed out before is read once more: how long it takes, and what if there is less of it."""

import itertools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from torchstage import StageLoader, replay
from torchstage.replay import Replay

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state:UserWarning"),
    pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning"),  # torchdata calls it
]

READERS: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "inline with a seed": {"num_workers": 0, "seed": 3},
    "a lane": {"num_workers": 1},
    "a lane that is kept": {"num_workers": 1, "persistent_workers": True},
    "a process": {"num_workers": 1, "multiprocessing_context": "fork"},
    "a process that is kept": {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True},
}


class Plain(IterableDataset):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Told(Plain):
    """With a state."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.length:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def state_after(num_batches: int, dataset: Any, **chosen: Any) -> Any:
    with StageLoader(dataset, batch_size=2, **chosen) as loader:
        assert len(list(itertools.islice(loader, num_batches))) == num_batches
        return loader.state_dict()


def numbers(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize("readers", READERS)
def test_fewer_batches_than_were_handed_out_are_an_error_and_the_state_goes_on_to_count(readers: str) -> None:
    chosen = READERS[readers]
    state = state_after(8, Plain(20), **chosen)
    who = "lane 0" if "lane" in readers else "the worker processes together" if "proc" in readers else "the dataset"
    dataset = Plain(5)
    with StageLoader(dataset, batch_size=2, **chosen) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(ValueError, match=f"{who} was to read 8 batches once more .* ended after 3") as caught:
                next(iter(loader))
            assert "the dataset is not the one that the state was saved with" in str(caught.value)
            assert loader.state_dict() == state
        dataset.length = 20
        assert numbers(loader) == [16, 17, 18, 19]
        assert len(numbers(loader)) == 20


@pytest.mark.parametrize("readers", ["a lane", "a lane that is kept", "a process", "a process that is kept"])
def test_fewer_batches_since_the_dataset_told_its_state_are_an_error(readers: str) -> None:
    chosen = READERS[readers]
    if "process" in readers:
        pytest.importorskip("torchdata.stateful_dataloader")
    state = state_after(5, Told(20), snapshot_every_n_steps=3, **chosen)
    with StageLoader(Told(7), batch_size=2, **chosen) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ValueError, match=r"was to read 2 batches once more .* ended (after 1|before that)"):
            next(iter(loader))
        assert loader.state_dict() == state


def test_the_lane_that_failed_is_where_it_was_and_the_others_go_on() -> None:
    class Uneven(Plain):
        def __iter__(self) -> Iterator[int]:
            number = get_worker_info().id
            return iter(range(100 * number, 100 * number + (self.length if number else 20)))

    state = state_after(7, Uneven(20), num_workers=2)  # four of lane 0, three of lane 1, whose turn it is
    with StageLoader(Uneven(3), batch_size=2, num_workers=2) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        with pytest.raises(ValueError, match=r"lane 1 was to read 3 batches once more .* ended after 2"):
            next(iterator)
        given = numbers(itertools.islice(iterator, 2))
        assert given == [8, 9, 10, 11]
        state = loader.state_dict()
        assert numbers(iterator) == [*range(12, 20)]
    with StageLoader(Uneven(20), batch_size=2, num_workers=2) as loader:
        loader.load_state_dict(state)
        assert sorted(numbers(loader)) == [*range(12, 20), *range(106, 120)]


def test_a_worker_process_that_was_late_has_handed_out_nothing(tmp_path: Path) -> None:
    may_go, pipe = tmp_path / "may_go", tmp_path / "pipe"
    os.mkfifo(pipe)

    class Late(Plain):
        def __iter__(self) -> Iterator[int]:
            for number in range(self.length):
                if number == 4 and not may_go.exists():
                    pipe.read_text()
                yield number

    with StageLoader(Late(8), batch_size=2, timeout=2, **READERS["a process"]) as loader:
        iterator = iter(loader)
        assert numbers(itertools.islice(iterator, 2)) == [0, 1, 2, 3]
        with pytest.raises(RuntimeError, match="timed out"):
            next(iterator)
        state = loader.state_dict()
        may_go.touch()
        pipe.write_text("")
    with StageLoader(Late(8), batch_size=2, **READERS["a process"]) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == [4, 5, 6, 7]


def test_a_lane_that_was_ended_while_it_read_once_more_hands_out_nothing_twice() -> None:
    class Exiting(Plain):
        is_armed = False

        def __iter__(self) -> Iterator[int]:
            for number in range(self.length):
                if number == 5 and type(self).is_armed:
                    type(self).is_armed = False
                    raise SystemExit(3)
                yield number

    state = state_after(4, Exiting(20), num_workers=1)
    Exiting.is_armed = True
    with StageLoader(Exiting(20), batch_size=2, num_workers=1) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        with pytest.raises(SystemExit):
            next(iterator)
        assert loader.state_dict() == state
        assert list(iterator) == []
        loader.load_state_dict(state)
        assert numbers(loader) == [*range(8, 20)]


# How long it takes -----------------------------------------------------------------------------------------------


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The warnings."""
    words: list[str] = []
    monkeypatch.setattr(replay, "warn_user", words.append)
    return words


def test_it_is_said_after_ten_seconds_and_then_each_time_that_twice_as_many_went_by(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0)
    monkeypatch.setattr(replay, "monotonic", lambda: float(next(clock)))
    known = Replay([100, 50], [False, False])
    known.begin()
    assert said[0].startswith("StageLoader: the dataset has no state, so 150 batches")
    for _ in range(45):
        known.made(0)
        known.made(1)
        known.attend()
    assert said[1:] == [
        "StageLoader: of 150 batches that were handed out before, 20 were read once more in 10 s; about 90 s are left.",
        "StageLoader: of 150 batches that were handed out before, 40 were read once more in 20 s; about 80 s are left.",
        "StageLoader: of 150 batches that were handed out before, 80 were read once more in 40 s; about 60 s are left.",
    ]


def test_nothing_is_said_of_a_reader_that_has_made_none_or_when_all_is_read(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 100)
    monkeypatch.setattr(replay, "monotonic", lambda: float(next(clock)))
    known = Replay([3, 1], [True, True])
    known.begin()
    known.made(0)
    known.attend()
    assert said == []
    known.made(1)
    known.attend()
    assert len(said) == 1
    known.made(0)
    known.made(0)
    known.attend()
    assert len(said) == 1


@pytest.mark.parametrize("readers", ["inline", "a lane", "a process"])
def test_whoever_waits_for_it_is_told(readers: str, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FIRST_WORD_SECONDS", 0.0)
    is_told = threading.Event()

    def note(words: str) -> None:
        said.append(words)
        if words.startswith("StageLoader: of 8 batches"):
            is_told.set()

    monkeypatch.setattr(replay, "warn_user", note)

    class Slow(Plain):
        def __iter__(self) -> Iterator[int]:
            for number in range(self.length):
                if number == 10 and threading.current_thread().name.startswith("torchstage"):
                    assert is_told.wait(20)
                yield number

    is_told.set()
    state = state_after(8, Slow(20), **READERS[readers])
    is_told.clear()
    with StageLoader(Slow(20), batch_size=2, **READERS[readers]) as loader:
        loader.load_state_dict(state)
        assert numbers(loader) == [16, 17, 18, 19]
    assert is_told.is_set()
    assert re.search(r"were read once more in \d+ s; about \d+ s are left", said[1])
