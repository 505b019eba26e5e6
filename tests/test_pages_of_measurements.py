"""The pages of numbers in docs/ are what their scripts draw from the committed results: no number is typed."""

import json
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not part of a source archive")

from benchmarks import profiles, table
from benchmarks.cases import probe_prediction

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"


def test_the_page_of_the_benchmarks_is_drawn_from_the_results() -> None:
    assert (ROOT / "docs/benchmarks.md").read_text() == table.page(), "python -m benchmarks.table > docs/benchmarks.md"


def test_the_page_of_the_profiles_is_drawn_from_the_results() -> None:
    drawn = profiles.page(json.loads((RESULTS / "ceiling.json").read_text()))
    assert (ROOT / "docs/profiles.md").read_text() == drawn, "python -m benchmarks.ceiling > docs/profiles.md"


def test_the_page_of_the_probe_has_the_table_that_is_drawn_from_its_result() -> None:
    page = probe_prediction.PAGE.read_text()
    assert probe_prediction.BEGIN in page
    assert page == probe_prediction.drawn(page), "python -m benchmarks.cases.probe_prediction"


def test_each_result_is_on_a_page() -> None:
    named = {f"{name}.json" for name in (*table.NAMES, "ceiling")}
    assert {path.name for path in RESULTS.glob("*.json")} <= named
