"""``docs/migrate-from-stateful-dataloader.md``: the same batches, also after a resume; old states carried over."""

from itertools import islice

import pytest
import torch

from .scripts import assert_same_batches, run, script

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("torchvision")
pytest.importorskip("torchdata.stateful_dataloader")

# torchdata calls a function of torch that torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.mark.parametrize("name", ["stateful_dataloader_before", "stateful_dataloader_after"])
def test_the_scripts_run(name):
    printed = run(name, *(["-W", "error"] if name.endswith("after") else []))
    assert "6 batches of photographs, the same after a resume: yes" in printed
    assert "10 batches of lines, the same after a resume: yes" in printed


def both(make, **arguments):
    return [getattr(script(f"stateful_dataloader_{when}"), make)(**arguments) for when in ("before", "after")]


@pytest.mark.parametrize("rank", [0, 1])
def test_both_give_the_same_batches_in_each_epoch(rank):
    loaders = both("make_loader", rank=rank, num_ranks=2)
    for epoch in range(2):
        for loader in loaders:
            loader.sampler.set_epoch(epoch)
        assert_same_batches(*map(list, loaders))


def test_both_give_the_same_lines():
    assert_same_batches(*map(list, both("make_lines_loader")))


@pytest.mark.parametrize(("make", "cut"), [("make_loader", 2), ("make_lines_loader", 3)])
def test_both_give_the_same_batches_after_a_resume(make, cut):
    rests = []
    for loader, again in zip(both(make), both(make), strict=True):
        batches = iter(loader)
        list(islice(batches, cut))
        state = loader.state_dict()
        del batches
        again.load_state_dict(state)
        rests.append(list(again))
    assert_same_batches(*rests)


def test_the_sampler_of_torchdata_works_as_it_is():
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    from torchstage import StageLoader

    def cut_and_resumed(loader_class):
        def make():
            sampler = StatefulDistributedSampler(range(50), 1, 0, seed=3)
            return loader_class(range(50), batch_size=6, sampler=sampler, num_workers=2)

        return script("stateful_dataloader_after").cut_and_resumed(make, 3)

    expected, expected_again = cut_and_resumed(StatefulDataLoader)
    got, again = cut_and_resumed(StageLoader)
    for batches in (expected_again, got, again):
        assert_same_batches(expected, batches)


def test_augmentations_go_on_as_they_would_have():
    after = script("stateful_dataloader_after")
    whole, resumed = after.cut_and_resumed(lambda: after.make_loader(after.AUGMENTED), 2)
    assert_same_batches(whole, resumed)


def test_augmentations_of_the_old_loader_do_not():
    before = script("stateful_dataloader_before")

    def make():
        torch.manual_seed(0)
        return before.make_loader(before.AUGMENTED)

    whole, resumed = before.cut_and_resumed(make, 2)
    is_same = [torch.equal(images, again) for (images, _), (again, _) in zip(whole, resumed, strict=True)]
    assert is_same == [True, True, False, False, False, False]


def test_an_old_state_is_refused_in_words():
    before, after = both("make_loader")
    next(iter(before))
    with pytest.raises(ValueError, match="StatefulDataLoader"):
        after.load_state_dict(before.state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("snapshot_every_n_steps", [1, 3])
@pytest.mark.parametrize("order", ["shuffled", "a sampler's"])
def test_the_rest_of_an_epoch_of_an_old_state_is_carried_over(num_workers, snapshot_every_n_steps, order):
    from torchdata.stateful_dataloader import StatefulDataLoader

    from torchstage import StageLoader

    after = script("stateful_dataloader_after")
    dataset = range(50)
    settings = {"batch_size": 6, "num_workers": num_workers, "snapshot_every_n_steps": snapshot_every_n_steps}
    if order == "shuffled":
        settings["shuffle"] = True
    else:
        settings["sampler"] = after.DistributedSampler(dataset, 1, 0, seed=3)
    old = StatefulDataLoader(dataset, **settings)
    batches = iter(old)
    list(islice(batches, 4))
    state = old.state_dict()
    expected = list(batches)

    rest = after.rest_of_epoch(state, batch_size=6, order=settings.get("sampler", len(dataset)))
    assert [batch.tolist() for batch in StageLoader(dataset, 6, sampler=rest, num_workers=2)] == [
        batch.tolist() for batch in expected
    ]
