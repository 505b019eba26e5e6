"""Where no copy can be made, one thread at a time uses the dataset, and one warning says what it was and what to do."""

import queue

import pytest

from .breaking import SERIALISED
from .breaking_handles import LmdbCursor
from .stories import NUM_SAMPLES, NUM_THREADS, Case, Watched, caught_warnings, values_of

WAYS_OUT = ("__getitem__", "isolation='shared'")


@pytest.mark.parametrize("name", SERIALISED)
def test_one_warning_names_it_and_the_ways_out(name, tmp_path, short_switch_interval):
    told = SERIALISED[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        loader = case.loader()
        for _ in range(3):
            assert values_of(loader) == told.all_right()
    assert len(messages) == 1, messages
    assert messages[0].startswith("StageLoader: ")
    assert told.suspect in messages[0]
    for way in WAYS_OUT:
        assert way in messages[0]
    assert len(messages[0]) < 1000


@pytest.mark.parametrize("name", SERIALISED)
def test_it_is_a_user_warning_that_points_at_the_users_line(name, tmp_path):
    with SERIALISED[name].opened(tmp_path) as case, pytest.warns(UserWarning, match="StageLoader") as caught:
        list(case.loader())
    ours = [warning for warning in caught if "StageLoader" in str(warning.message)]
    assert [warning.category for warning in ours] == [UserWarning]


@pytest.mark.parametrize("name", SERIALISED)
def test_no_two_threads_are_inside_at_once(name, tmp_path):
    told = SERIALISED[name]
    with told.opened(tmp_path) as case, caught_warnings():
        watched = Watched(case.dataset, num_threads=1)
        assert values_of(Case(watched).loader()) == told.all_right()
        assert watched.inside.most_at_once() == 1


@pytest.mark.parametrize("name", SERIALISED)
def test_by_hand_it_is_silent(name, tmp_path):
    told = SERIALISED[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        assert values_of(case.loader(isolation="serial")) == told.all_right()
    assert messages == []


@pytest.mark.parametrize("name", SERIALISED)
def test_persistent_workers_warn_once_as_well(name, tmp_path):
    told = SERIALISED[name]
    with (
        told.opened(tmp_path) as case,
        caught_warnings() as messages,
        case.loader(persistent_workers=True) as loader,
    ):
        for _ in range(3):
            assert values_of(loader) == told.all_right()
    assert len(messages) == 1, messages


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("name", SERIALISED)
def test_one_thread_needs_no_warning(name, num_workers, tmp_path):
    told = SERIALISED[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        assert values_of(case.loader(num_workers=num_workers)) == told.all_right()
    assert messages == []


def test_two_loaders_at_one_dataset_do_not_meet(tmp_path):
    told = SERIALISED["an_lmdb_cursor"]

    class Followed(LmdbCursor):
        def __init__(self, inner):
            self.__dict__.update(vars(inner))
            self.steps = queue.SimpleQueue()

        def __getitem__(self, index):
            self.steps.put(1)
            try:
                return super().__getitem__(index)
            finally:
                self.steps.put(-1)

    with told.opened(tmp_path) as case, caught_warnings():
        dataset = Followed(case.dataset)
        loaders = [Case(dataset).loader(num_workers=NUM_THREADS) for _ in range(2)]
        for first, second in zip(*loaders, strict=True):
            assert first == second
        steps = [dataset.steps.get() for _ in range(dataset.steps.qsize())]
    assert len(steps) == 4 * NUM_SAMPLES
    assert steps == [1, -1] * (2 * NUM_SAMPLES)


@pytest.mark.parametrize("name", SERIALISED)
def test_per_thread_by_hand_says_why_it_cannot(name, tmp_path):
    """The user asked for copies: either they are made and right, or the loader says what is in the way."""
    told = SERIALISED[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        try:
            values = values_of(case.loader(isolation="per_thread"))
        except Exception as error:
            assert told.suspect in str(error)  # noqa: PT017  # one of two ways to say it
            return
    assert values == told.all_right() or any(told.suspect in message for message in messages + values[:1])
