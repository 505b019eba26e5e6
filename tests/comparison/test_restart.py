"""Restart: a loader that goes on in mid-epoch is compared with the epoch as it would have been."""

import pytest
import torch
from torch.utils.data import DataLoader

from tests.comparison.data import Squares, candidate, odd, reference
from torchstage import StageLoader, compare


class Stateful:
    """Batches of one number. ``skips``: how many it forgets after a restart."""

    def __init__(self, skips=0):
        self.skips, self.at, self.start = skips, 0, 0

    def __iter__(self):
        start, self.start = self.start, 0
        for self.at in range(start + 1, 11):
            yield torch.tensor([self.at])

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"] + self.skips


class Refuses(Stateful):
    def load_state_dict(self, state):
        raise RuntimeError("of another version")


def compared(one, other, **arguments):
    return compare(one, other, epochs=1, timed_epochs=0, **arguments)


def test_a_candidate_that_restarts_right_is_equal_and_it_is_said():
    found = compared(reference, candidate)
    assert found.equal, found
    assert "6 batches in 1 epoch, and the candidate restarted at batch 3" in found.scope


def test_a_difference_after_the_restart_alone_is_found():
    found = compared(lambda: iter(Stateful()), lambda: Stateful(skips=1))
    assert {difference.part for difference in found.differences} == {"restart"}
    assert found.differences[0].batch == 5
    assert "epoch 0, batch 5, after the restart, sample 0" in str(found.differences[0])
    assert compared(lambda: iter(Stateful()), lambda: Stateful(skips=1), restart=None).equal


def test_where_both_can_both_are_restarted():
    found = compared(Stateful, Stateful, restart=4)
    assert found.equal
    assert "and both restarted at batch 4" in found.scope
    assert compared(lambda: Stateful(1), lambda: Stateful(1)).equal  # both forget the same
    assert not compared(lambda: Stateful(1), Stateful).equal


def test_a_restart_that_fails_is_a_difference():
    difference = compared(Stateful, Refuses).differences[0]
    assert difference.part == "restart"
    assert difference.candidate == "raises RuntimeError: of another version"


def test_what_differs_anyway_is_named_with_its_index_after_the_restart_too():
    found = compared(reference, odd, restart=1)
    assert {difference.index for difference in found.differences} == {9}


def test_in_any_order_all_samples_come_once_before_and_after_it():
    assert compared(reference, candidate, order="any").equal
    found = compared(lambda: iter(Stateful()), lambda: Stateful(skips=1), order="any")
    assert [difference.part for difference in found.differences if difference.batch is not None] == ["restart"]


def test_the_epochs_after_it_are_those_of_a_loader_that_was_not_restarted():
    def make():
        return StageLoader(Noisy(), batch_size=4, seed=3, num_workers=2)

    assert compare(make, make, epochs=3, timed_epochs=0).equal


class Noisy(Squares):
    def __getitem__(self, index):
        return torch.rand(2)


def test_loaders_that_are_no_functions_are_not_restarted_and_it_is_said():
    found = compared(reference(), candidate())
    assert found.equal
    assert "restarted" not in found.scope
    assert any("no restart was tried" in note for note in found.notes)


@pytest.mark.parametrize("cut", [0, 6, 99])
def test_a_restart_outside_the_epoch_is_refused(cut):
    with pytest.raises(ValueError, match="not inside an epoch of 6 batches"):
        compared(reference, candidate, restart=cut)


def test_a_restart_that_the_candidate_cannot_do_is_refused():
    with pytest.raises(ValueError, match="state_dict"):
        compared(candidate, lambda: DataLoader(Squares(), 4), restart=2)
