"""The examples run as a user runs them: as programs of their own, with warnings as errors."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run_example(name: str, *arguments: str | Path) -> str:
    """What the example prints. Fails with all of it where the example fails."""
    command = [sys.executable, "-W", "error", EXAMPLES / name, *arguments]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


@pytest.mark.timeout(400)  # it takes 20 s on a machine that has time
def test_swapping_the_class_gives_the_same_batches_and_losses(tmp_path):
    printed = run_example("01_drop_in.py", "--quick", "--data", tmp_path)
    assert re.search(r"Same batches: yes \(\d+ batches in 1 epoch, and the candidate restarted", printed), printed
    assert "Same losses:  yes" in printed
    assert re.search(r"^ +DataLoader +StageLoader$", printed, re.MULTILINE), printed

    [patches] = tmp_path.iterdir()  # nothing half-made beside it
    num_photographs = len(list((patches / "train").iterdir()))
    assert num_photographs >= 8
    assert len(list(patches.glob("*/*/*.jpg"))) == num_photographs * (12 + 4)


def test_a_training_that_was_killed_goes_on_as_if_it_had_not_been():
    printed = run_example("02_resume.py", "--quick")
    assert re.search(r"killed, num_workers=2: +steps 1 to \d+, in epoch 2", printed), printed
    assert re.search(r"Same batches and losses: yes \(18 steps", printed), printed
