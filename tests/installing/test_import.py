"""Import: it is quick beside torch's, and nothing that an extra is for, nor a framework, comes with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .distributions import ROOT

pytestmark = pytest.mark.packaging
MOST_SECONDS = 0.3
PROGRAM = """
import time
import torch
begin = time.process_time()
import torchstage
print(time.process_time() - begin)
"""


@pytest.mark.timing
def test_the_import_takes_less_than_a_third_of_a_second_beyond_torch_s(tmp_path: Path) -> None:
    """In CPU seconds, which others on the machine hardly change; compiled files are there, as in an installation."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds = []
    for _ in range(4):  # the first one compiles
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True)
        seconds.append(float(done.stdout))
    assert sorted(seconds[1:])[1] < MOST_SECONDS, seconds


def test_nothing_comes_along_that_a_loader_does_not_need() -> None:
    words = "import sys, torch, numpy.random; own = {*sys.modules}; import torchstage; print(*({*sys.modules} - own))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True, check=True)
    came = {name.partition(".")[0] for name in done.stdout.split() if not name.startswith("_sysconfigdata")}
    others = came - set(sys.stdlib_module_names) - {"torchstage", "torch", "numpy"}
    assert not others, others
