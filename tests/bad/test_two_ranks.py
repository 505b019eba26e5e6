"""Bad samples of one rank of two: both make the same number of steps, or it is said why not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests.bad.two_ranks import BATCH_SIZE, LENGTH, LOOKED_AT, NOTHING_LEFT

MAX_SECONDS = 110.0
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no ranks"),
    pytest.mark.timeout(2 * MAX_SECONDS),
]
everywhere = pytest.mark.parametrize(("place", "sampler"), LOOKED_AT)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw. Both run once; no process of them is left."""
    folder = tmp_path_factory.mktemp("ranks")
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in theirs}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    scripts: list[subprocess.Popen[bytes]] = []
    try:
        for rank in "01":
            command = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(folder), rank]
            with (folder / f"log_{rank}").open("w") as log:
                scripts.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        codes = [script.wait(MAX_SECONDS) for script in scripts]
    finally:
        for script in scripts:
            script.kill()
            script.wait()
    assert codes == [0, 0], [(folder / f"log_{rank}").read_text() for rank in "01"]
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in "01"]


def share_of(rank: int) -> list[list[int]]:
    """The batches of a rank, if no sample is bad."""
    share = list(range(rank, LENGTH, 2))
    return [share[begin : begin + BATCH_SIZE] for begin in range(0, len(share), BATCH_SIZE)]


@everywhere
@pytest.mark.parametrize("policy", ["skip a few", "filter a few"])
def test_a_batch_stays_short_where_samples_are_left_out(
    ranks: list[dict[str, Any]], place: str, sampler: str, policy: str
) -> None:
    first, second = (rank[f"{place}, {sampler}, {policy}"] for rank in ranks)
    assert first == [[6], *share_of(0)[1:]]
    assert second == share_of(1)


@everywhere
@pytest.mark.parametrize("policy", ["skip a batch", "filter a batch"])
def test_a_batch_of_which_nothing_is_left_is_an_error_in_its_place(
    ranks: list[dict[str, Any]], place: str, sampler: str, policy: str
) -> None:
    first, second = (rank[f"{place}, {sampler}, {policy}"] for rank in ranks)
    assert first == [NOTHING_LEFT, *share_of(0)[1:]]
    assert second == share_of(1)


@everywhere
def test_replaced_samples_keep_batches_full(ranks: list[dict[str, Any]], place: str, sampler: str) -> None:
    first, second = (rank[f"{place}, {sampler}, replace a batch"] for rank in ranks)
    substitutes = [8, 8, 8, 8] if sampler == "no sampler" else [1, 3, 5, 7]  # the next ones of its own dataset
    assert first == [substitutes, *share_of(0)[1:]]
    assert second == share_of(1)
