"""StageLoaders of the user's own, without the DataModule: what Lightning's own saving of their state is good for."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from frameworks.training import QUIET, Recorder, new_trainer

from torchstage import StageLoader
from torchstage.lightning import StageDataModule, StageStatsMonitor
from torchstage.samplers import ElasticSampler

from .data import NUM_BATCHES, Estimating, Noisy, Plain, SaveAt, Stream, plain, trained

pytestmark = [*QUIET]

CUTS = (2, NUM_BATCHES, NUM_BATCHES + 4)
Make = Callable[[], StageLoader[Any]]


def with_epochs() -> StageLoader[Any]:
    dataset = Noisy()
    return StageLoader(dataset, batch_size=4, sampler=ElasticSampler(dataset, seed=3), num_workers=2)


def without() -> StageLoader[Any]:
    order = torch.Generator().manual_seed(3)
    return StageLoader(Noisy(), batch_size=4, shuffle=True, generator=order, seed=2, num_workers=2)


def stream() -> StageLoader[Any]:
    return StageLoader(Stream(), batch_size=4, num_workers=2, lanes=1)


def rests(make: Make, model: type[Recorder], folder: Path) -> tuple[list[Any], dict[str, list[Any]]]:
    """A whole run, and what is left of it by the checkpoints that it saved."""
    whole, _ = trained(Plain(make), model(), callbacks=[SaveAt(folder, CUTS)], enable_checkpointing=True)
    paths = [path for path in sorted(folder.glob("*.ckpt")) if path.stem != "epoch 18"]
    return whole, {path.stem: trained(Plain(make), model(), path)[0] for path in paths}


def wrong(whole: list[Any], found: dict[str, list[Any]]) -> set[str]:
    return {name for name, rest in found.items() if rest != whole[int(name.split()[-1]) :]}


def test_a_sampler_with_epochs_goes_on_from_any_batch_and_epoch(tmp_path: Path) -> None:
    whole, found = rests(with_epochs, Recorder, tmp_path)
    assert set(found) == {"2", "6", "10", "epoch 6", "epoch 12"}
    assert not wrong(whole, found)


def test_a_generator_goes_on_from_any_batch_and_begins_anew_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    whole, found = rests(without, Recorder, tmp_path)
    assert wrong(whole, found) == {"epoch 6", "epoch 12"}


def test_where_lightning_makes_the_loaders_first_it_drops_their_states(tmp_path: Path) -> None:
    whole, found = rests(with_epochs, Estimating, tmp_path)
    assert wrong(whole, found) == {"2", "10"}


@pytest.mark.parametrize("make", [with_epochs, stream])
def test_the_monitor_does_not_let_a_dropped_state_pass(make: Make, tmp_path: Path) -> None:
    """In a plain ``trainer.fit(model, loader)``."""

    def fit(model: Recorder, path: Path | None = None) -> Any:
        callbacks = [StageStatsMonitor(), *([] if path else [SaveAt(tmp_path, (2, NUM_BATCHES))])]
        trainer = new_trainer(max_epochs=2, callbacks=callbacks, enable_checkpointing=not path)
        with closing(make()) as loader:
            trainer.fit(model, loader, ckpt_path=path, weights_only=path and True)
        return [plain(batch) for batch in model.seen_in("fit")]

    whole = fit(Estimating())
    with pytest.raises(RuntimeError, match=r"the places of 1 loaders .* Give the loaders .* by StageDataModule\.wrap"):
        fit(Estimating(), tmp_path / "2.ckpt")
    assert fit(Estimating(), tmp_path / "epoch 6.ckpt") == whole[NUM_BATCHES:]  # at its end nothing is lost
    assert whole[-3:] == fit(Recorder(), tmp_path / "2.ckpt")[-3:]  # it is handed over
    if make is with_epochs:
        wrapped, options = StageDataModule.wrap(Plain(make)), {"max_epochs": 2, "callbacks": [StageStatsMonitor()]}
        rest, _ = trained(wrapped, Estimating(), tmp_path / "2.ckpt", **options)
        assert [batch for _, batch in rest] == whole[2:]


def test_a_loader_of_the_users_is_trained_with_by_two_trainers() -> None:
    dataset = Noisy()
    with closing(StageLoader(dataset, 4, sampler=ElasticSampler(dataset, seed=3), seed=2, num_workers=2)) as loader:
        seen = []
        for _ in range(2):
            model = Recorder()
            new_trainer(max_epochs=2).fit(model, loader)
            seen.append([plain(batch) for batch in model.seen_in("fit")])
    ids = [[[sample[0] for sample in batch] for batch in batches] for batches in seen]
    assert ids[0] == ids[1]  # the sampler is told the same epochs
    assert sorted(sample for batch in ids[0][:NUM_BATCHES] for sample in batch) == list(range(len(dataset)))


def test_of_a_stream_the_batch_that_was_read_ahead_is_lost(tmp_path: Path) -> None:
    whole, found = rests(stream, Recorder, tmp_path)
    assert wrong(whole, found) == {"2", "10"}
    assert found["2"] == whole[3:]


def test_a_run_that_max_steps_has_cut_is_refused_by_a_sampler_with_epochs(tmp_path: Path) -> None:
    _, trainer = trained(Plain(with_epochs), max_epochs=-1, max_steps=2)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match="the loaded state is inside epoch 0, but the sampler was set to 1"):
        trained(Plain(with_epochs), None, tmp_path / "cut.ckpt", max_epochs=-1, max_steps=5)


def test_a_checkpoint_of_plain_loaders_is_gone_on_with_by_the_datamodule(tmp_path: Path) -> None:
    whole, _ = rests(without, Recorder, tmp_path)
    rest, _ = trained(StageDataModule.wrap(Plain(without)), None, tmp_path / "2.ckpt")
    assert rest == whole[2:]
