"""Fabric: a loader's state is saved and loaded with the model's, by the loader itself."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from lightning.fabric import Fabric

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .data import Noisy, Stream


def new_loader(dataset: Any) -> StageLoader[Any]:
    sampler = None if isinstance(dataset, Stream) else ElasticSampler(dataset, seed=3)
    return StageLoader(dataset, batch_size=4, sampler=sampler, num_workers=2, lanes=1)


@pytest.mark.parametrize("kind", [Noisy, Stream])
@pytest.mark.parametrize("is_returned_saved", [True, False])
def test_a_run_is_saved_and_gone_on_with(kind: Any, is_returned_saved: bool, tmp_path: Path) -> None:
    """The loader that Fabric has returned, which on several ranks is another one, or one's own."""
    fabric = Fabric(accelerator="cpu", devices=1)
    whole = [batch.tolist() for batch in new_loader(kind())]

    loader, model = new_loader(kind()), torch.nn.Linear(1, 1)
    before = []
    returned = fabric.setup_dataloaders(loader)
    for batch in returned:
        before.append(batch.tolist())
        if len(before) == 2:
            fabric.save(tmp_path / "saved.ckpt", {"model": model, "loader": returned if is_returned_saved else loader})
            break

    loader = new_loader(kind())
    returned = fabric.setup_dataloaders(loader)
    rest = fabric.load(tmp_path / "saved.ckpt", {"model": model, "loader": returned if is_returned_saved else loader})
    assert not rest
    assert before + [batch.tolist() for batch in returned] == whole
