"""``check_thread_safety``: a dataset in, what goes wrong when threads share it out."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import torchstage

from .breaking import STORIES, UNSEEN
from .breaking_memory import ScratchArray
from .breaking_state import Crop, Shift, Transformed
from .shared import SHARED
from .stories import NUM_SAMPLES, NUM_THREADS, Case, Numbered, caught_warnings, pause, values_of

pytestmark = pytest.mark.filterwarnings(  # of files that two threads open at once
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
TESTS = Path(__file__).parents[1]
IN_THIS_PROCESS = [name for name, told in STORIES.items() if not told.may_crash]


LOADED_ONCE = ("an_index_loaded_once", "a_cached_property")  # looks like what changes again and again


def check(case: Case, **arguments):
    return torchstage.check_thread_safety(case.dataset, collate_fn=case.collate_fn, **arguments)


@pytest.mark.parametrize("name", [name for name in IN_THIS_PROCESS if name not in UNSEEN])
def test_it_names_the_suspect(name, tmp_path):
    told = STORIES[name]
    with told.opened(tmp_path) as case, caught_warnings():
        report = check(case)
    assert any(told.suspect in suspect for suspect in report.suspects), report.suspects
    assert told.suspect in str(report)


# Batches of one show nothing of collate_fn's; what no pause forces may not show in a few rounds.
WITHOUT_DIFFERENCE = (
    "state_of_a_collate_method",
    "state_of_a_collate_object",
    "a_tar_archive",
    "an_hdf5_file_opened_for_each_sample",
    "a_sqlite_connection",  # raises as it is
)


@pytest.mark.parametrize("name", [name for name in IN_THIS_PROCESS if name not in WITHOUT_DIFFERENCE])
def test_it_shows_the_differences(name, tmp_path):
    """Each with its index, what one thread made of it, and what came or the error that came."""
    told = STORIES[name]
    with told.opened(tmp_path) as case, caught_warnings():
        report = torchstage.check_thread_safety(case.dataset)
    assert not report.is_safe
    assert report.differences
    for difference in report.differences:
        assert 0 <= difference.index < NUM_SAMPLES
        assert isinstance(difference.got, Exception) or difference.got != difference.expected
        if name not in ("drawn_parameters_on_self", "state_behind_a_subset"):
            assert difference.expected == told.right(difference.index)
    assert f"sample {report.differences[0].index}" in str(report)


def test_collate_fn_is_tried_as_well():
    class Collator:
        def __call__(self, samples):
            self.samples = samples
            pause()
            return [sample * 2 for sample in self.samples]

    report = torchstage.check_thread_safety([*range(50)], collate_fn=Collator())
    assert not report.is_safe
    assert any("collate_fn" in suspect for suspect in report.suspects)


@pytest.mark.parametrize("name", SHARED)
def test_it_finds_nothing_wrong_with_what_may_be_shared(name, tmp_path):
    with SHARED[name].opened(tmp_path) as case, caught_warnings() as messages:
        report = check(case)
    assert report.is_safe, str(report)
    assert not report.differences
    assert messages == []


@pytest.mark.parametrize("name", [name for name in SHARED if name not in LOADED_ONCE])
def test_it_suspects_nothing_there(name, tmp_path):
    with SHARED[name].opened(tmp_path) as case, caught_warnings():
        assert check(case).suspects == ()


def test_it_reports_what_crashes_before_training_does(tmp_path):
    """UR-051. In a process of its own, which has to live."""
    may_crash = [name for name in STORIES if STORIES[name].may_crash]
    program = f"""
from pathlib import Path
import torchstage
from isolation.breaking import STORIES
for name in {may_crash}:
    told, folder = STORIES[name], Path({str(tmp_path)!r}) / name
    folder.mkdir()
    with told.opened(folder) as case:
        report = torchstage.check_thread_safety(case.dataset, collate_fn=case.collate_fn)
        assert not report.is_safe, name
        assert any(told.suspect in suspect for suspect in report.suspects), (name, report.suspects)
        print(name)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (ended.returncode, ended.stdout.split()) == (0, may_crash), ended.stderr[-2000:]


def test_the_report_can_be_read():
    report = torchstage.check_thread_safety(Transformed(Shift()))
    text = str(report)
    assert "dataset.transform.shift" in text
    assert len(text) < 4000
    assert all(len(line) < 400 for line in text.splitlines())


def test_the_report_of_a_safe_dataset_says_so():
    text = str(torchstage.check_thread_safety([*range(20)]))
    assert "all the same" in text


def test_big_samples_make_no_big_report():
    class Big(Numbered):
        def __init__(self):
            self.scratch = np.zeros((64, 64, 3))

        def __getitem__(self, index):
            self.scratch[:] = index
            pause()
            return {"image": self.scratch.copy(), "label": torch.tensor(index)}

    report = torchstage.check_thread_safety(Big())
    assert not report.is_safe
    assert len(str(report)) < 4000


def test_only_the_given_indices_are_tried():
    class Listed(Numbered):
        def __init__(self):
            self.tried = torch.zeros(NUM_SAMPLES, dtype=torch.bool)

        def __getitem__(self, index):
            assert index in (3, 5, 8)
            return index

    assert torchstage.check_thread_safety(Listed(), indices=[3, 5, 8]).is_safe


def test_the_number_of_samples_bounds_how_many_are_tried():
    class Endless(Numbered):
        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            return index

    assert torchstage.check_thread_safety(Endless(), num_samples=50).is_safe


def test_an_error_that_one_thread_gets_is_raised():
    """There is nothing to compare with."""

    class Failing(Numbered):
        def __getitem__(self, index):
            if index == 5:
                raise KeyError(index)
            return index

    with pytest.raises(KeyError, match="5"):
        torchstage.check_thread_safety(Failing())


def test_random_samples_are_no_difference():
    """What a sample draws is its own, whichever thread makes it: so it can be compared."""

    class Noisy(Numbered):
        def __getitem__(self, index):
            pause()
            return torch.rand(3) + np.random.rand()

    report = torchstage.check_thread_safety(Noisy())
    assert report.is_safe, str(report)


def test_samples_that_cannot_be_compared_with_equals_are_compared():
    """NaN, arrays, nested containers, objects without ``__eq__``."""

    class Odd(Numbered):
        def __getitem__(self, index):
            pause()
            return {"nan": float("nan"), "array": np.array([np.nan, index]), "parts": [(torch.tensor(index), object)]}

    report = torchstage.check_thread_safety(Odd())
    assert report.is_safe, str(report)


def traces():
    return sys.getswitchinterval(), torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()


def test_it_leaves_no_trace_in_the_random_generators_and_the_switch_interval():
    before = traces()
    torchstage.check_thread_safety(ScratchArray())
    assert traces() == before


def test_a_dataset_that_it_called_safe_is_safe_to_share(tmp_path):
    with SHARED["a_cache_that_grows"].opened(tmp_path) as case:
        assert check(case, num_threads=NUM_THREADS).is_safe
        assert values_of(case.loader(isolation="shared")) == SHARED["a_cache_that_grows"].all_right()


def test_ur_031_the_check_names_what_differs():
    report = torchstage.check_thread_safety(Transformed(Crop()))
    assert not report.is_safe
    assert any("dataset.transform.params" in suspect for suspect in report.suspects)


def test_ur_071_the_check_flags_the_shared_cache(tmp_path):
    told = STORIES["a_cache_of_the_module"]
    with told.opened(tmp_path) as case, caught_warnings():
        report = torchstage.check_thread_safety(case.dataset)
    assert not report.is_safe
    assert any("opened_once" in suspect for suspect in report.suspects)
