"""Extras: with core dependencies alone everything but them works; each works alone; a missing one says what to do."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("packaging")

from .distributions import FEATURES, PROJECT, ROOT, hide

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(sys.platform == "win32", reason="the jobs' processes are forked from a process of their own"),
]
JOBS = Path(__file__).with_name("jobs.py")
SECONDS = 110
NEEDS = {
    "image": "PIL",
    "video": "av",
    "remote": "obstore",
    "stateful": "torchdata",
    "prometheus": "prometheus_client",
}


def run(folder: Path, *words: str, extras: tuple[str, ...] = ()) -> str:
    """The jobs, in an interpreter that has these extras and no others."""
    hide(folder, extras)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(JOBS), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_core_dependencies_alone_are_enough_and_each_extra_says_how_to_get_it(tmp_path: Path) -> None:
    assert run(tmp_path, "core") == "core: done\n"
    assert run(tmp_path, "missing", *FEATURES) == "".join(f"without {extra}: said\n" for extra in FEATURES)


@pytest.mark.parametrize("extra", FEATURES)
def test_an_extra_is_enough_alone(extra: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(NEEDS.get(extra, extra)) is None:
        pytest.skip(f"{extra} is not installed")
    assert f"{extra}: done" in run(tmp_path, extra, extras=(extra,))


def test_every_extra_is_tried() -> None:
    """A new extra of pyproject.toml has a job here; those for developers and the sum of all have none."""
    assert set(FEATURES) == set(PROJECT["optional-dependencies"]) - {"all", "bench", "docs", "test"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert everything == f"torchstage[{','.join(FEATURES)}]"


def test_what_is_hidden_is_not_found(tmp_path: Path) -> None:
    """Else the tests above would say nothing."""
    hide(tmp_path, ())
    words = (
        "import importlib.util as u; print([u.find_spec(n) is None for n in ('torch', 'numpy', 'pytest', 'pluggy')])"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[False, False, True, True]\n"
