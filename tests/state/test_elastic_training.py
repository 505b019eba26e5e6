"""Four ranks train, are killed in mid-epoch, and two go on from the last checkpoint: as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from torchstage.samplers import ElasticSampler

from .elastic_ranks import interleaved
from .training_ranks import LENGTH, SEED

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no ranks"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="the ranks are killed as a process group"),
]

SCRIPT = Path(__file__).with_name("training_ranks.py")
MAX_SECONDS = 90.0
KILLED_IN_STEP, LAST_CHECKPOINT = 4, 3
SIZE = 16  # of a global batch: an epoch is five of them, and one of ten samples


@contextmanager
def ranks(folder: Path, run: str, *arguments: int) -> Iterator[subprocess.Popen[str]]:
    """The script, in a group with its ranks; none of them is left."""
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in theirs}
    environment |= {"PYTHONPATH": str(SCRIPT.parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), run, *map(str, arguments)]
    with (
        (folder / f"{run}.log").open("w") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        ) as script,
    ):
        try:
            yield script
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            script.wait()
            assert ended(script.pid)


def ended(group: int) -> bool:
    """Whether every process of the group is gone, in time: whoever takes over a killed script's ranks reaps them."""
    deadline = time.monotonic() + MAX_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def said(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()}" for path in sorted(folder.glob("*.log")))


def batches_of(folder: Path, run: str, num_ranks: int) -> dict[tuple[int, int], list[Any]]:
    """By epoch and step: of each rank that began it, the indices and what their samples drew."""
    found: dict[tuple[int, int], list[Any]] = {}
    for rank in range(num_ranks):
        for line in (folder / f"{run}_{rank}.jsonl").read_text().splitlines():
            epoch, step, indices, drawn = json.loads(line)
            found.setdefault((epoch, step), []).append(list(zip(indices, drawn, strict=True)))
    return found


def indices_of(batches: dict[tuple[int, int], list[Any]], epoch: int) -> list[list[int]]:
    """The global batches of an epoch."""
    return [
        [index for index, _ in interleaved(batches[number, step])]
        for number, step in sorted(batches)
        if number == epoch
    ]


def test_killed_on_four_ranks_and_gone_on_with_on_two(tmp_path):
    with ranks(tmp_path, "first", 4, SIZE // 4, 2, KILLED_IN_STEP) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "kill me\n", said(tmp_path)
        os.killpg(script.pid, signal.SIGKILL)
    with ranks(tmp_path, "second", 2, SIZE // 2, 2, -1) as script:
        assert script.wait(MAX_SECONDS) == 0, said(tmp_path)

    first, second = batches_of(tmp_path, "first", 4), batches_of(tmp_path, "second", 2)
    assert (0, KILLED_IN_STEP) in first  # it was done, and then lost
    kept = {place: ranks for place, ranks in first.items() if place[1] <= LAST_CHECKPOINT}
    assert not kept.keys() & second.keys()
    whole = kept | second
    assert [step for _, step in sorted(whole)] == list(range(1, 13))
    for epoch in range(2):
        sampler = ElasticSampler(range(LENGTH), 1, 0, seed=SEED)
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert indices_of(whole, epoch) == [order[begin : begin + SIZE] for begin in range(0, LENGTH, SIZE)]

    lost, again = (interleaved(run[0, KILLED_IN_STEP]) for run in (first, second))
    assert lost == again  # what the samples drew at random, too
    sums = [drawn for ranks in whole.values() for batch in ranks for _, drawn in batch]
    assert len(set(sums)) == 2 * LENGTH
