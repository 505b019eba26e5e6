"""Async stages: as many coroutines at once as the stage says; each is cancelled, and its clean-up run, when it is not
wanted any more."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.conftest import count_open_files
from tests.parity.compare import story
from tests.stages.placing import PATIENCE_SECONDS, Numbers
from tests.watching import loader_threads, seconds_until
from torchstage import Stage, StagedDataset, StageLoader


class Meeting:
    """Coroutines that wait until so many are there together."""

    def __init__(self, num_wanted: int) -> None:
        self.num_wanted = num_wanted
        self.num_inside = self.most = self.num_done = 0
        self.met = threading.Event()

    async def __call__(self, value: int) -> int:
        self.num_inside += 1
        self.most = max(self.most, self.num_inside)
        if self.num_inside >= self.num_wanted:
            self.met.set()
        while not self.met.is_set():
            await asyncio.sleep(0.001)
        for _ in range(3):
            await asyncio.sleep(0)
        self.num_inside -= 1
        self.num_done += 1
        return value


class MeetingOfThreads:
    """Calls that block, in threads that asyncio gives, until so many are there together."""

    def __init__(self, num_wanted: int) -> None:
        self.num_wanted = num_wanted
        self.num_inside = 0
        self.lock = threading.Lock()
        self.met = threading.Event()

    def block(self, value: int) -> int:
        with self.lock:
            self.num_inside += 1
            if self.num_inside == self.num_wanted:
                self.met.set()
        self.met.wait(PATIENCE_SECONDS)
        return value

    async def __call__(self, value: int) -> int:
        return await asyncio.to_thread(self.block, value)


class Flagged(Numbers):
    """With nothing that a first sample changes: the stage below counts on itself and is to be shared."""


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(("concurrency", "num_wanted"), [(None, 64), (7, 7), (100, 100)])
def test_as_many_are_in_flight_together_as_the_stage_says(concurrency, num_wanted, num_workers):
    meeting = Meeting(num_wanted)
    stages = [Stage(meeting, concurrency=concurrency)]
    with StageLoader(Flagged(400), 4, num_workers=num_workers, stages=stages, isolation="shared") as loader:
        iterator = iter(loader)
        with at_most(PATIENCE_SECONDS, meeting.met):
            first = next(iterator)
        rest = list(iterator)
    assert torch.cat([first, *rest]).tolist() == list(range(0, 4000, 10))
    assert meeting.most == num_wanted
    assert meeting.num_done == 400


@pytest.mark.parametrize(("concurrency", "num_wanted"), [(None, 64), (7, 7), (80, 80)])
def test_as_many_blocking_calls_wait_together_in_threads_of_asyncio(concurrency, num_wanted):
    meeting = MeetingOfThreads(num_wanted)
    stages = [Stage(meeting, concurrency=concurrency)]
    with (
        StageLoader(Flagged(400), 4, num_workers=2, stages=stages, isolation="shared") as loader,
        at_most(PATIENCE_SECONDS, meeting.met),
    ):
        values = torch.cat(list(loader)).tolist()
    assert values == list(range(0, 4000, 10))
    assert meeting.met.is_set()


class at_most:  # noqa: N801
    """Let go of those who wait, and fail, if it takes longer."""

    def __init__(self, seconds: float, event: threading.Event) -> None:
        self.event = event
        self.is_late = False
        self.timer = threading.Timer(seconds, self.let_go)

    def let_go(self) -> None:
        self.is_late = True
        self.event.set()

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *error: object) -> None:
        self.timer.cancel()
        self.timer.join()
        assert not self.is_late, "so many were never there together"


def test_an_async_fetch_has_as_many_in_flight():
    meeting = Meeting(64)

    class Remote(StagedDataset):
        def __len__(self) -> int:
            return 300

        async def fetch(self, index: int) -> int:
            return await meeting(index)

        def decode(self, value: int) -> int:
            return 2 * value

    with StageLoader(Remote(), 4, num_workers=2, isolation="shared") as loader:
        iterator = iter(loader)
        with at_most(PATIENCE_SECONDS, meeting.met):
            first = next(iterator)
        assert torch.cat([first, *iterator]).tolist() == list(range(0, 600, 2))
    assert meeting.most == 64


def test_async_stages_apart_each_have_their_own_number():
    one, other = Meeting(5), Meeting(3)
    stages = [Stage(one, concurrency=5), Stage(abs), Stage(other, concurrency=3)]
    with StageLoader(Numbers(60), 4, num_workers=2, stages=stages, isolation="shared") as loader:
        assert torch.cat(list(loader)).tolist() == list(range(0, 600, 10))
    assert (one.most, other.most) == (5, 3)


# Cancelling -------------------------------------------------------------------------------------------------


class Forever:
    """Samples from some index on wait for ever; each counts how it ended."""

    def __init__(self, begins_at: int) -> None:
        self.begins_at = begins_at
        self.began: list[int] = []
        self.cancelled: list[int] = []
        self.cleaned: list[int] = []

    async def __call__(self, value: int) -> int:
        if value < 10 * self.begins_at:
            await asyncio.sleep(0)
            return value
        self.began.append(value)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            await asyncio.sleep(0)  # a clean-up may wait, too
            self.cleaned.append(value)
        return value

    @property
    def is_clean(self) -> bool:
        return sorted(self.began) == sorted(self.cancelled) == sorted(self.cleaned)


def break_out(loader: StageLoader[Any], iterator: list[Iterator[Any]]) -> None:
    iterator.clear()
    loader._iterator = None
    gc.collect()


def close(loader: StageLoader[Any], iterator: list[Iterator[Any]]) -> None:
    loader.close()


def iterate_again(loader: StageLoader[Any], iterator: list[Iterator[Any]]) -> None:
    iterator[0] = iter(loader)
    if not loader.persistent_workers:
        gc.collect()


ENDS: list[Callable[..., None]] = [break_out, close, iterate_again]


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("words", ["alone", "among others"])
def test_what_is_not_wanted_any_more_is_cancelled_and_cleans_up(words, end, persistent_workers):
    forever = Forever(begins_at=8)
    around = [] if words == "alone" else [Stage(abs, concurrency=1)]
    loader = StageLoader(
        Numbers(200),
        4,
        num_workers=2,
        stages=[*around, Stage(forever), *around],
        isolation="shared",
        persistent_workers=persistent_workers,
    )
    iterator = [iter(loader)]
    assert [next(iterator[0]).tolist() for _ in range(2)] == [[0, 10, 20, 30], [40, 50, 60, 70]]
    seconds_until(lambda: len(forever.began) > 3)
    end(loader, iterator)
    seconds_until(lambda: forever.is_clean)
    loader.close()
    assert forever.is_clean
    assert not loader_threads()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_an_error_in_a_batch_leaves_the_others_of_it_to_their_end(num_workers):
    ended: list[int] = []

    async def fails(value: int) -> int:
        try:
            await asyncio.sleep(0.001 * (value % 3))
            if value == 50:
                raise KeyError(value)
            return value
        finally:
            ended.append(value)

    with StageLoader(Numbers(12), 4, num_workers=num_workers, stages=[Stage(fails)]) as loader:
        events = story(loader)
    assert [type(event) for event in events] == [torch.Tensor, KeyError, torch.Tensor]
    assert len(ended) == len(set(ended))


def test_a_coroutine_that_cancels_itself_is_an_error_in_its_place():
    async def cancels(value: int) -> int:
        await asyncio.sleep(0)
        if value == 50:
            raise asyncio.CancelledError
        return value

    with StageLoader(Numbers(12), 4, num_workers=2, stages=[Stage(cancels)]) as loader:
        events = story(loader, asyncio.CancelledError)
    assert [type(event) for event in events] == [torch.Tensor, asyncio.CancelledError, torch.Tensor]


def test_a_coroutine_that_waited_too_long_is_an_error_in_its_place():
    async def waits(value: int) -> int:
        async with asyncio.timeout(0.01 if value == 50 else 60):
            await (asyncio.Event().wait() if value == 50 else asyncio.sleep(0))
        return value

    for num_workers in (0, 2):
        with StageLoader(Numbers(12), 4, num_workers=num_workers, stages=[Stage(waits)]) as loader:
            events = story(loader)
        assert [type(event) for event in events] == [torch.Tensor, TimeoutError, torch.Tensor]


@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_an_error_that_is_kept_does_not_keep_the_event_loop(is_in_a_loop):
    async def fails(value: int) -> int:
        await asyncio.sleep(0)
        raise KeyError(value)

    before = count_open_files()
    with StageLoader(Numbers(12), 4, stages=[Stage(fails)]) as loader:
        error = asyncio.run(told(loader)) if is_in_a_loop else story(loader)[0]
    assert isinstance(error, KeyError)
    assert count_open_files() == before


async def told(loader: StageLoader[Any]) -> Any:
    return story(loader)[0]


# The loop ---------------------------------------------------------------------------------------------------


class Keeping:
    """Keeps what belongs to an event loop, as a client with connections does."""

    def __init__(self) -> None:
        self.lock: asyncio.Lock | None = None
        self.loops: set[int] = set()

    async def __call__(self, value: int) -> int:
        if self.lock is None:
            self.lock = asyncio.Lock()
        async with self.lock:  # a lock that coroutines waited for works in one loop alone
            self.loops.add(id(asyncio.get_running_loop()))
            await asyncio.sleep(0)
        return value


@pytest.mark.parametrize("isolation", ["auto", "shared"])
def test_what_belongs_to_the_loop_works_epoch_after_epoch_where_threads_are_kept(isolation):
    keeping = Keeping()
    arguments: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "isolation": isolation}
    with StageLoader(Numbers(40), 4, stages=[Stage(keeping)], **arguments) as loader:
        for _ in range(3):
            assert len(list(loader)) == 10
    if isolation == "shared":
        assert len(keeping.loops) == 1


def test_what_belongs_to_the_loop_works_epoch_after_epoch_inline():
    keeping = Keeping()
    with StageLoader(Numbers(40), 4, stages=[Stage(keeping)]) as loader:
        for _ in range(3):
            assert len(list(loader)) == 10
        assert loader.sample(3).value == 30
    assert len(keeping.loops) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_inside_a_running_event_loop_as_in_a_notebook(num_workers):
    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return 2 * value

    async def cell() -> list[Any]:
        with StageLoader(Numbers(8), 4, num_workers=num_workers, stages=[Stage(double)]) as loader:
            batches = [batch.tolist() for batch in loader]
            assert loader.sample(3).value == 60
        await asyncio.sleep(0)
        return batches

    assert asyncio.run(cell()) == [[0, 20, 40, 60], [80, 100, 120, 140]]


def test_asyncio_s_own_loop_serves_where_uvloop_is_not_installed(monkeypatch):
    monkeypatch.setattr("torchstage.sites.find_spec", lambda name: None)
    names: set[str] = set()

    async def name(value: int) -> int:
        names.add(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return value

    with StageLoader(Numbers(8), 4, num_workers=2, stages=[Stage(name)], isolation="shared") as loader:
        assert len(list(loader)) == 2
    assert names == {"asyncio"}


def test_uvloop_serves_where_it_is_installed():
    pytest.importorskip("uvloop")
    names: set[str] = set()

    async def name(value: int) -> int:
        names.add(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return value

    with StageLoader(Numbers(8), 4, num_workers=2, stages=[Stage(name)], isolation="shared") as loader:
        assert len(list(loader)) == 2
    assert names == {"uvloop"}


def test_a_task_that_a_coroutine_left_behind_ends_with_the_loop():
    ended: list[int] = []

    async def behind(value: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(value)

    tasks: set[Any] = set()

    async def leaves(value: int) -> int:
        tasks.add(asyncio.get_running_loop().create_task(behind(value)))
        await asyncio.sleep(0)
        return value

    with StageLoader(Numbers(8), 4, num_workers=2, stages=[Stage(leaves)], isolation="shared") as loader:
        assert len(list(loader)) == 2
    assert sorted(ended) == list(range(0, 80, 10))


def test_threads_that_a_coroutine_asked_for_end_with_the_loop():
    async def elsewhere(value: int) -> int:
        return await asyncio.to_thread(abs, -value)

    for num_workers in (0, 2):
        with StageLoader(Numbers(8), 4, num_workers=num_workers, stages=[Stage(elsewhere)]) as loader:
            assert torch.cat(list(loader)).tolist() == list(range(0, 80, 10))
