"""Datasets that break in plain threads: that they do, and that a loader makes every sample of theirs right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from .breaking import BREAKING, COPIED, SERIALISED, STORIES, UNSEEN
from .stories import NUM_SAMPLES, breaks, caught_warnings, values_of

TESTS = Path(__file__).parents[1]


NUM_TRIES = 6  # each of several epochs; where other work has the cores, one try may see no break


def breaks_elsewhere(name: str, folder: Path) -> bool:
    """Whether it breaks in one of several processes of its own: a crash counts, and that it hangs."""
    return any(breaks_in_a_process(name, folder) for _ in range(NUM_TRIES))


def breaks_in_a_process(name: str, folder: Path) -> bool:
    places = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "isolation.breaking", name, str(folder)],
        env={**os.environ, "PYTHONPATH": places},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = ended.stdout.strip()
    assert ended.returncode < 0 or said in ("it breaks", "it holds") or "Timeout (" in ended.stderr, ended.stderr
    return said != "it holds"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that two threads open at once
@pytest.mark.parametrize("name", STORIES)
def test_it_breaks_when_threads_share_it(name, tmp_path, short_switch_interval):
    told = STORIES[name]
    if told.may_crash:
        assert breaks_elsewhere(name, tmp_path)
        return
    with told.opened(tmp_path) as case:
        assert breaks(told, case)


@pytest.mark.parametrize("name", STORIES)
def test_it_is_right_in_one_thread(name, tmp_path):
    """The story tells the truth: so DataLoader sees it."""
    told = STORIES[name]
    with told.opened(tmp_path) as case:
        loader = DataLoader(case.dataset, batch_size=2, collate_fn=case.collate_fn)
        assert values_of(loader) == told.all_right()


@pytest.mark.parametrize("name", BREAKING)
def test_it_is_right_without_a_word_from_the_user(name, tmp_path, short_switch_interval):
    """Epoch for epoch, with fresh threads and with the same ones; what is copied is copied in silence."""
    told = BREAKING[name]
    with told.opened(tmp_path) as case, caught_warnings() as messages:
        for options in ({"num_workers": 2}, {"num_workers": 8, "persistent_workers": True}):
            with case.loader(**options) as loader:
                for _ in range(2):
                    assert values_of(loader) == told.all_right()
    assert name not in COPIED or messages == []


@pytest.mark.parametrize("name", [name for name in [*SERIALISED, *UNSEEN] if name != "a_sqlite_connection"])
def test_it_is_right_behind_a_lock(name, tmp_path, short_switch_interval):
    """A connection of sqlite that another thread made is an error even then."""
    told = STORIES[name]
    with told.opened(tmp_path) as case:
        assert values_of(case.loader(isolation="serial")) == told.all_right()


@pytest.mark.parametrize("name", [*COPIED, "state_of_later_samples", "state_of_the_second_part"])
def test_it_is_right_with_a_copy_for_each_thread(name, tmp_path, short_switch_interval):
    told = STORIES[name]
    with told.opened(tmp_path) as case:
        assert values_of(case.loader(isolation="per_thread")) == told.all_right()


def test_there_are_enough_of_them():
    assert len(COPIED) >= 14
    assert len(SERIALISED) >= 5
    assert len(UNSEEN) == 3
    assert all(len(told.all_right()) == NUM_SAMPLES for told in STORIES.values())
