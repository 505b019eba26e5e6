"""Ranks: two processes train and go on, from two ranks and from one; and one goes on from two."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch.distributed
from frameworks.training import QUIET

from .data import LENGTH, SaveAt, trained
from .scripts import run_script
from .two_ranks import CUT, MODULES, module_of_maps

pytestmark = [
    *QUIET,
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch knows no ranks"),
    pytest.mark.skipif(not hasattr(os, "killpg"), reason="the ranks are ended as a process group"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With what each rank saw, and checkpoints. The script runs once; no process of it is left."""
    folder = tmp_path_factory.mktemp("ranks")
    trained(module_of_maps(), callbacks=[SaveAt(folder / "one rank", (6, 8))], enable_checkpointing=True)
    code, said = run_script("two_ranks.py", folder)
    assert code == 0, said
    return folder


@pytest.fixture(scope="module")
def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in (0, 1)]


def samples(batches: list[Any], epoch: int) -> list[int]:
    return [sample[0] for at, batch in batches for sample in batch if at == epoch]


@pytest.mark.parametrize("name", MODULES)
def test_each_rank_goes_on_with_its_own_batches(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        whole, rests = rank[name]["whole"], rank[name]["rest"]
        assert len(rests) == 4
        for cut, rest in rests.items():
            assert [rest] == [whole[int(cut.split()[-1]) :]], cut


@pytest.mark.parametrize("name", MODULES)
def test_the_ranks_share_each_epoch(ranks: list[dict[str, Any]], name: str) -> None:
    num_samples = 2 * LENGTH if name == "streams" else LENGTH
    for epoch in range(3):
        both = [sample for rank in ranks for sample in samples(rank[name]["whole"], epoch)]
        assert sorted(both) == list(range(num_samples))


def test_ranks_that_are_not_to_shuffle_do_not(ranks: list[dict[str, Any]]) -> None:
    for epoch in range(3):
        assert [samples(rank["in order"]["whole"], epoch) for rank in ranks] == [
            list(range(0, LENGTH, 2)),
            list(range(1, LENGTH, 2)),
        ]


def test_two_ranks_go_on_where_one_was(ranks: list[dict[str, Any]]) -> None:
    whole, _ = trained(module_of_maps())
    for cut, name in ((8, "from one rank"), (6, "from one rank, at an epoch's end")):
        for epoch in (1, 2):
            left = samples(whole[cut:], epoch)
            both = [sample for rank in ranks for sample in samples(rank[name], epoch)]
            assert sorted(both) == sorted(left)
        num_batches = [[epoch for epoch, _ in rank[name]].count(1) for rank in ranks]
        assert num_batches == ([2, 2] if cut == 8 else [3, 3])


@pytest.mark.parametrize("cut", [f"{CUT}", "epoch 3"])
def test_one_rank_goes_on_where_two_were(folder: Path, ranks: list[dict[str, Any]], cut: str) -> None:
    rest, _ = trained(module_of_maps(), None, folder / "maps" / f"{cut}.ckpt")
    for epoch in (1, 2):
        left = [sample for rank in ranks for sample in samples(rank["maps"]["whole"][int(cut.split()[-1]) :], epoch)]
        assert sorted(samples(rest, epoch)) == sorted(left)
    assert [epoch for epoch, _ in rest].count(1) == (4 if cut == f"{CUT}" else 6)  # 14 and 22 samples, four a batch


def test_a_stream_of_two_ranks_is_not_gone_on_with_by_one(folder: Path, ranks: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match=r"saved by 2 ranks, each with a place of its own .* and there are 1 now"):
        trained(MODULES["streams"](), None, folder / "streams" / f"{CUT}.ckpt")
