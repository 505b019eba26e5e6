"""Two ranks: Lightning and Fabric train with two processes, and each loader is rebuilt for its rank, all else kept."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch.distributed
from torch.utils.data import DistributedSampler

from torchstage import StageLoader

from .fed import Augmented, Stream, numbers_of

LENGTH = 13
BOTH = ("StageLoader", "DataLoader")
MAX_SECONDS = 90.0
TESTS = Path(__file__).parents[1]

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
    environment |= {"PYTHONPATH": os.pathsep.join((str(TESTS.parent), str(TESTS))), "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("w") as log:
        command = [sys.executable, str(Path(__file__).with_name("two_ranks.py")), str(folder)]
        script = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )
    deadline = time.monotonic() + MAX_SECONDS
    try:
        with suppress(subprocess.TimeoutExpired):
            script.wait(MAX_SECONDS)
        has_ended = ended(script.pid, deadline)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGKILL)
        script.wait()
    said = (folder / "log").read_text()
    assert has_ended, f"a rank still ran after {MAX_SECONDS:g} s, and they wrote:\n{said}"
    assert script.returncode == 0, said
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


def ended(group: int, deadline: float) -> bool:
    """Whether every process of the group ended in time: the second rank may be a little behind the first."""
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


def numbers(batches: list[Any]) -> list[list[int]]:
    return [[int(sample[0]) for sample in batch] for batch in batches]


@pytest.mark.parametrize("stage", ["fit", "validate", "test", "predict"])
def test_each_rank_sees_the_batches_of_dataloader(ranks: list[dict[str, Any]], stage: str) -> None:
    ours, theirs = ([numbers(rank["stages"][f"{name} {stage}"]) for rank in ranks] for name in BOTH)
    assert ours == theirs
    num_epochs = 2 if stage == "fit" else 1
    seen = [index for rank in ours for batch in rank for index in batch]
    extra = 0 if stage == "predict" else 1  # one sample twice, so that both ranks have as many
    assert len(seen) == num_epochs * (LENGTH + extra)
    assert set(seen) == set(range(LENGTH))


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_loader_that_shuffles_is_shared_out_as_well(ranks: list[dict[str, Any]], where: str) -> None:
    for rank in ranks:
        assert rank["shuffled"][where] == rank["stages"]["StageLoader fit"]


@pytest.mark.parametrize("look", ["samplers fit", "batch_samplers fit", "batch_samplers predict"])
def test_a_sampler_of_the_users_is_shared_out_as_in_dataloader(ranks: list[dict[str, Any]], look: str) -> None:
    kind, stage = look.split()
    ours, theirs = ([numbers(rank[kind][f"{name} {stage}"]) for rank in ranks] for name in BOTH)
    assert ours == theirs
    assert ours[0] != ours[1]


def test_hooks_of_a_data_module_give_the_batches_of_dataloader(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        ours, theirs = (
            [(stage, epoch, numbers([batch])) for stage, epoch, batch in rank["data_modules"][name]] for name in BOTH
        )
        assert ours == theirs
        assert [stage for stage, *_ in ours] == ["validate"] + (["fit"] * 4 + ["validate"] * 4) * 2


def test_an_iterable_dataset_is_left_alone(ranks: list[dict[str, Any]]) -> None:
    alone = [numbers_of(batch) for batch in StageLoader(Stream(6), batch_size=2, num_workers=2)]
    for rank in ranks:
        assert numbers(rank["iterables"]) == alone * 2


def test_nothing_is_shared_out_if_lightning_is_told_so(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert numbers(rank["not_shared_out"]) == [[0, 1], [2, 3]]


def test_every_argument_is_kept(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        outcomes = {
            **rank["arguments"],
            **{f"fabric {where}": rank["fabric"][where] for where in ("outside", "inside")},
        }
        assert outcomes == {way: [[], True, 2, number] for way in outcomes}
        assert len(outcomes) == 8


def test_fabric_gives_the_batches_of_dataloader(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        ours, theirs = ([numbers(epoch) for epoch in rank["fabric"][name]] for name in BOTH)
        assert ours == theirs
        assert ours[0] != ours[1]


@pytest.mark.parametrize("look", ["fit", "fabric"])
def test_augmentation_is_that_of_one_rank(ranks: list[dict[str, Any]], look: str) -> None:
    """Lightning's sampler has the seed 0 where none was set, and is told the epoch."""
    for epoch in (0, 1):
        sampler: Any = DistributedSampler(Augmented(LENGTH), num_replicas=1, rank=0, seed=0)
        sampler.set_epoch(epoch)
        (batch,) = StageLoader(Augmented(LENGTH), sampler=sampler, batch_size=LENGTH, num_workers=1)
        alone = {int(sample[0]): sample.tolist() for sample in batch}
        for rank in ranks:
            batches = rank["fabric"]["StageLoader"][epoch] if look == "fabric" else rank["stages"]["StageLoader fit"]
            batches = batches if look == "fabric" else batches[4 * epoch : 4 * epoch + 4]
            samples = [sample for batch in batches for sample in batch]
            assert len(samples) == (LENGTH + 1) // 2
            assert samples == [alone[int(sample[0])] for sample in samples]
