"""``docs/migrate-from-dataloader.md``: the same batches; where augmentations differ, only their draws."""

import pytest
import torch

from torchstage import check_thread_safety

from .scripts import assert_same_batches, run, script

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("torchvision")


@pytest.mark.parametrize("name", ["dataloader_before", "dataloader_after"])
def test_the_scripts_run(name):
    printed = run(name, "-W", "error")
    assert "epoch 1: 6 batches of photographs" in printed
    assert "10 batches of lines, the last (32, 64)" in printed


@pytest.mark.parametrize("rank", [0, 1])
def test_both_give_the_same_photographs_in_the_same_order_in_each_epoch(rank):
    loaders = [script(f"dataloader_{when}").make_loader(rank=rank, num_ranks=2) for when in ("before", "after")]
    for epoch in range(2):
        epochs = []
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
            epochs.append(list(loader))
        assert_same_batches(*epochs)


def test_both_give_the_same_lines_masked_at_the_same_places():
    assert_same_batches(*(script(f"dataloader_{when}").make_lines_loader() for when in ("before", "after")))


def test_augmented_photographs_come_in_the_same_order_with_draws_that_are_the_samples_own():
    before, after = (script(f"dataloader_{when}") for when in ("before", "after"))
    expected, got = (list(one.make_loader(one.AUGMENTED)) for one in (before, after))
    assert [labels.tolist() for _, labels in expected] == [labels.tolist() for _, labels in got]
    assert [(images.dtype, images.shape) for images, _ in expected] == [(i.dtype, i.shape) for i, _ in got]
    assert not torch.equal(expected[0][0], got[0][0])

    loader = after.make_loader(after.AUGMENTED)
    other = type(loader)(loader.dataset, 8, sampler=loader.sampler, num_workers=5, drop_last=True)
    assert_same_batches(got, other)  # the sampler's seed is that of the samples


def test_what_to_check_first_names_the_archive():
    after = script("dataloader_after")
    report = check_thread_safety(after.Photographs(after.made.archive(), after.PLAIN), num_samples=24)
    assert "dataset.archive" in report.suspects
