"""The life of lanes: which threads there are, what is closed where, what they share, what cannot be copied."""

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from watching import loader_threads, seconds_until, seconds_until_no_loader_thread

from torchstage import StageLoader
from torchstage.lanes import LaneIterator

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # torch's own workers
]

PATIENCE_SECONDS = 20.0


def my_name() -> str:
    return threading.current_thread().name


class Counting(IterableDataset):
    """Yields 0, 1, ...; it has no length that ``list`` could ask for, and torch warn of."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Recording(IterableDataset):
    """Notes, in a list that the test holds, in which threads its iterators are opened, read and closed."""

    def __init__(self, events: list[tuple[str, str]], length: int = 3) -> None:
        self.events = events
        self.length = length

    def __iter__(self) -> Iterator[str]:
        self.events.append(("opened", my_name()))
        try:
            for _ in range(self.length):
                yield my_name()
        finally:
            self.events.append(("closed", my_name()))


# Threads ----------------------------------------------------------------------------------------------------


def test_nothing_starts_before_the_first_batch_and_all_ends_with_the_last() -> None:
    iterator = iter(StageLoader(Counting(3), num_workers=2))
    assert loader_threads() == []
    next(iterator)
    assert sorted(thread.name for thread in loader_threads()) == ["torchstage-lane-0", "torchstage-lane-1"]
    assert len(list(iterator)) == 5
    assert loader_threads() == []


def test_each_lane_reads_in_a_thread_of_its_own() -> None:
    loader = StageLoader(Recording([]), batch_size=None, num_workers=3, isolation="shared")
    assert list(loader) == [f"torchstage-lane-{number}" for _ in range(3) for number in range(3)]


def test_dropping_the_iterator_ends_its_lanes() -> None:
    iterator = iter(StageLoader(Counting(10**9), num_workers=2))
    next(iterator)
    del iterator
    seconds_until_no_loader_thread()


def test_a_thread_knows_nothing_of_the_iterator() -> None:
    loader = StageLoader(Counting(10**9), num_workers=2)
    iterator = iter(loader)
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert gone() is None  # without a collection: no cycle either
    loader.close()


def test_closing_the_loader_ends_kept_lanes_and_it_can_be_iterated_again() -> None:
    loader = StageLoader(Counting(3), batch_size=None, num_workers=2, persistent_workers=True)
    assert list(loader) == [0, 0, 1, 1, 2, 2]
    assert len(loader_threads()) == 2
    loader.close()
    assert loader_threads() == []
    assert list(loader) == [0, 0, 1, 1, 2, 2]
    loader.close()


def test_kept_lanes_are_the_same_threads() -> None:
    loader = StageLoader(Counting(3), batch_size=None, num_workers=2, persistent_workers=True)
    list(loader)
    threads = loader_threads()
    list(loader)
    assert loader_threads() == threads
    assert [handle.is_alive() for handle in loader._iterator._workers] == [True, True]
    loader.close()


def test_a_lane_s_iterator_is_closed_in_its_own_thread() -> None:
    """Of one that is read to its end, and of one that is left: sqlite, for one, insists on it."""
    events: list[tuple[str, str]] = []
    loader = StageLoader(Recording(events, 100), batch_size=None, num_workers=2, isolation="shared")
    for _ in zip(range(5), loader, strict=False):
        pass
    loader.close()
    names = {f"torchstage-lane-{number}" for number in range(2)}
    assert {name for event, name in events if event == "closed"} == names
    events.clear()
    assert len(list(loader)) == 200
    assert sorted(events) == sorted((event, name) for event in ("opened", "closed") for name in names)


def test_kept_lanes_close_the_iterator_of_an_epoch_that_was_left_when_the_next_begins() -> None:
    events: list[tuple[str, str]] = []
    arguments: dict[str, Any] = {"batch_size": None, "num_workers": 1, "persistent_workers": True}
    loader = StageLoader(Recording(events, 100), isolation="shared", **arguments)
    next(iter(loader))
    assert len(list(loader)) == 100
    assert [event for event, _ in events] == ["opened", "closed", "opened", "closed"]
    assert {name for _, name in events} == {"torchstage-lane-0"}
    loader.close()


def test_an_epoch_left_early_leaves_no_batch_behind() -> None:
    """Batches that kept lanes still make for it are nobody's: none of them turns up in the next epoch."""

    class Epochs(IterableDataset):
        def __init__(self) -> None:
            self.num_epochs = 0

        def __iter__(self) -> Iterator[tuple[int, int]]:
            self.num_epochs += 1
            epoch = self.num_epochs
            return iter([(epoch, number) for number in range(4)])

    loader = StageLoader(Epochs(), None, num_workers=2, persistent_workers=True, collate_fn=tuple)
    for epoch in range(1, 6):
        iterator = iter(loader)
        assert [next(iterator) for _ in range(3)] == [(epoch, 0), (epoch, 0), (epoch, 1)]
    assert list(loader) == [(6, number) for number in range(4) for _ in range(2)]
    loader.close()


def test_a_lane_that_is_stuck_is_named_when_the_loader_is_closed() -> None:
    may_go = threading.Event()

    class Stuck(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            yield 0
            assert may_go.wait(PATIENCE_SECONDS)

    loader = StageLoader(Stuck(), batch_size=None, num_workers=1, isolation="shared")
    assert next(iter(loader)) == 0
    with pytest.warns(RuntimeWarning, match=r"torchstage-lane-0 is still in stage 'fetch' \(batch 1\)"):
        loader.close()
    may_go.set()
    seconds_until_no_loader_thread()


def test_lanes_work_in_the_consumer_s_modes() -> None:
    class Modes(IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            yield torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")

    with torch.no_grad(), torch.autocast("cpu"):
        assert [*StageLoader(Modes(), batch_size=None, num_workers=2, collate_fn=tuple)] == [(False, False, True)] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_that_the_lanes_are_not_its_own() -> None:
    iterator = iter(StageLoader(Counting(10), num_workers=2))
    next(iterator)
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# Isolation --------------------------------------------------------------------------------------------------


class Identity(IterableDataset):
    def __init__(self) -> None:
        self.values = [1]

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        assert info.dataset is self
        yield id(self), id(self.values)


def identities(**arguments: Any) -> set[tuple[int, int]]:
    """The dataset and its list as each lane sees them, and as this thread does."""
    dataset = Identity()
    loader = StageLoader(dataset, None, num_workers=2, collate_fn=tuple, persistent_workers=True, **arguments)
    seen = {*loader, (id(dataset), id(dataset.values))}
    loader.close()
    return seen


def test_lanes_share_the_dataset_if_they_are_told_to() -> None:
    assert len(identities(isolation="shared")) == 1


@pytest.mark.parametrize("isolation", ["auto", "per_thread", "serial"])
def test_else_each_lane_has_its_own(isolation: Any) -> None:
    assert len(identities(isolation=isolation)) == 3


def test_serial_lanes_make_one_batch_at_a_time() -> None:
    inside: list[int] = []
    most: list[int] = []

    class Counted(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            for number in range(20):
                inside.append(number)
                most.append(len(inside))
                inside.pop()
                yield number

    def collate(samples: list[int]) -> list[int]:
        inside.extend(samples[:1])
        most.append(len(inside))
        inside.pop()
        return samples

    assert len(list(StageLoader(Counted(), 2, num_workers=4, isolation="serial", collate_fn=collate))) == 40
    assert set(most) <= {1}


def test_handles_are_opened_for_each_lane_and_closed_with_it(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(b"%03d\n" % number for number in range(40)))
    seen: list[Any] = []

    class Lines(IterableDataset):
        def __init__(self) -> None:
            self.file = path.open("rb")
            self.file.seek(4)

        def __iter__(self) -> Iterator[int]:
            seen.append(self.file)
            while line := self.file.read(4):
                yield int(line)

    def lines_of(loader_class: type[DataLoader], **arguments: Any) -> Any:
        dataset = Lines()
        numbers = list(loader_class(dataset, batch_size=None, num_workers=2, **arguments))
        assert not dataset.file.closed
        dataset.file.close()
        return numbers

    assert lines_of(StageLoader) == [number for number in range(1, 40) for _ in range(2)]
    gc.collect()
    assert [file.closed for file in seen] == [True, True]


# What cannot be copied --------------------------------------------------------------------------------------


class Generating(IterableDataset):
    """Holds a generator, which has no copy; a forked worker has one all the same."""

    def __init__(self) -> None:
        self.numbers = (number for number in range(4))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        info = get_worker_info()
        assert info is not None
        return ((number, info.num_workers, os.getpid()) for number in self.numbers)


@pytest.mark.parametrize("lanes", [None, 3])
def test_what_cannot_be_copied_is_read_by_worker_processes_as_many(lanes: int | None) -> None:
    loader = StageLoader(Generating(), batch_size=None, num_workers=2, lanes=lanes, collate_fn=tuple)
    iterator = iter(loader)
    assert not isinstance(iterator, LaneIterator)
    rows = list(iterator)
    num_lanes = lanes or 2
    assert sorted(number for number, _, _ in rows) == sorted([*range(4)] * num_lanes)
    assert {num_workers for _, num_workers, _ in rows} == {num_lanes}
    assert os.getpid() not in {pid for _, _, pid in rows}
    assert loader.num_workers == 2


def test_it_is_read_in_threads_if_it_may_be_shared() -> None:
    loader = StageLoader(Generating(), batch_size=None, num_workers=1, isolation="shared", collate_fn=tuple)
    assert {pid for _, _, pid in loader} == {os.getpid()}


def test_a_given_context_means_processes() -> None:
    loader = StageLoader(Counting(3), num_workers=1, multiprocessing_context="fork")
    assert not isinstance(iter(loader), LaneIterator)
    loader.close()


def test_lanes_that_could_not_start_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kept workers the iterator stays; it needs threads, and copies for them, once more."""
    loader = StageLoader(Counting(2), batch_size=None, num_workers=2, persistent_workers=True)
    start, calls = threading.Thread.start, []

    def fail_once(thread: threading.Thread) -> None:
        calls.append(thread.name)
        if len(calls) == 2:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(iter(loader))
    seconds_until(lambda: not loader_threads())
    assert list(loader) == [0, 0, 1, 1]
    loader.close()
