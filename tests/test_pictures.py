"""The pictures of docs/: their scripts draw them again, as large as they are committed.

In processes of their own: matplotlib keeps its fonts open.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torchvision")
Image = pytest.importorskip("PIL.Image")

DOCS = Path(__file__).resolve().parent.parent / "docs"


def draw(name: str, picture: Path, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, DOCS / f"draw_{name}.py", picture, *options], cwd=DOCS.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def size_of(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as image:
        assert len(image.convert("RGB").getcolors(2**24)) > 10, "there is nothing on it"
        return image.size


@pytest.mark.parametrize("name", ["pipeline", "floors"])
def test_a_diagram_is_drawn_as_large_as_it_is_committed(name, tmp_path):
    draw(name, tmp_path / "again.png")
    assert size_of(tmp_path / "again.png") == size_of(DOCS / f"images/{name}.png")


def test_the_stages_are_drawn_from_the_numbers_beside_the_picture(tmp_path):
    shutil.copy(DOCS / "images/stages.json", tmp_path / "again.json")
    draw("stages", tmp_path / "again.png", "--again")
    assert size_of(tmp_path / "again.png") == size_of(DOCS / "images/stages.png")


def test_there_is_a_script_for_each_picture():
    drawn = {path.stem.removeprefix("draw_") for path in DOCS.glob("draw_*.py")}
    assert {picture.stem for picture in (DOCS / "images").glob("*.png")} == drawn
