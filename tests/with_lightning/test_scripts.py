"""Whole processes: Ctrl-C in the midst of training, and the slowest of two ranks."""

import csv
import os
from pathlib import Path

import pytest

pytest.importorskip("lightning")

import torch.distributed
from frameworks.training import QUIET

from .data import trained
from .interrupted import AT, new_module
from .scripts import run_script
from .two_rank_monitor import SLOW_RANK

pytestmark = [*QUIET, pytest.mark.skipif(not hasattr(os, "killpg"), reason="scripts are ended as a process group")]


def test_what_ctrl_c_has_cut_is_gone_on_with_and_nothing_is_left(tmp_path: Path) -> None:
    code, said = run_script("interrupted.py", tmp_path)
    assert "Detected KeyboardInterrupt, attempting graceful shutdown" in said  # as Lightning ends any training
    assert code == 1, said
    assert "left: [] []" in said
    whole, _ = trained(new_module())
    rest, _ = trained(new_module(), None, tmp_path / "on_exception.ckpt")
    assert rest == whole[AT:]


@pytest.mark.timing
@pytest.mark.distributed
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no ranks")
def test_the_rank_that_waits_longest_is_written(tmp_path: Path) -> None:
    code, said = run_script("two_rank_monitor.py", tmp_path)
    assert code == 0, said
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["data/train/slowest_rank"]]
    assert [int(row["step"]) for row in rows] == [5, 11]
    assert [float(row["data/train/slowest_rank"]) for row in rows] == [SLOW_RANK, SLOW_RANK]
    assert all(float(row["data/train/slowest_rank_wait_share"]) > 0.5 for row in rows)
