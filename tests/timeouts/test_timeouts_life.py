"""Life with what is stuck: Ctrl-C, forks, the end of the program, and the loader's own ``timeout``."""

import gc
import multiprocessing
import threading
import time
import warnings
import weakref

import pytest
from torch.utils.data import Dataset

from torchstage import Stage, StageLoader
from torchstage.crew import Crew
from torchstage.engine.deadlines import StageTimeout
from torchstage.engine.told import Listener
from torchstage.iterators import ThreadedIterator

from .stuck import PATIENCE_SECONDS, SECONDS, flat, shape, story
from .test_timeouts_elsewhere import IN_A_PROCESS, StuckThere

pytestmark = pytest.mark.timing  # it is about how long things take

pytest_plugins = "outside"

OTHERS = [[0, 1, 2, 3], StageTimeout, [8, 9, 10, 11], [12, 13, 14, 15]]

STUCK = """
from torchstage import Stage

let_go = threading.Event()

def stuck(index):
    if index == 5:
        let_go.wait()
    return index

def outcomes(loader):
    iterator, found = iter(loader), []
    while True:
        try:
            found.append(next(iterator).tolist())
        except TimeoutError as error:
            found.append(type(error).__name__)
        except StopIteration:
            return found

loader = StageLoader(Numbers(16), batch_size=4, num_workers=2, stages=[Stage(stuck, timeout_seconds=0.2)])
"""


def test_at_the_end_of_the_program_the_stuck_thread_is_named_and_let_go(outside):
    ended = outside.run(STUCK + "print(outcomes(loader))")
    assert ended.status == 0
    assert ended.out == "[[0, 1, 2, 3], 'StageTimeout', [8, 9, 10, 11], [12, 13, 14, 15]]\n"
    (line,) = ended.err.splitlines()
    assert line.startswith("torchstage: thread torchstage-fetch-")
    assert "is still in stage 'stuck', dataset index 5 (batch 1), 5 s after the end of the program" in line


def test_a_forked_child_has_none_of_the_stuck_threads(outside):
    ended = outside.run(
        STUCK
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
print(outcomes(loader), flush=True)
pid = os.fork()
if pid == 0:
    let_go.set()
    print(outcomes(loader), flush=True)
    loader.close()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
let_go.set()
loader.close()
"""
    )
    ended.assert_quiet()
    expected = "[[0, 1, 2, 3], 'StageTimeout', [8, 9, 10, 11], [12, 13, 14, 15]]\n"
    assert ended.out == expected + expected.replace("'StageTimeout'", "[4, 5, 6, 7]")


def test_ctrl_c_while_a_thread_is_replaced_ends_the_epoch_and_leaves_nothing(stuck_at, monkeypatch):
    stuck, replace = stuck_at(5), Crew.replace

    def interrupted(crew, pool, worker):
        replace(crew, pool, worker)
        raise KeyboardInterrupt

    monkeypatch.setattr(Crew, "replace", interrupted)
    loader = StageLoader(range(16), batch_size=4, num_workers=2, stages=[Stage(stuck, timeout_seconds=SECONDS)])
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    monkeypatch.undo()
    assert shape(story(iter(loader))) == OTHERS
    stuck.let_go()


def test_ctrl_c_before_a_thread_is_replaced_leaves_nothing_either(stuck_at, monkeypatch):
    def interrupted(crew, pool, worker):
        raise KeyboardInterrupt

    stuck = stuck_at(5)
    monkeypatch.setattr(Crew, "replace", interrupted)
    loader = StageLoader(range(16), batch_size=4, num_workers=2, stages=[Stage(stuck, timeout_seconds=SECONDS)])
    iterator = iter(loader)
    with pytest.raises(KeyboardInterrupt):
        list(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    stuck.let_go()


def test_closed_while_a_thread_is_replaced_the_new_thread_ends_too(stuck_at):
    stuck, begun = stuck_at(5), []

    def begin(number):
        begun.append(number)
        if len(begun) == 3:
            closing = threading.Thread(target=iterator.abandon)
            closing.start()
            closing.join(PATIENCE_SECONDS)

    loader = StageLoader(
        range(16),
        batch_size=4,
        num_workers=2,
        stages=[Stage(stuck, timeout_seconds=SECONDS)],
        worker_init_fn=begin,
    )
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="closed"):  # while it waits, or after the batch that was just made
        list(iterator)
    assert len(begun) == 3
    stuck.let_go()


def test_an_error_of_worker_init_fn_in_the_new_thread_is_raised_and_ends_the_epoch(stuck_at):
    stuck, begun = stuck_at(5), []

    def begin(number):
        begun.append(number)
        if len(begun) == 3:
            raise LookupError("no third time")

    loader = StageLoader(
        range(16),
        batch_size=4,
        num_workers=2,
        stages=[Stage(stuck, timeout_seconds=SECONDS)],
        worker_init_fn=begin,
    )
    iterator = iter(loader)
    with pytest.raises(LookupError, match="no third time"):
        list(iterator)
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    stuck.let_go()


def test_a_loader_with_a_stuck_thread_goes_when_nobody_has_it(stuck_at):
    stuck = stuck_at(5)
    loader = StageLoader(range(16), batch_size=4, num_workers=1, stages=[Stage(stuck, timeout_seconds=SECONDS)])
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(StageTimeout):
        next(iterator)
    known = weakref.ref(iterator)
    del iterator, loader
    gc.collect()
    assert known() is None
    stuck.let_go()


# The loader's own time-out ---------------------------------------------------------------------------------


class Held(Dataset):
    """Has no stages: nothing but the loader's ``timeout`` bounds it."""

    def __init__(self, stuck):
        self.stuck = stuck

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return self.stuck(index)


@pytest.fixture
def tolerant(monkeypatch):
    """Loaders whose policy is not to raise what is late, as far as it is known here."""
    monkeypatch.setattr(ThreadedIterator, "_gives_up_late", lambda iterator, loader: True)


def tolerated(iterator):
    """The story of an epoch in which what is late is given up."""
    events = []
    while True:
        try:
            events.append(next(iterator).tolist())
        except StageTimeout as error:
            events.append(error)
        except RuntimeError:
            if not iterator.give_up_late(iterator._runs[0]):
                raise
        except StopIteration:
            return events


@pytest.mark.parametrize("num_workers", [1, 2])
def test_ur_065_a_time_out_names_stage_sample_and_stack_also_with_one_thread(stuck_at, num_workers):
    stuck = stuck_at(5)
    iterator = iter(StageLoader(Held(stuck), batch_size=4, num_workers=num_workers, timeout=SECONDS))
    assert next(iterator).tolist() == [0, 1, 2, 3]
    begin = time.monotonic()
    with pytest.raises(
        RuntimeError,
        match=r"^DataLoader timed out after 0\.2 seconds: stage 'fetch', dataset index 5, batch 1 is late, in thread "
        r"torchstage-fetch-\d, which is here:\n(?s:.*)in wait_for_ever",
    ):
        next(iterator)
    assert time.monotonic() - begin < 6
    stuck.let_go()
    assert flat(story(iterator)) == list(range(4, 16))


@pytest.mark.usefixtures("tolerant")
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("index", [0, 5])
def test_ur_065_what_is_late_loses_its_thread_and_the_epoch_finishes(stuck_at, num_workers, index):
    stuck = stuck_at(index)
    loader = StageLoader(Held(stuck), batch_size=4, num_workers=num_workers, timeout=SECONDS)
    events = tolerated(iter(loader))
    assert [event for event in events if isinstance(event, list)] == [
        list(range(n, n + 4)) for n in range(0, 16, 4) if index not in range(n, n + 4)
    ]
    (error,) = [event for event in events if isinstance(event, StageTimeout)]
    assert (error.stage, error.index, error.seconds) == ("fetch", index, SECONDS)
    assert "in wait_for_ever" in error.stack
    stuck.let_go()
    loader.close()


@pytest.mark.usefixtures("tolerant")
def test_ur_054_throughput_recovers_after_a_decode_that_never_returns(stuck_at):
    """The slot is free again, file and stage are told, and the samples after it have all threads."""
    stuck, together = stuck_at(5), threading.Barrier(2)

    def decode(index):
        if index >= 8:
            together.wait(PATIENCE_SECONDS)
        return index

    loader = StageLoader(
        range(16),
        batch_size=4,
        num_workers=2,
        stages=[Stage(stuck, timeout_seconds=SECONDS), Stage(decode)],
        isolation="shared",
    )
    assert shape(story(iter(loader))) == OTHERS
    stuck.let_go()
    loader.close()


@pytest.mark.usefixtures("tolerant")
def test_a_late_collate_is_nobodys_to_give_up(stuck_at):
    stuck = stuck_at(4)
    loader = StageLoader(
        range(8), batch_size=4, num_workers=1, timeout=SECONDS, collate_fn=lambda samples: [stuck(samples[0]), *samples]
    )
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(RuntimeError, match="stage 'collate', batch 1 is late"):
        next(iterator)
    assert not iterator.give_up_late(iterator._runs[0])
    stuck.let_go()
    assert next(iterator) == [4, 4, 5, 6, 7]


@pytest.mark.usefixtures("tolerant")
def test_a_whole_batch_that_is_late_loses_its_process(tmp_path):
    loader = StageLoader(
        Held(StuckThere(6)), batch_size=4, num_workers=1, timeout=2 * IN_A_PROCESS, worker_method="multiprocessing"
    )
    with loader:
        events = []
        iterator = iter(loader)
        while True:
            try:
                events.append(next(iterator).tolist())
            except StageTimeout as error:
                events.append(error)
            except StopIteration:
                break
            except RuntimeError:  # while the process starts, nobody has the batch
                iterator.give_up_late(iterator._runs[0])
    assert shape(events) == OTHERS
    assert events[1].index == 6


# Others that look on ---------------------------------------------------------------------------------------


class Heard(Listener):
    """What stages it was told to have run."""

    def __init__(self):
        self.ran_ones = []

    def ran(self, one):
        self.ran_ones.append(one)


@pytest.mark.parametrize("concurrency", [None, 2])
def test_who_listens_is_told_once_that_the_stage_ended_with_a_time_out(stuck_at, concurrency):
    stuck, heard = stuck_at(5), Heard()
    stage = Stage(stuck, "decode", timeout_seconds=SECONDS, concurrency=concurrency)
    loader = StageLoader(range(16), batch_size=4, num_workers=2, stages=[stage], isolation="shared")
    loader.ledger.probes.add(heard)
    assert shape(story(iter(loader))) == OTHERS
    stuck.let_go()
    loader.close()
    (one,) = [one for one in heard.ran_ones if one.index == 5 and one.stage == "decode"]
    assert (one.error, one.thread.name) == ("StageTimeout", stuck.threads[0].name)
    assert one.end - one.begin >= SECONDS
    assert heard.fault is None


def test_the_time_of_kept_processes_is_looked_at_in_each_epoch():
    stages = [Stage(StuckThere(5), "decode", executor="process", timeout_seconds=IN_A_PROCESS)]
    with StageLoader(range(16), batch_size=4, num_workers=1, stages=stages, persistent_workers=True) as loader:
        for _ in range(2):
            assert shape(story(iter(loader))) == OTHERS


def test_processes_made_by_fork_are_looked_at_too():
    stages = [Stage(StuckThere(6), "decode", timeout_seconds=IN_A_PROCESS)]
    context = multiprocessing.get_context("fork")
    with (
        StageLoader(range(16), batch_size=4, num_workers=2, stages=stages, multiprocessing_context=context) as loader,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and newer: this process has threads
        events = story(iter(loader))
    assert shape(events) == OTHERS
    assert events[1].index == 6
