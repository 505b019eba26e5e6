"""The benchmarks' own rules: what a headline compares, what a run leaves out, what is counted. Nothing is timed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not part of a source archive")

from benchmarks import __main__ as runner
from benchmarks import summary as summary_module
from benchmarks.case import NAMES, QUICK_NAMES, Cell, Headline, load
from benchmarks.loaders import stageloader
from benchmarks.machine import machine
from benchmarks.probes import train_through
from benchmarks.summary import AHEAD, BEHIND, EVEN, FEW, summary, verdict

OURS, SLOW, FAST, PEER = (Cell(key, "speed", key) for key in ("ours", "slow", "fast", "peer"))
HEADLINE = Headline("samples/s", (OURS,), (SLOW, FAST), (PEER,), "why")


def rounds(*of: dict[str, float]) -> dict[str, Any]:
    return {"rounds": [{key: {"speed": speed} for key, speed in measured.items()} for measured in of]}


def test_a_ratio_is_taken_within_a_round_against_the_best_of_it() -> None:
    result = rounds(
        {"ours": 4, "slow": 1, "fast": 2}, {"ours": 9, "slow": 3, "fast": 2}, {"ours": 3, "slow": 1, "fast": 6}
    )
    said = summary(load("noop"), HEADLINE, result)
    assert said.dataloader.ratios == [2.0, 3.0, 0.5]
    assert said.dataloader.name == "fast"  # whose median is best
    assert said.ours.figures == [4, 9, 3]


def test_where_less_is_better_a_ratio_above_one_still_says_that_ours_is_ahead() -> None:
    result = rounds({"ours": 2, "slow": 8, "fast": 4, "peer": 1})
    said = summary(load("noop"), replace(HEADLINE, less_is_better=True), result)
    assert (said.dataloader.name, said.dataloader.ratios, said.peers.ratios) == ("fast", [2.0], [0.5])


def test_a_round_that_lacks_ours_gives_no_ratio() -> None:
    said = summary(load("noop"), HEADLINE, rounds({"slow": 8, "fast": 4}, {"ours": 4, "fast": 4}))
    assert said.dataloader.ratios == [1.0]
    assert said.peers.figures == []


def test_a_case_without_results_says_that_it_is_not_measured() -> None:
    assert not summary(load("noop"), HEADLINE, None).is_measured


def test_few_rounds_decide_nothing() -> None:
    assert [verdict(ratios) for ratios in ([2.0, 2.0], [2.0, 1.1, 3.0], [0.9, 0.5, 0.8], [2.0, 0.9, 3.0])] == [
        FEW,
        AHEAD,
        BEHIND,
        EVEN,
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_case_compares_rows_that_it_has(name: str) -> None:
    case = load(name)
    keys = [entry.key for entry in case.entries]
    assert len(set(keys)) == len(keys)
    assert all(entry in case.entries for entry in case.left_out_when_quick)
    assert case.against is None or all(entry in case.entries for entry in case.against.entries)
    if case.headline is not None:
        compared = (*case.headline.ours, *case.headline.dataloader, *case.headline.peers)
        assert {cell.key for cell in compared} <= set(keys)


def test_a_quick_run_is_a_part_of_the_whole() -> None:
    assert set(QUICK_NAMES) < set(NAMES)


def test_a_row_whose_interpreter_is_not_there_is_skipped_and_says_so() -> None:
    entry = replace(stageloader(1), interpreters=("no-such-python",))
    assert entry.why_skipped() == "no no-such-python on PATH that imports what it needs"
    assert stageloader(1).why_skipped() is None


def result_file(folder: Path, num_rounds: int, **others: Any) -> Path:
    path = folder / "noop.json"
    path.write_text(json.dumps({"machine": machine(), "quick": False, "rounds": [{}] * num_rounds, **others}))
    return path


def test_resume_leaves_out_only_what_was_measured_today_in_as_many_rounds(tmp_path: Path) -> None:
    assert not runner._is_done(tmp_path / "noop.json", 1, quick=False)
    assert runner._is_done(result_file(tmp_path, 5), 5, quick=False)
    assert not runner._is_done(result_file(tmp_path, 4), 5, quick=False)
    assert not runner._is_done(result_file(tmp_path, 5), 5, quick=True)
    yesterday = {**machine(), "date": "2000-01-01"}
    assert not runner._is_done(result_file(tmp_path, 5, machine=yesterday), 5, quick=False)


def test_an_estimate_goes_by_what_the_same_work_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_module, "RESULTS", tmp_path)
    case = load("noop")
    assert runner._expected_minutes("noop", 2, quick=False) == 2 * case.minutes
    result_file(tmp_path, 5, minutes=20.0, question=case.question)
    assert runner._expected_minutes("noop", 2, quick=False) == 8.0
    result_file(tmp_path, 5, minutes=20.0, question="another one")
    assert runner._expected_minutes("noop", 2, quick=False) == 2 * case.minutes


def test_a_plan_measures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--plan", "noop", "resume"])
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    monkeypatch.setattr(runner, "run_case", lambda *_: pytest.fail("a case was run"))
    runner.main()
    assert "2 cases" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


class Loader:
    """Five batches of two an epoch."""

    def __init__(self) -> None:
        self.num_epochs = 0

    def __iter__(self) -> Any:
        self.num_epochs += 1
        return iter([[0, 1]] * 5)


@pytest.mark.parametrize("warm_up", [False, True])
def test_one_epoch_more_is_read_than_is_timed(*, warm_up: bool) -> None:
    loader = Loader()
    metrics = train_through(loader, 2, len, warm_up=warm_up)
    assert (loader.num_epochs, metrics["num_samples"]) == (3, 20)
    rest = metrics["seconds"] - metrics["first_batch_seconds"]
    assert metrics["samples_per_second_after_first"] == pytest.approx(18 / rest)
