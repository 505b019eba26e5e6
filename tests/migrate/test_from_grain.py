"""``docs/migrate-from-grain.md``: the same videos, frame by frame, in the order that Grain has; and after a resume."""

from itertools import islice

import pytest
import torch

from .scripts import assert_same_batches, assert_same_samples, run, samples_of, script

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("av")
pytest.importorskip("grain")

NUMBER = 2  # of the video: the third field of a sample


@pytest.mark.parametrize("name", ["grain_before", "grain_after"])
def test_the_scripts_run(name):
    printed = run(name, *(["-W", "error"] if name.endswith("after") else []))
    assert "4 batches of (3, 8, 96, 96, 3)" in printed
    assert "after a resume the same: yes" in printed


def batches_of(dataset):
    batches = iter(dataset)
    found = list(batches)
    batches.close()
    return found


def order_of(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


def test_in_the_order_of_grain_the_batches_are_the_same():
    expected = batches_of(script("grain_before").make_loader())
    got = list(script("grain_after").make_loader(order=order_of(expected)))
    assert_same_batches(expected, got)


def test_in_an_order_of_its_own_the_samples_are_the_same_on_two_ranks():
    before, after = script("grain_before"), script("grain_after")
    expected = [s for rank in range(2) for s in samples_of(batches_of(before.make_loader(rank=rank, num_ranks=2)))]
    got = [s for rank in range(2) for s in samples_of(after.make_loader(rank=rank, num_ranks=2))]
    assert len(expected) == len(got) == 12
    assert_same_samples(expected, got, NUMBER)


def test_windows_are_cut_from_the_same_frames_at_other_places():
    before, after = script("grain_before"), script("grain_after")
    plain = {int(number): frames for frames, _, number in samples_of(after.make_loader())}
    expected = batches_of(before.make_loader(augment=True))
    got = list(after.make_loader(augment=True, order=order_of(expected)))
    places = [
        [place_of(frames, plain[int(number)]) for frames, _, number in samples_of(batches)]
        for batches in (expected, got)
    ]
    assert all(place is not None for one in places for place in one)
    assert places[0] != places[1]
    assert len(set(places[1])) > 6


def place_of(window, frames):
    """Where the window was cut from the frames."""
    size, corner = window.shape[1], 6  # few places have the same corner: only these are compared whole
    corners = frames[0, ..., 0].unfold(0, corner, 1).unfold(1, corner, 1)
    found = (corners == window[0, :corner, :corner, 0]).flatten(2).all(2).nonzero().tolist()
    return next(
        ((top, left) for top, left in found if torch.equal(frames[:, top : top + size, left : left + size], window)),
        None,
    )


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_draws_do_not_depend_on_the_threads_and_come_again_after_a_resume(num_workers):
    after = script("grain_after")
    whole = list(after.make_loader(augment=True))
    loader = after.make_loader(augment=True, num_workers=num_workers)
    batches = iter(loader)
    cut = list(islice(batches, 2))
    state = loader.state_dict()
    loader.close()
    again = after.make_loader(augment=True)
    again.load_state_dict(state)
    assert_same_batches(whole, cut + list(again))


@pytest.mark.parametrize("rank", [0, 1])
def test_the_old_order_can_be_asked_for_and_gone_on_with(rank):
    before, after = script("grain_before"), script("grain_after")
    expected = batches_of(before.make_loader(rank=rank, num_ranks=2))
    order = before.order(rank=rank, num_ranks=2)
    assert order == order_of(expected)
    assert_same_batches(expected[1:], list(after.make_loader(order=order[3:])))


def test_grain_goes_on_with_the_samples_that_torchstage_goes_on_with():
    before, after = script("grain_before"), script("grain_after")
    dataset = before.make_loader()
    batches = iter(dataset)
    order = [next(batches), next(batches)]
    state = batches.get_state()
    batches.close()
    resumed = iter(dataset)
    resumed.set_state(state)
    expected = list(resumed)
    resumed.close()

    loader = after.make_loader(order=order_of(order) + order_of(expected))
    mine = iter(loader)
    list(islice(mine, 2))
    state = loader.state_dict()
    loader.close()
    again = after.make_loader(order=order_of(order) + order_of(expected))
    again.load_state_dict(state)
    assert_same_batches(expected, list(again))
