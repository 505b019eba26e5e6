"""State: where an epoch is, in plain values, and going on exactly there."""

import copy
import io
import json
import pickle
from itertools import islice

import numpy as np
import pytest
import torch

from torchstage.samplers import ElasticSampler

WHOLE = list(ElasticSampler(range(20), seed=5))


def sampler_of(length=20, *args, **arguments):
    return ElasticSampler(range(length), *args, **{"seed": 5, **arguments})


def test_the_state_is_plain_and_written_down():
    sampler = sampler_of(20, 3, 1)
    sampler.set_epoch(2)
    next(iter(sampler))
    state = sampler.state_dict()
    assert state == {"version": 1, "epoch": 2, "position": 3, "seed": 5, "length": 20, "shuffle": True}
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_what_numpy_gave_is_plain_in_the_state_too():
    sampler = ElasticSampler(range(20), np.int64(2), np.int32(0), seed=np.uint8(5))
    sampler.set_epoch(np.int64(1))
    sampler.start_at(np.int64(4))
    assert {type(value) for value in sampler.state_dict().values()} == {int, bool}
    json.dumps(sampler.state_dict())


@pytest.mark.parametrize("cut", range(21))
def test_a_state_of_any_place_goes_on_there(cut):
    sampler, resumed = sampler_of(), sampler_of()
    sampler.set_epoch(3)
    whole = list(sampler)
    indices = iter(sampler)
    seen = list(islice(indices, cut))
    state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == ((3, cut) if cut < 20 else (4, 0))
    resumed.load_state_dict(state)
    assert (resumed.state_dict(), resumed.position, resumed.epoch) == (state, state["position"], state["epoch"])
    if cut < 20:
        assert seen + list(resumed) == whole
    assert resumed.state_dict() == {**state, "epoch": 4, "position": 0}


def test_before_the_first_index_the_state_is_where_it_will_begin():
    sampler = sampler_of()
    assert sampler.state_dict()["position"] == 0
    sampler.start_at(7)
    assert sampler.state_dict()["position"] == 7
    indices = iter(sampler)
    assert sampler.state_dict()["position"] == 7
    next(indices)
    assert sampler.state_dict()["position"] == 8


def test_after_a_break_the_state_stays_until_the_epoch_begins_again():
    sampler = sampler_of()
    next(iter(sampler))
    assert sampler.state_dict()["position"] == 1
    iter(sampler)
    assert sampler.state_dict()["position"] == 0


def test_an_epoch_given_up_for_another_is_not_in_the_state():
    sampler = sampler_of()
    next(iter(sampler))
    sampler.set_epoch(0)  # still the same one
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (0, 1)
    sampler.set_epoch(4)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (4, 0)


def test_a_place_in_one_epoch_is_not_taken_for_one_in_another():
    """A training loop that begins to count epochs at 0 again, as Fabric does, would see half of another order."""
    sampler = sampler_of()
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "position": 8})
    sampler.set_epoch(0)
    with pytest.raises(ValueError, match="position 8 of epoch 3, but epoch 0 was set since"):
        list(sampler)
    sampler.set_epoch(3)
    assert len(list(sampler)) == 12
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3, "position": 8})
    sampler.set_epoch(0)
    sampler.start_at(0)
    assert list(sampler) == WHOLE


def test_the_state_of_an_ended_epoch_lets_any_epoch_begin():
    sampler = sampler_of()
    sampler.load_state_dict({**sampler.state_dict(), "epoch": 3})
    sampler.set_epoch(0)
    assert list(sampler) == WHOLE


def test_an_epoch_that_ended_and_is_asked_for_again_is_next():
    sampler = sampler_of()
    assert len(list(sampler)) == 20
    assert sampler.state_dict()["epoch"] == 1
    sampler.set_epoch(0)
    assert sampler.state_dict()["epoch"] == 0


def test_the_state_counts_exactly_over_the_borders_of_blocks():
    sampler = sampler_of(20_000, 2, 1)
    indices = iter(sampler)
    for number in range(1, 10_000):
        next(indices)
        assert sampler.state_dict()["position"] == 2 * number
    next(indices)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_has_the_state_and_goes_on_alone(copied):
    sampler = sampler_of()
    indices = iter(sampler)
    next(indices)
    other = copied(sampler)
    assert other.state_dict() == sampler.state_dict()
    next(indices)
    assert other.state_dict()["position"] == 1
    assert list(other) == WHOLE


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"length": 21}, "length was 20 and is 21"),
        ({"seed": 6}, "seed was 5 and is 6"),
        ({"shuffle": False}, "shuffle was True and is False"),
        ({"length": 3, "seed": 6}, "length was 20 and is 3, seed was 5 and is 6"),
    ],
    ids=str,
)
def test_the_state_of_another_order_is_refused_and_changes_nothing(other, words):
    sampler = sampler_of(**other)
    sampler.start_at(2)
    with pytest.raises(ValueError, match=words):
        sampler.load_state_dict(sampler_of().state_dict())
    assert (sampler.position, sampler.epoch) == (2, 0)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"version": 2}, ValueError, "version 2, this torchstage reads version 1"),
        ({"position": 21}, ValueError, "position must be from 0 to 20, got 21"),
        ({"position": -1}, ValueError, "position must be from 0 to 20, got -1"),
        ({"position": 1.0}, TypeError, "position must be an integer, got 1.0"),
        ({"epoch": None}, TypeError, "epoch must be an integer, got None"),
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused_and_changes_nothing(change, error, words):
    sampler = sampler_of()
    state = {**sampler.state_dict(), "epoch": 3}
    with pytest.raises(error, match=words):
        sampler.load_state_dict({**state, **change})
    assert (sampler.position, sampler.epoch) == (0, 0)


@pytest.mark.parametrize("state", [{}, {"yielded": 4}], ids=str)
def test_the_state_of_something_else_is_refused(state):
    with pytest.raises(ValueError, match="not a state of an ElasticSampler"):
        sampler_of().load_state_dict(state)
    with pytest.raises(TypeError, match=r"a state is what state_dict\(\) returned, got int"):
        sampler_of().load_state_dict(7)


# With torchdata's loader --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_steps", [0, 1, 5, 6])
def test_a_stateful_data_loader_goes_on_where_it_was(num_workers, num_steps):
    """Twenty-one samples in six batches, the last one partial. Its processes are given indices ahead of the state."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    arguments = {
        "batch_size": 4,
        "num_workers": num_workers,
        "multiprocessing_context": "fork" if num_workers else None,
    }
    loader = stateful(range(21), sampler=sampler_of(21), **arguments)
    batches = iter(loader)
    seen = [batch.tolist() for batch in islice(batches, num_steps)]
    state = loader.state_dict()
    del batches
    sampler = sampler_of(21)
    loader = stateful(range(21), sampler=sampler, **arguments)
    loader.load_state_dict(state)
    rest = [index for batch in loader for index in batch.tolist()]
    whole = list(sampler_of(21))
    if num_steps < 6:
        assert [index for batch in seen for index in batch] + rest == whole
    else:  # the last index was drawn: the next epoch comes
        assert sampler.epoch == 1
        assert rest == list(sampler)
