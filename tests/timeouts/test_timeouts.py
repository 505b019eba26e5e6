"""Time-outs of stages in threads: what is stuck fails in its place, and the epoch goes on with as many threads."""

import re
import threading
import time
import warnings

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info

from torchstage import Split, Stage, StageLoader, split
from torchstage.engine.deadlines import MOST_PER_THREAD, StageTimeout

from .stuck import PATIENCE_SECONDS, SECONDS, flat, shape, story, wait_for

pytestmark = [
    pytest.mark.timing,  # it is about how long things take
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

OTHERS = [[0, 1, 2, 3], StageTimeout, [8, 9, 10, 11], [12, 13, 14, 15]]


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_a_stuck_sample_fails_in_its_place_and_the_others_come(stuck_at, num_workers):
    stages = [Stage(stuck_at(5), "decode", timeout_seconds=SECONDS)]
    loader = StageLoader(range(16), batch_size=4, num_workers=num_workers, stages=stages)
    events = story(iter(loader))
    assert shape(events) == OTHERS
    error = events[1]
    assert isinstance(error, TimeoutError)
    assert (error.stage, error.index, error.seconds) == ("decode", 5, SECONDS)
    assert re.match(
        r"stage 'decode', dataset index 5, batch 1: not done after 0\.2 seconds, and given up, in thread "
        r"torchstage-fetch-\d, which is here:\n(?s:.*), in wait_for_ever\n\s+assert self\._let_go\.wait",
        str(error),
    )
    assert error.stack in str(error)
    assert error.__notes__ == ["torchstage: raised in stage 'decode', dataset index 5, batch 1"]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_very_first_samples_may_be_stuck(stuck_at, index, num_workers):
    stages = [Stage(stuck_at(index), timeout_seconds=SECONDS)]
    loader = StageLoader(range(12), batch_size=4, num_workers=num_workers, stages=stages)
    for _ in range(2):
        assert shape(story(iter(loader))) == [StageTimeout, [4, 5, 6, 7], [8, 9, 10, 11]]


def test_the_last_sample_of_all_may_be_stuck(stuck_at):
    loader = StageLoader(range(8), batch_size=4, num_workers=2, stages=[Stage(stuck_at(7), timeout_seconds=SECONDS)])
    assert shape(story(iter(loader))) == [[0, 1, 2, 3], StageTimeout]


def test_the_file_is_named(stuck_at):
    class Files(Dataset):
        samples = [("a.jpg", 0), ("b.jpg", 1)]  # noqa: RUF012

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return index

    loader = StageLoader(Files(), num_workers=1, stages=[Stage(stuck_at(1), timeout_seconds=SECONDS)])
    events = story(iter(loader))
    assert str(events[1]).startswith("stage 'Stuck', dataset index 1 (b.jpg), batch 1: ")


def test_a_stage_without_a_timeout_may_take_its_time(stuck_at):
    slow = stuck_at(2)
    stages = [Stage(slow, "slow"), Stage(lambda value: value, "quick", timeout_seconds=SECONDS)]
    iterator = iter(StageLoader(range(6), batch_size=3, num_workers=2, stages=stages))
    threading.Timer(2 * SECONDS, slow.let_go).start()
    assert story(iterator) == [[0, 1, 2], [3, 4, 5]]


def test_each_stage_has_a_time_of_its_own(stuck_at):
    """The sample is in the second stage for too long, not in both together."""
    stages = [
        Stage(lambda value: value, "first", timeout_seconds=SECONDS),
        Stage(stuck_at(1), "second", timeout_seconds=2 * SECONDS),
    ]
    events = story(iter(StageLoader(range(4), num_workers=2, stages=stages)))
    assert (events[1].stage, events[1].seconds) == ("second", 2 * SECONDS)


def test_the_stages_that_a_dataset_is_split_into_may_have_timeouts(stuck_at):
    class Files(Dataset):
        def __init__(self, read):
            self.read = read

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return self.read(index)

    @split.register
    def _(dataset: Files) -> Split:
        return Split((Stage(float, "open"), Stage(dataset.read, "read", timeout_seconds=SECONDS)))

    events = story(iter(StageLoader(Files(stuck_at(1)), num_workers=2)))
    assert shape(events) == [[0], StageTimeout, [2], [3]]
    assert events[1].stage == "read"


def test_as_many_threads_go_on(stuck_at):
    """The samples after the stuck one wait for each other, so that two threads must be at them."""
    stuck, together = stuck_at(1), threading.Barrier(2)

    def meet(value):
        if value >= 4:
            together.wait(PATIENCE_SECONDS)
        return value

    stages = [Stage(stuck, timeout_seconds=SECONDS), Stage(meet)]
    loader = StageLoader(range(12), batch_size=2, num_workers=2, stages=stages, isolation="shared")
    iterator = iter(loader)
    assert shape(story(iterator))[0] is StageTimeout
    assert not together.broken


def test_what_a_stuck_thread_brings_late_is_dropped_and_the_thread_ends(stuck_at):
    stuck = stuck_at(5)
    stages = [Stage(stuck, timeout_seconds=SECONDS)]
    loader = StageLoader(range(16), batch_size=4, num_workers=2, stages=stages, persistent_workers=True)
    iterator = iter(loader)
    events = [next(iterator).tolist()]
    with pytest.raises(StageTimeout):
        next(iterator)
    stuck.let_go()
    (thread,) = stuck.threads
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    events += story(iterator)
    assert events == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15]]
    named = {stage.name: stage for stage in loader.stats().stages}
    assert named["Stuck"].errors == 1
    assert 14 <= named["Stuck"].samples <= 16  # the two after the stuck one may have been begun, or not
    assert sum(stage.busy_seconds for stage in loader.stats().stages) >= SECONDS
    loader.close()


def test_the_next_epoch_goes_on_though_the_thread_is_still_stuck(stuck_at):
    stuck = stuck_at(5)
    stages = [Stage(stuck, timeout_seconds=SECONDS)]
    loader = StageLoader(range(16), batch_size=4, num_workers=2, stages=stages, persistent_workers=True)
    assert shape(story(iter(loader))) == OTHERS
    stuck.values = set()
    for _ in range(2):
        assert flat(story(iter(loader))) == list(range(16))
    stuck.let_go()
    loader.close()


def test_a_thread_that_got_stuck_in_an_epoch_that_was_left_is_given_up_in_the_next(stuck_at):
    stuck = stuck_at(5)
    stages = [Stage(stuck, timeout_seconds=SECONDS)]
    loader = StageLoader(
        range(16), batch_size=4, num_workers=1, stages=stages, persistent_workers=True, isolation="shared"
    )
    iterator = iter(loader)
    next(iterator)
    assert stuck.is_inside.wait(PATIENCE_SECONDS)
    stuck.values = set()
    assert flat(story(iter(loader))) == list(range(16))
    stuck.let_go()
    loader.close()


def test_the_new_thread_is_the_same_worker_with_copies_of_its_own(stuck_at, tmp_path):
    """isolation is honoured: an open file of the dataset is opened anew for it, and worker_init_fn has run in it."""
    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(32)))
    stuck, seen, begun = stuck_at(9), {}, []

    class Numbers(Dataset):
        def __init__(self):
            self.file = path.open("rb")

        def __len__(self):
            return 32

        def __getitem__(self, index):
            info = get_worker_info()
            seen.setdefault(threading.current_thread().name, set()).add((info.id, id(info.dataset.file)))
            assert info.dataset is self
            self.file.seek(index)
            return self.file.read(1)[0]

    dataset = Numbers()
    loader = StageLoader(
        dataset,
        batch_size=4,
        num_workers=2,
        stages=[Stage(stuck, timeout_seconds=SECONDS)],
        worker_init_fn=lambda number: begun.append((number, threading.current_thread().name)),
    )
    events = story(iter(loader))
    assert [event for event in events if isinstance(event, list)] == [
        list(range(n, n + 4)) for n in range(0, 32, 4) if n != 8
    ]
    (new,) = [name for _, name in begun if "." in name]
    (old,) = [thread.name for thread in stuck.threads]
    assert new == f"{old}.1"
    assert {number for number, name in begun if name in (old, new)} == {int(old[-1])}
    assert all(len(files) == 1 for files in seen.values())
    files = [file for files in seen.values() for _, file in files]
    assert len(set(files)) == len(files)
    assert id(dataset.file) not in files or len(files) > 1
    stuck.let_go()
    loader.close()
    dataset.file.close()


@pytest.mark.parametrize("draws_meanwhile", [False, True])
def test_the_new_thread_draws_what_the_old_one_would_have(stuck_at, draws_meanwhile):
    """Also from a generator that the dataset keeps, although the user drew from that since the threads have copies."""
    import numpy as np

    class Drawing(Dataset):
        def __init__(self):
            self.generator = np.random.default_rng(3)

        def __len__(self):
            return 64

        def __getitem__(self, index):
            return index, float(self.generator.random()), float(torch.rand(()))

    def made(stuck, seconds):
        dataset = Drawing()
        stages = [Stage(lambda sample: (stuck(sample[0]), *sample[1:]), timeout_seconds=seconds)]
        loader = StageLoader(dataset, batch_size=4, num_workers=1, stages=stages, seed=5, collate_fn=list)
        found, iterator = {}, iter(loader)
        while True:
            try:
                found.update((sample[0], sample) for sample in next(iterator))
            except StageTimeout:
                continue
            except StopIteration:
                return found
            finally:
                if draws_meanwhile:
                    dataset.generator.random(7)

    expected = made(lambda value: value, None)
    with_one_stuck = made(stuck_at(9), SECONDS)
    assert with_one_stuck == {index: sample for index, sample in expected.items() if index not in range(8, 12)}


def test_too_many_stuck_threads_are_an_error(stuck_at):
    stuck = stuck_at(*range(100))
    iterator = iter(StageLoader(range(100), num_workers=1, stages=[Stage(stuck, timeout_seconds=0.02)]))
    with pytest.raises(RuntimeError, match=f"{MOST_PER_THREAD} threads are stuck in user code"):
        story(iterator)
    assert len(stuck.threads) == MOST_PER_THREAD + 1
    with pytest.raises(RuntimeError, match="closed"):
        next(iterator)
    stuck.let_go()


def test_stuck_threads_that_came_out_do_not_count(stuck_at):
    num_stuck = 3 * MOST_PER_THREAD
    gates = {index: stuck_at(index) for index in range(num_stuck)}
    loader = StageLoader(
        range(num_stuck), num_workers=1, stages=[Stage(lambda index: gates[index](index), timeout_seconds=0.02)]
    )
    iterator = iter(loader)
    for index in range(num_stuck):
        with pytest.raises(StageTimeout):
            next(iterator)
        gates[index].let_go()
        wait_for(lambda index=index: not gates[index].threads[0].is_alive())
    with pytest.raises(StopIteration):
        next(iterator)


def test_close_names_what_is_stuck_and_waits_no_longer_than_ever(stuck_at):
    stuck = stuck_at(1, 3)
    loader = StageLoader(range(8), batch_size=2, num_workers=1, stages=[Stage(stuck, timeout_seconds=SECONDS)])
    story(iter(loader))
    begin = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader.close()
    assert time.monotonic() - begin < 4
    said = sorted(str(one.message) for one in caught if one.category is RuntimeWarning)
    assert len(said) == 2
    for words, index in zip(said, (1, 3), strict=True):
        assert re.match(
            rf"StageLoader: thread torchstage-fetch-0\S* is still in stage 'Stuck', .*index {index} ", words
        )


def test_the_end_of_an_epoch_does_not_wait_for_who_was_given_up(stuck_at):
    loader = StageLoader(range(4), num_workers=2, stages=[Stage(stuck_at(1), timeout_seconds=0.05)])
    iterator = iter(loader)
    assert len([next(iterator)]) == 1
    with pytest.raises(StageTimeout):
        next(iterator)
    assert [next(iterator).item() for _ in range(2)] == [2, 3]
    begin = time.monotonic()
    with pytest.raises(StopIteration):
        next(iterator)
    assert time.monotonic() - begin < 1


def test_without_order_the_stuck_sample_keeps_no_other_waiting(stuck_at):
    stages = [Stage(stuck_at(1), timeout_seconds=SECONDS)]
    loader = StageLoader(range(6), num_workers=2, stages=stages, in_order=False)
    events = story(iter(loader))
    assert sorted(event[0] for event in events if isinstance(event, list)) == [0, 2, 3, 4, 5]
    assert len([event for event in events if isinstance(event, StageTimeout)]) == 1


@pytest.mark.parametrize("seconds", [True, "1", [1]])
def test_a_timeout_is_a_number(seconds):
    with pytest.raises(TypeError, match=r"Stage 'len': timeout_seconds must be a number of seconds or None, got"):
        Stage(len, timeout_seconds=seconds)


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_timeout_is_more_than_nothing(seconds):
    with pytest.raises(ValueError, match=r"Stage 'len': timeout_seconds must be more than 0 and not infinite, got"):
        Stage(len, timeout_seconds=seconds)


def test_in_the_callers_thread_there_is_no_timeout_which_is_said_once():
    loader = StageLoader(range(4), batch_size=2, stages=[Stage(float, timeout_seconds=1e-9)])
    with pytest.warns(UserWarning, match=r"timeout_seconds of 'float' has no effect: with num_workers=0"):
        assert len(list(loader)) == 2
    assert len(list(loader)) == 2  # a second warning would be an error


def test_a_timeout_can_be_sent_to_another_process():
    import pickle

    error = StageTimeout("words", stage="decode", seconds=2.0, index=7, stack="here")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.stage, again.seconds, again.index, again.stack) == ("words", "decode", 2.0, 7, "here")
