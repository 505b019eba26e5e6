"""Lightning: two ranks train with the sampler as it is. It is not shared out once more, and is told the epochs."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch.distributed

from torchstage.samplers import ElasticSampler

from .ranks import interleaved

LENGTH, BATCH_SIZE, NUM_EPOCHS, SEED = 15, 2, 2, 5
MAX_SECONDS = 90.0
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no ranks"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="the ranks are ended as a process group"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw. The script runs once; no process of it is left."""
    folder = tmp_path_factory.mktemp("ranks")
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PL_GLOBAL_SEED")
    environment = {name: value for name, value in os.environ.items() if name not in theirs}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, str(Path(__file__).with_name("lightning_ranks.py")), str(folder)]
        script = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    try:
        with suppress(subprocess.TimeoutExpired):
            script.wait(MAX_SECONDS)
    finally:
        has_ended = script.poll() is not None
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()
    said = (folder / "log").read_text()
    assert has_ended, f"the first rank still ran after {MAX_SECONDS:g} s, and they wrote:\n{said}"
    assert script.returncode == 0, said
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("loader", ["DataLoader", "StageLoader"])
def test_two_ranks_share_the_global_batches_of_each_epoch(ranks: list[dict[str, Any]], loader: str) -> None:
    for epoch in range(NUM_EPOCHS):
        sampler = ElasticSampler(range(LENGTH), 1, 0, seed=SEED)
        sampler.set_epoch(epoch)
        order, size = list(sampler), 2 * BATCH_SIZE
        steps = zip(*(rank[loader]["seen"][epoch] for rank in ranks), strict=True)
        assert [interleaved(list(step)) for step in steps] == [order[at : at + size] for at in range(0, LENGTH, size)]


@pytest.mark.parametrize("loader", ["DataLoader", "StageLoader"])
def test_the_sampler_is_kept(ranks: list[dict[str, Any]], loader: str) -> None:
    assert all(rank[loader]["keeps its sampler"] for rank in ranks)
