"""The wheel: it has every module, the types' marker and the license, and nothing else; its metadata is complete."""

import email
import email.message
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

import torchstage

from .distributions import FEATURES, PROJECT, ROOT

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """Built by the backend itself: without a network, and without an environment of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return zipfile.Path(path)


@pytest.fixture
def names(wheel: zipfile.Path) -> set[str]:
    return {name for name in wheel.root.namelist() if not name.endswith("/")}


@pytest.fixture
def told(wheel: zipfile.Path) -> email.message.Message:
    return email.message_from_bytes(wheel.root.read(f"torchstage-{torchstage.__version__}.dist-info/METADATA"))


def test_it_has_every_module_and_nothing_else(names: set[str]) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "torchstage").rglob("*.py")}
    about = f"torchstage-{torchstage.__version__}.dist-info"
    told = {f"{about}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "licenses/LICENSE")}
    assert names == modules | told | {"torchstage/py.typed"}


def test_it_fits_every_system(wheel: zipfile.Path) -> None:
    assert wheel.root.filename is not None
    assert Path(wheel.root.filename).name == f"torchstage-{torchstage.__version__}-py3-none-any.whl"


def test_its_version_is_the_package_s_and_the_changelog_has_it(told: email.message.Message) -> None:
    assert told["Version"] == torchstage.__version__ == PROJECT["version"]
    assert f"## [{torchstage.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_it_tells_what_an_index_shows(told: email.message.Message) -> None:
    assert told["Name"] == "torchstage"
    assert told["Summary"] == PROJECT["description"]
    assert told["License-Expression"] == "BSD-3-Clause"
    assert told["Description-Content-Type"] == "text/markdown"
    assert str(told.get_payload()).strip() == (ROOT / "README.md").read_text().strip()
    pythons = [
        line for line in told.get_all("Classifier", []) if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert pythons[0].endswith(told["Requires-Python"].removeprefix(">="))
    assert "Typing :: Typed" in told.get_all("Classifier", [])


def test_torch_and_numpy_are_all_it_needs(told: email.message.Message) -> None:
    needs = told.get_all("Requires-Dist", [])
    core = [line for line in needs if "extra ==" not in line]
    assert sorted(line.partition(">=")[0] for line in core) == ["numpy", "torch"]
    assert set(FEATURES) <= set(told.get_all("Provides-Extra", []))


def test_what_is_in_it_can_be_imported_from_it(wheel: zipfile.Path, tmp_path: Path) -> None:
    """From the unpacked wheel, in a folder where nothing else of the project is."""
    wheel.root.extractall(tmp_path)
    words = (
        "import torchstage; print(torchstage.__file__); print(list(torchstage.StageLoader(range(3), num_workers=1)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    where, batches = done.stdout.splitlines()
    assert Path(where) == tmp_path / "torchstage/__init__.py"
    assert batches == "[tensor([0]), tensor([1]), tensor([2])]"
