"""The pages of numbers in docs/ are what their scripts draw from the committed results: no number is typed."""

import json
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are not part of a source archive")

from benchmarks import plots, profiles, readme, summary, table, where_we_win
from benchmarks.cases import probe_prediction

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
REDRAW = "results are newer than their pages: python -m benchmarks.draw"


def test_the_page_of_the_benchmarks_is_drawn_from_the_results() -> None:
    assert (ROOT / "docs/benchmarks.md").read_text() == table.page(), REDRAW


def test_the_page_of_the_profiles_is_drawn_from_the_results() -> None:
    drawn = profiles.page(json.loads((RESULTS / "ceiling.json").read_text()))
    assert (ROOT / "docs/profiles.md").read_text() == drawn, REDRAW


def test_the_page_of_the_probe_has_the_table_that_is_drawn_from_its_result() -> None:
    page = probe_prediction.PAGE.read_text()
    assert probe_prediction.BEGIN in page
    assert page == probe_prediction.drawn(page), "python -m benchmarks.cases.probe_prediction"


def test_each_result_is_on_a_page() -> None:
    named = {f"{name}.json" for name in (*table.NAMES, "ceiling")}
    assert {path.name for path in RESULTS.glob("*.json")} <= named


def test_the_table_of_the_readme_is_drawn_from_the_results() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == readme.filled(text), REDRAW


def test_the_page_of_where_we_win_is_drawn_from_the_results() -> None:
    assert (ROOT / "docs/where-we-win.md").read_text() == where_we_win.page(), REDRAW


@pytest.mark.parametrize("name", plots.PICTURES)
def test_a_picture_shows_the_results(name: str) -> None:
    assert plots.digest_in(plots.FOLDER / f"{name}.svg") == plots.digest(plots.SHOWN[name]()), REDRAW


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pictures, drawn anew. For the whole module, since matplotlib keeps the fonts open that it has read once."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("drawn")
    for name in plots.PICTURES:
        plots.draw(name, folder / f"{name}.svg")
    return folder


@pytest.mark.parametrize("name", plots.PICTURES)
def test_the_same_results_give_the_same_picture(name: str, drawn: Path, tmp_path: Path) -> None:
    plots.draw(name, tmp_path / f"{name}.svg")
    assert (tmp_path / f"{name}.svg").read_bytes() == (drawn / f"{name}.svg").read_bytes()
    assert plots.digest_in(drawn / f"{name}.svg") == plots.digest(plots.SHOWN[name]())


@pytest.mark.usefixtures("drawn")
def test_without_results_pages_and_pictures_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    assert table.page().lower().count(summary.NOT_YET) == len(table.NAMES)
    lines = readme.table().splitlines()[2:]
    assert lines
    assert all(summary.NOT_YET in line for line in lines)
    assert where_we_win.page().count("`python -m benchmarks ") == len(lines)
    for name in plots.PICTURES:
        plots.draw(name, tmp_path / f"{name}.svg")
        assert plots.digest_in(tmp_path / f"{name}.svg") == plots.digest(plots.SHOWN[name]())


def test_where_only_ours_could_be_measured_the_page_has_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((RESULTS / "noop.json").read_text())
    for measured in result["rounds"]:
        for key in [key for key in measured if not key.startswith("stageloader")]:
            del measured[key]
    (tmp_path / "noop.json").write_text(json.dumps(result))
    monkeypatch.setattr(summary, "RESULTS", tmp_path)
    page = where_we_win.page()
    line = next(line for line in page.splitlines() if line.startswith("- **No-op samples**"))
    assert "times as good" not in line
    assert page.index(where_we_win.ALONE) < page.index(line)
