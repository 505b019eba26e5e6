"""The state of a loader over an ElasticSampler: one place in the global order, said alike by every rank."""

import io
import json

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .elastic_ranks import loader_of, loaders_of, order_of, run

WAYS = [{"num_workers": 0}, {"num_workers": 2}]


# The end of an epoch --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", WAYS, ids=str)
def test_a_rank_without_a_last_batch_agrees_with_those_that_have_one(arguments):
    """Ten samples on four ranks in batches of two: after the first step the last two ranks have nothing left, but the
    epoch is not over before the first two have made another."""
    done = run(loaders_of(10, 4, **arguments))
    assert done.num_steps == [2, 2, 1, 1]
    assert [(state["position"], state["is_boundary"]) for state in done.states] == [(0, True), (8, False), (0, True)]


@pytest.mark.parametrize("arguments", WAYS, ids=str)
def test_a_rank_that_was_told_the_end_is_at_the_end(arguments):
    """Nothing was left for it, in an epoch that was gone on with at its last two samples."""
    state = run(loaders_of(10, 4, **arguments), 1).state
    loader = loader_of(10, 4, 3, **arguments)
    loader.load_state_dict(state)
    with loader:
        assert list(loader) == []
    state = loader.state_dict()
    assert (state["position"], state["is_boundary"], state["is_finished"]) == (0, True, True)


def test_the_last_batch_was_handed_out_also_if_its_iterator_is_gone():
    loader = loader_of(8, 2, 0, 4)
    for _ in loader:
        break
    assert loader.state_dict()["is_finished"]


@pytest.mark.parametrize("arguments", WAYS, ids=str)
def test_unequal_whole_batches_are_an_error_before_the_first_one(arguments):
    """Fifteen samples on two ranks: eight are two batches, seven only one, and the ranks would wait for each other."""
    for rank in (0, 1):
        with (
            loader_of(15, 2, rank, 4, drop_last=True, **arguments) as loader,
            pytest.raises(
                ValueError, match=r"first of 2 ranks would have 2 batches and the last one 1: .* tail='drop'"
            ),
        ):
            next(iter(loader))


@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_unequal_whole_batches_do_not_come_from_other_tails(tail):
    assert len(set(run(loaders_of(15, 2, 4, drop_last=True, tail=tail)).num_steps)) == 1


def test_unequal_whole_batches_are_found_where_an_epoch_goes_on():
    state = run(loaders_of(16, 2, 4), 1).state  # 8 samples are left
    with pytest.raises(ValueError, match="first of 3 ranks would have 1 batches and the last one 0"):
        next(iter(loaders_of(16, 3, 3, state, drop_last=True)[0]))
    assert run(loaders_of(16, 3, 3, state, drop_last=True, tail="drop")).num_steps == []


# One rank's state alone ---------------------------------------------------------------------------------------------


def test_without_order_a_state_is_one_ranks_own_also_where_nothing_is_out_of_order_yet():
    """The others may be elsewhere by then: what one has not handed out, another may have."""
    with loader_of(20, 2, 0, in_order=False, num_workers=2) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for num_ranks, rank in ((2, 1), (3, 0), (1, 0)):
        with pytest.raises(ValueError, match=r"each rank's own, \[rank, ranks\] was \[0, 2\] and is"):
            loader_of(20, num_ranks, rank).load_state_dict(state)
    loader = loader_of(20, 2, 0)
    loader.load_state_dict(state)
    next(iter(loader))
    with pytest.raises(ValueError, match="each rank's own"):  # still
        loader_of(20, 1, 0).load_state_dict(loader.state_dict())
    assert len(list(loader)) == 5  # that epoch begins again, and ends
    loader_of(20, 1, 0).load_state_dict(loader.state_dict())


def test_without_order_on_one_rank_a_state_is_everybodys_once_nothing_is_out_of_order():
    with loader_of(20, 1, 0, in_order=False, num_workers=1) as loader:
        next(iter(loader))
        state = loader.state_dict()
    assert state["rank"] is None
    assert len(run(loaders_of(20, 3, 2, state)).seen) == 18


# What it must fit -----------------------------------------------------------------------------------------------------


def test_an_order_that_is_not_shuffled_is_another_order():
    state = run(loaders_of(20, 2), 2).state
    with pytest.raises(ValueError, match="shuffle was True and is False"):
        loader_of(20, 2, 0, shuffle=False).load_state_dict(state)


def test_the_length_is_that_of_the_epochs_beginning():
    dataset = list(range(20))
    loader = StageLoader(dataset, 2, sampler=ElasticSampler(dataset, 1, 0))
    batches = iter(loader)
    next(batches)
    dataset.append(20)
    state = loader.state_dict()
    assert state["fingerprint"]["length"] == 20
    with pytest.raises(ValueError, match="length was 20 and is 21"):
        loader.load_state_dict(state)
    assert sum(len(batch) for batch in batches) == 18
    assert loader.state_dict()["fingerprint"]["length"] == 21  # of the next one


def test_the_ranks_are_those_of_the_epochs_beginning(monkeypatch):
    """A state may be saved when the process group has ended already."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    loader = StageLoader(range(20), 2, sampler=ElasticSampler(range(20)))
    next(iter(loader))
    monkeypatch.undo()
    assert loader.state_dict()["position"] == 8


class Pairs(BatchSampler):
    """A batch sampler of the user's, which asks a sampler inside it."""


@pytest.mark.parametrize("sampler_class", [ElasticSampler, DistributedSampler])
def test_batches_of_the_users_own_are_not_shared_out_anew(sampler_class):
    """Ten samples are two batches for each rank on 2 ranks as on 4, but not the same ones."""

    def loader_on(num_ranks, batch_size):
        sampler = sampler_class(range(10), num_ranks, 0, seed=3)
        return StageLoader(range(10), batch_sampler=Pairs(sampler, batch_size, False))

    loader = loader_on(2, 3)
    next(iter(loader))
    with pytest.raises(ValueError, match="num_replicas was 2 and is 4"):
        loader_on(4, 2).load_state_dict(loader.state_dict())


# Everybody gets it ----------------------------------------------------------------------------------------------------


def test_ranks_of_torchs_sampler_may_share_a_state_too():
    """Lightning saves that of rank 0 and gives it to all."""

    def loader_on(rank):
        return StageLoader(range(20), 4, sampler=DistributedSampler(range(20), 2, rank, seed=3))

    loader = loader_on(0)
    next(iter(loader))
    state = loader.state_dict()
    for rank in (0, 1):
        whole = [batch.tolist() for batch in loader_on(rank)]
        loader = loader_on(rank)
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == whole[1:]


def test_ranks_that_were_seeded_differently_differ_in_their_base_seeds_alone():
    """They may seed worker processes. The place, and the samples' own draws, depend on the sampler's seed."""
    states = []
    for rank in range(2):
        torch.manual_seed(rank)
        loader = loader_of(20, 2, rank)
        next(iter(loader))
        states.append(loader.state_dict())
    differing = {name for name in states[0] if states[0][name] != states[1][name]}
    assert differing <= {"base_seed", "generators", "generators_now"}


# Beside the sampler's own -------------------------------------------------------------------------------------------


def test_a_place_that_the_sampler_was_told_is_in_the_state_before_the_first_batch():
    loader = loader_of(20, 1, 0)
    loader.sampler.start_at(7)
    states = [loader.state_dict()]
    batches = iter(loader)
    states.append(loader.state_dict())
    next(batches)
    states.append(loader.state_dict())
    assert [state["position"] for state in states] == [7, 7, 9]
    for state in states:
        assert run(loaders_of(20, 1, 2, state)).seen == order_of(20)[state["position"] :]


def test_the_samplers_own_state_stays_plain_after_a_resume():
    state = run(loaders_of(20, 2), 2, epoch=3).state
    loader = loader_of(20, 2, 0)
    loader.load_state_dict(state)
    file = io.BytesIO()
    torch.save(loader.sampler.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["epoch"] == 3


def test_the_state_is_plain():
    state = run(loaders_of(20, 2), 2).state
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_a_rank_of_which_nothing_was_left_goes_on_with_the_draws_of_the_run():
    """Its later base seeds come after those of the run that was cut, as on the other ranks."""
    whole = run(loaders_of(23, 1))
    after = run(loaders_of(23, 4, 2, whole.states[11]))
    assert after.num_steps == [1, 0, 0, 0]
    assert after.state["generators_now"] == whole.state["generators_now"]
