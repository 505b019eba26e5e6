"""Time-outs of stages that run elsewhere than in the loader's own threads, and where nobody can take a place."""

import asyncio
import threading
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from torch.utils.data import IterableDataset

from torchstage import Stage, StageLoader
from torchstage.engine import deadlines_elsewhere
from torchstage.engine.deadlines import StageTimeout

from .stuck import PATIENCE_SECONDS, SECONDS, flat, shape, story

pytestmark = [
    pytest.mark.timing,  # it is about how long things take
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

OTHERS = [[0, 1, 2, 3], StageTimeout, [8, 9, 10, 11], [12, 13, 14, 15]]


def loader_of(*stages, size=16, **options):
    return StageLoader(range(size), batch_size=4, num_workers=options.pop("num_workers", 2), stages=stages, **options)


# Threads of their own --------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_stage_with_threads_of_its_own_gets_another_one(stuck_at, concurrency):
    stage = Stage(stuck_at(5), "decode", concurrency=concurrency, timeout_seconds=SECONDS)
    for _ in range(2):
        events = story(iter(loader_of(stage, Stage(float))))
        assert shape(events) == OTHERS
        assert "in thread torchstage-decode-" in str(events[1])


def test_two_stages_with_threads_of_their_own_may_be_stuck_at_once(stuck_at):
    stages = [
        Stage(stuck_at(1, 5), "one", concurrency=2, timeout_seconds=SECONDS),
        Stage(stuck_at(6, 13), "two", concurrency=1, timeout_seconds=SECONDS),
    ]
    events = story(iter(loader_of(*stages)))
    assert shape(events) == [StageTimeout, StageTimeout, [8, 9, 10, 11], StageTimeout]
    assert [event.index for event in events if isinstance(event, StageTimeout)] == [1, 5, 13]


# The event loop --------------------------------------------------------------------------------------------


class Waiting:
    """A coroutine function that waits for ever for some values; it says when it was cancelled."""

    def __init__(self, *values, minds=True):
        self.values, self.minds = values, minds
        self.was_cancelled = threading.Event()
        self.let_go = asyncio.Event()

    async def __call__(self, value):
        if value in self.values:
            await self.wait_for_ever()
        return value

    async def wait_for_ever(self):
        while True:
            try:
                await self.let_go.wait()
                return
            except asyncio.CancelledError:
                if self.was_cancelled.is_set() or self.minds:  # at the end, even one that does not mind
                    self.was_cancelled.set()
                    raise
                self.was_cancelled.set()


@pytest.mark.parametrize("minds", [True, False])
@pytest.mark.parametrize("concurrency", [None, 1])
def test_a_coroutine_is_cancelled_and_its_room_is_another_ones(minds, concurrency):
    waiting = Waiting(5, minds=minds)
    loader = loader_of(Stage(waiting, "fetch it", timeout_seconds=SECONDS, concurrency=concurrency))
    with loader:
        events = story(iter(loader))
        assert shape(events) == OTHERS
        assert waiting.was_cancelled.wait(PATIENCE_SECONDS)
    words = str(events[1])
    assert words.startswith(
        "stage 'fetch it', dataset index 5, batch 1: not done after 0.2 seconds, and given up, in a "
    )
    assert "in wait_for_ever\n    await self.let_go.wait()" in words


def test_a_coroutine_in_the_very_first_sample_may_wait_for_ever():
    with loader_of(Stage(Waiting(0), timeout_seconds=SECONDS)) as loader:
        assert shape(story(iter(loader))) == [StageTimeout, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


def test_what_blocks_the_event_loop_is_an_error_that_says_so(stuck_at, monkeypatch):
    monkeypatch.setattr(deadlines_elsewhere, "BLOCKED_SECONDS", 0.2)
    stuck = stuck_at(5)

    async def blocking(value):
        return stuck(value)

    iterator = iter(loader_of(Stage(blocking, timeout_seconds=SECONDS), isolation="shared"))
    with pytest.raises(RuntimeError, match=r"stage 'blocking' .* an async function must not(?s:.*)in wait_for_ever"):
        story(iterator)
    stuck.let_go()


# Executors of the user's -----------------------------------------------------------------------------------


def test_a_future_is_given_up(stuck_at):
    stuck = stuck_at(5)
    with ThreadPoolExecutor(2) as executor:
        events = story(iter(loader_of(Stage(stuck, "there", executor=executor, timeout_seconds=SECONDS))))
        assert shape(events) == OTHERS
        assert str(events[1]).endswith("and given up, in an executor, a ThreadPoolExecutor.")
        stuck.let_go()


def test_of_neighbours_in_one_executor_the_stuck_one_is_named(stuck_at):
    stuck = stuck_at(5)
    with ThreadPoolExecutor(2) as executor:
        stages = [
            Stage(int, "one", executor=executor),
            Stage(stuck, "two", executor=executor, timeout_seconds=SECONDS),
            Stage(float, "three", executor=executor),
        ]
        events = story(iter(loader_of(*stages)))
        assert shape(events) == OTHERS
        assert events[1].stage == "two"
        stuck.let_go()


def test_the_room_of_a_future_is_another_samples(stuck_at):
    """concurrency=1: without it, nothing would be given to the executor any more."""
    stuck = stuck_at(5)
    with ThreadPoolExecutor(2) as executor:
        stage = Stage(stuck, executor=executor, concurrency=1, timeout_seconds=SECONDS)
        assert shape(story(iter(loader_of(stage)))) == OTHERS
        stuck.let_go()


def test_samples_that_wait_in_an_executors_queue_are_not_late():
    """Ten of them are given to one thread at once, each takes a fifth of the time that one may take."""
    with ThreadPoolExecutor(1) as executor:

        def slow(value):
            threading.Event().wait(SECONDS / 5)
            return value

        stage = Stage(slow, executor=executor, timeout_seconds=SECONDS)
        assert flat(story(iter(loader_of(stage, size=12)))) == list(range(12))


def test_an_executor_that_is_stuck_altogether_is_an_error(stuck_at):
    stuck = stuck_at(4, 5, 6, 7, 8, 9)
    with ThreadPoolExecutor(2) as executor:
        iterator = iter(loader_of(Stage(stuck, executor=executor, timeout_seconds=SECONDS)))
        with pytest.raises(RuntimeError, match=r"all 2 workers of an executor, a ThreadPoolExecutor, are stuck"):
            story(iterator)
        stuck.let_go()


class Silent(Executor):
    """Never says that a future runs, and never makes one of them."""

    def __init__(self):
        self.held = []

    def submit(self, fn, /, *arguments, **keywords):
        future = Future()
        if arguments[2] == 5:
            self.held.append(future)
        else:
            future.set_result(fn(*arguments, **keywords))
        return future


def test_an_executor_that_does_not_say_what_it_does_is_given_its_time_from_the_beginning():
    silent = Silent()
    events = story(iter(loader_of(Stage(float, executor=silent, timeout_seconds=SECONDS))))
    assert shape(events) == OTHERS
    assert [future.cancelled() for future in silent.held] == [True]


# Where nobody can take a place -----------------------------------------------------------------------------


def test_where_one_thread_at_a_time_may_work_what_is_stuck_is_said_and_waited_for(stuck_at):
    stuck = stuck_at(5)
    loader = loader_of(Stage(stuck, timeout_seconds=SECONDS), isolation="serial")
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(StageTimeout, match=r"used by one thread at a time(?s:.*)in wait_for_ever") as caught:
            next(iterator)
        assert caught.value.index == 5
    with pytest.raises(RuntimeError, match="that one is stuck in it"):
        next(iter(loader))
    stuck.let_go()
    assert flat(story(iterator)) == list(range(4, 16))
    assert flat(story(iter(loader))) == list(range(16))


class Read(IterableDataset):
    def __iter__(self):
        yield from range(8)


def test_a_stuck_lane_is_named_in_its_turn_and_waited_for(stuck_at):
    stuck = stuck_at(5)
    stages = [Stage(stuck, "decode", timeout_seconds=SECONDS)]
    iterator = iter(StageLoader(Read(), batch_size=4, num_workers=1, stages=stages, isolation="shared"))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(StageTimeout, match=r"stage 'decode', lane 0, batch 1(?s:.*)in wait_for_ever") as caught:
            next(iterator)
        assert caught.value.stage == "decode"
    stuck.let_go()
    assert next(iterator).tolist() == [4, 5, 6, 7]
    with pytest.raises(StopIteration):
        next(iterator)


def test_the_lane_whose_turn_it_is_not_is_not_late_yet(stuck_at):
    class Two(IterableDataset):
        def __iter__(self):
            from torch.utils.data import get_worker_info

            number = get_worker_info().id
            yield from range(10 * number, 10 * number + 4)

    stuck, gate = stuck_at(10), stuck_at(2)

    stages = [Stage(stuck, "late", timeout_seconds=SECONDS), Stage(gate)]
    iterator = iter(StageLoader(Two(), batch_size=2, num_workers=2, stages=stages, isolation="shared"))
    assert next(iterator).tolist() == [0, 1]
    with pytest.raises(StageTimeout, match="lane 1, batch 1"):
        next(iterator)
    gate.let_go()
    stuck.let_go()
    assert shape(story(iterator)) == [[10, 11], [2, 3], [12, 13]]


def test_a_coroutine_in_a_lane_is_looked_at():
    waiting = Waiting(5)
    with StageLoader(Read(), batch_size=4, num_workers=1, stages=[Stage(waiting, timeout_seconds=SECONDS)]) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(StageTimeout, match="lane 0, batch 1"):
            next(iterator)


@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_readers_in_the_callers_thread_have_no_timeout_which_is_said(options):
    loader = StageLoader(Read(), batch_size=4, stages=[Stage(int, timeout_seconds=1e-9)], **options)
    with pytest.warns(UserWarning, match="timeout_seconds of 'int' has no effect"):
        assert flat(story(iter(loader))) == list(range(8))


# Processes -------------------------------------------------------------------------------------------------


class StuckThere:
    """In a process nobody can be let go: the process is ended."""

    def __init__(self, *values):
        self.values = values

    def __call__(self, value):
        if value in self.values:
            self.wait_for_ever()
        return value

    def wait_for_ever(self):
        threading.Event().wait(600)


IN_A_PROCESS = 1.0  # second, that a stage has there: a machine may be busy with starting others


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_process_that_is_stuck_is_ended_and_replaced(num_workers):
    stage = Stage(StuckThere(5), "decode", executor="process", timeout_seconds=IN_A_PROCESS)
    with loader_of(stage, num_workers=num_workers) as loader:
        events = story(iter(loader))
        assert shape(events) == OTHERS
        words = str(events[1])
        assert "stage 'decode', dataset index 5, batch 1: not done after 1 seconds, and given up, in process " in words
        assert "in wait_for_ever" in words
        assert shape(story(iter(loader))) == OTHERS


def test_of_neighbours_in_a_process_the_stuck_one_is_named():
    stages = [
        Stage(int, "one", executor="process", timeout_seconds=60),
        Stage(StuckThere(5), "two", executor="process", timeout_seconds=IN_A_PROCESS),
        Stage(float, "three", executor="process"),
    ]
    with loader_of(*stages) as loader:
        events = story(iter(loader))
    assert shape(events) == OTHERS
    assert (events[1].stage, events[1].index) == ("two", 5)


def test_more_time_outs_than_deaths_are_allowed_do_not_end_the_processes():
    """Ends of processes that the loader brought about are no sign that these cannot go on."""
    stage = Stage(StuckThere(*range(0, 40, 4)), executor="process", timeout_seconds=0.1)
    with StageLoader(range(44), batch_size=4, num_workers=1, stages=[stage]) as loader:
        assert shape(story(iter(loader))) == [StageTimeout] * 10 + [[40, 41, 42, 43]]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_whole_batch_in_a_process_tells_which_sample_was_stuck(num_workers):
    stages = [Stage(StuckThere(6), "decode", timeout_seconds=IN_A_PROCESS)]
    with loader_of(*stages, num_workers=num_workers, worker_method="multiprocessing") as loader:
        events = story(iter(loader))
        assert shape(events) == OTHERS
    error = events[1]
    assert (error.stage, error.index) == ("decode", 6)
    assert "stage 'decode', dataset index 6, batch 1: not done after 1 seconds, and given up, in process " in str(error)
    assert "in wait_for_ever" in error.stack
    assert error.__notes__ == ["torchstage: raised in stage 'decode', dataset index 6, batch 1"]


def test_worker_processes_of_torch_have_no_timeout_which_is_said():
    loader = StageLoader(
        Read(), batch_size=4, num_workers=1, worker_method="multiprocessing", stages=[Stage(int, timeout_seconds=60)]
    )
    with pytest.warns(UserWarning, match="timeout_seconds of 'int' has no effect: .* torch's own worker processes"):
        assert flat(story(iter(loader))) == list(range(8))


def test_a_process_pool_of_the_users_goes_on_with_what_is_left():
    with ProcessPoolExecutor(2) as executor:
        stage = Stage(StuckThere(5), executor=executor, timeout_seconds=IN_A_PROCESS)
        events = story(iter(loader_of(stage)))
        assert shape(events) == OTHERS
        for process in executor._processes.values():
            process.kill()


@pytest.mark.parametrize("isolation", ["auto", "serial"])
def test_where_a_thread_waits_for_a_process_the_process_is_ended_and_the_thread_goes_on(isolation):
    """As with the very first sample, and where one thread at a time may work: its stages run together in a thread."""
    stage = Stage(StuckThere(0), "decode", executor="process", timeout_seconds=IN_A_PROCESS)
    with loader_of(stage, isolation=isolation) as loader:
        iterator = iter(loader)
        events = story(iterator)
        assert not iterator._pool.given_up
    assert shape(events) == [StageTimeout, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert (events[0].stage, events[0].index) == ("decode", 0)
    assert "in wait_for_ever" in events[0].stack
