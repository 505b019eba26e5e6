"""The command, as a user runs it, and what it is made of: fresh processes and ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.comparison import data
from torchstage import compare
from torchstage.__main__ import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(400)  # each process imports torch, which takes seconds on a busy machine
DATA = "tests.comparison.data"


def run(*arguments):
    """Exit status, what it prints, and what it says beside that."""
    command = [sys.executable, "-m", "torchstage", "compare", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return done.returncode, done.stdout, done.stderr


def test_equal_loaders_end_with_zero_and_a_table():
    status, printed, said = run(f"{DATA}:with_workers", f"{DATA}:candidate")
    assert status == 0, said
    assert printed.startswith("EQUAL: 12 batches in 2 epochs, and the candidate restarted at batch 3\n")
    assert "peak memory" in printed
    assert "said by" not in printed


def test_different_loaders_end_with_one_and_json_for_programs():
    path = str(ROOT / "tests/comparison/data.py")
    status, printed, said = run(f"{path}:reference", f"{path}:odd", "--json", "--epochs", "1", "--timed-epochs", "0")
    assert status == 1, said
    found = json.loads(printed)
    assert found["equal"] is False
    assert {difference["index"] for difference in found["differences"]} == {9}
    assert found["differences"][0]["field"] == "['value']"
    assert "said by the user's code" in said


def test_a_difference_on_one_rank_alone_is_found_there():
    arguments = ["--ranks", "2", "--epochs", "1", "--timed-epochs", "0"]
    status, printed, said = run(f"{DATA}:reference_of_rank", f"{DATA}:odd_on_rank_1", *arguments, "--set-epoch")
    assert status == 1, said
    assert "on 2 ranks" in printed
    assert "rank 1, epoch 0" in printed
    assert "rank 0, epoch 0" not in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((f"{DATA}:reference",), "the following arguments are required"),
        (("reference", f"{DATA}:candidate"), "not of the form module:name"),
        ((f"{DATA}:reference", f"{DATA}:candidate", "--epochs", "0"), "whole number of at least 1"),
        ((f"{DATA}:reference", f"{DATA}:candidate", "--tolerance", "much"), "must be a number"),
        ((f"{DATA}:reference", f"{DATA}:candidate", "--restart", "later"), "must be a whole number"),
        ((f"{DATA}:reference", f"{DATA}:candidate", "--timeout", "-1"), "seconds above 0"),
    ],
)
def test_a_command_that_is_wrong_ends_with_two(arguments, words, capsys):
    with pytest.raises(SystemExit) as end:
        main(["compare", *arguments])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("not_there", "has no 'not_there'"),
        ("fails", "the candidate failed: FileNotFoundError: no photos here"),
        ("dies", "the process of the candidate ended with exit status 3"),
    ],
)
def test_a_loader_that_cannot_be_made_ends_with_two_and_a_line(candidate, words, capsys):
    assert main(["compare", f"{DATA}:reference", f"{DATA}:{candidate}", "--epochs", "1"]) == 2
    assert words in capsys.readouterr().err


def test_fresh_processes_need_functions_that_can_be_sent():
    with pytest.raises(TypeError, match="need a function that makes the reference"):
        compare(data.reference(), data.candidate, fresh_processes=True)
    with pytest.raises(TypeError, match="not a lambda"):
        compare(lambda: data.reference(), data.candidate, fresh_processes=True)


def test_each_loader_has_a_process_of_its_own():
    found = compare(data.reference, data.candidate, epochs=1, fresh_processes=True, tolerance=0.0)
    assert found.equal, found
    assert found.reference.num_samples == found.candidate.num_samples == 23
    assert found.reference.cpu_seconds is not None


def test_a_process_that_hangs_is_ended():
    found = compare(data.hangs, data.hangs, fresh_processes=True, timeout=4.0)
    assert [(d.batch, d.candidate) for d in found.differences] == [(1, "nothing in 4 s")]


def test_ranks_are_compared_rank_by_rank_and_may_be_a_process_group():
    found = compare(
        data.reference_in_group, data.candidate_in_group, ranks=2, epochs=2, set_epoch=True, process_group=True
    )
    assert found.equal, found
    assert found.reference.num_samples == 24  # one is given to both ranks, as DistributedSampler does
    assert "on 2 ranks" in found.scope


def test_importing_torchstage_does_not_import_it():
    program = "import sys, torchstage; print([name for name in sys.modules if 'torchstage.comparison' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
