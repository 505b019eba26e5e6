"""``python -m torchstage probe``: what it says, and what it says when it cannot."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from torchstage.__main__ import main
from torchstage.probe import command as probing
from torchstage.probe import process_tree
from torchstage.probe.command import Probed, ProbeFailed, Request, Setting, recommended

ONE, MANY, PROCESSES = Setting("thread", 1), Setting("thread", 4), Setting("multiprocessing", 4)

DATASETS = """
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        print("said by the dataset")
        return torch.zeros(100)

class Unsendable(Numbers):
    def __init__(self):
        self.fn = lambda value: value

def fails():
    raise FileNotFoundError("no photos here")

def nothing():
    return 3

def collate(samples):
    return torch.stack(samples)

number = 3
"""


@pytest.fixture
def datasets(tmp_path: Path) -> str:
    path = tmp_path / "their_datasets.py"
    path.write_text(DATASETS)
    return str(path)


def found(setting: Setting, rate: float) -> Probed:
    return Probed(setting, rate, 0.1, 1.0, 2**20, True, 400, 400, 100)


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ((100, 105, 100), ONE),  # as much: the simplest
        ((100, 380, 390), MANY),
        ((100, 90, 390), PROCESSES),
        ((100, 100, 0), ONE),
    ],
)
def test_the_simplest_setting_that_gives_about_as_much_is_recommended(rates: tuple[int, ...], best: Setting) -> None:
    settings = [found(setting, rate) for setting, rate in zip((ONE, MANY, PROCESSES), rates, strict=True)]
    assert recommended(settings)[0] == best


def test_a_setting_that_failed_is_not_recommended() -> None:
    failed = Probed(PROCESSES, error="dataset.fn is a lambda")
    assert recommended([found(ONE, 1.0), failed]) == (ONE, "it is the only one that could be measured")


def test_a_table_says_what_failed_and_why(monkeypatch: Any) -> None:
    def run(request: Request, setting: Setting) -> Probed:
        return Probed(setting, error="dataset.fn is a lambda") if setting == PROCESSES else found(setting, 50.0)

    monkeypatch.setattr(probing, "_run", run)
    text = str(probing.probe(Request("mine:make", num_workers=4)))
    assert "> 1 thread" in text
    assert "4 processes  failed" in text
    assert "4 processes: dataset.fn is a lambda" in text
    assert "Recommended: StageLoader(..., num_workers=1, worker_method='thread')" in text


def test_one_worker_has_no_second_setting_of_threads(monkeypatch: Any) -> None:
    monkeypatch.setattr(probing, "_run", lambda request, setting: found(setting, 50.0))
    report = probing.probe(Request("mine:make", num_workers=1))
    assert [one.setting.label for one in report.settings] == ["1 thread", "1 process"]


def test_if_nothing_could_be_measured_it_fails(monkeypatch: Any) -> None:
    monkeypatch.setattr(probing, "_run", lambda request, setting: Probed(setting, error="it is gone"))
    with pytest.raises(ProbeFailed, match="it is gone"):
        probing.probe(Request("mine:make", num_workers=4))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "has no 'missing'"),
        ("number", "cannot be called"),
        ("fails", "FileNotFoundError: no photos here"),
        ("nothing", "is no dataset"),
    ],
)
def test_what_is_no_dataset_is_said_once(name: str, words: str, datasets: str) -> None:
    with pytest.raises(ProbeFailed, match=words):
        probing.probe(Request(f"{datasets}:{name}", num_workers=2, seconds=0.1))


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ProbeFailed, match="there is no module no_such_module"):
        probing.probe(Request("no_such_module:make", num_workers=2, seconds=0.1))


@pytest.mark.parametrize(
    "arguments",
    [
        ["probe", "module"],
        ["probe", "module:make", "--batch-size", "0"],
        ["probe", "module:make", "--seconds", "never"],
        ["probe", "module:make", "--num-workers", "-1"],
        [],
    ],
)
def test_a_command_that_is_wrong_ends_with_two(arguments: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_failure_ends_with_one_and_a_line(capsys: Any) -> None:
    assert main(["probe", "no_such_module:make", "--seconds", "0.1", "--num-workers", "1"]) == 1
    assert "torchstage probe: there is no module no_such_module" in capsys.readouterr().err


def test_threads_and_processes_are_measured_on_the_users_own_dataset(datasets: str, capsys: Any) -> None:
    options = ["--seconds", "0.3", "--num-workers", "2", "--batch-size", "8", "--collate", f"{datasets}:collate"]
    assert main(["probe", f"{datasets}:Numbers", "--json", *options]) == 0
    report = json.loads(capsys.readouterr().out)  # what the dataset printed is not in there
    assert [one["setting"]["method"] for one in report["settings"]] == ["thread", "thread", "multiprocessing"]
    for one in report["settings"]:
        assert one["error"] is None
        assert one["samples_per_second"] > 0
        assert one["serialised_bytes"] >= 400
        assert one["memory_bytes"] > 2**20
    assert "Recommended" in report["sentence"]


def test_a_dataset_that_cannot_be_sent_is_measured_in_threads(datasets: str) -> None:
    report = probing.probe(Request(f"{datasets}:Unsendable", batch_size=8, num_workers=2, seconds=0.1))
    threads, more, processes = report.settings
    assert (threads.error, more.error) == (None, None)
    assert processes.error is not None
    assert "lambda" in processes.error


@pytest.mark.skipif(sys.platform != "linux", reason="it is read from /proc")
def test_the_tree_counts_this_process_and_its_children() -> None:
    assert os.getpid() in process_tree.pids_of_tree()
    seconds = process_tree.cpu_seconds_of_tree()
    assert seconds is not None
    assert seconds > 0
    memory, _ = process_tree.memory_of_tree()
    assert memory is not None
    assert memory > 2**20
