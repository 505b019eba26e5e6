"""Ranks: one order for any number of them, and each sample exactly once when the number changes in mid-epoch."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler

from torchstage.samplers import ElasticSampler

from .ranks import interleaved, ranks_of, run

LENGTHS = st.one_of(st.integers(0, 40), st.integers(0, 700))
RANKS = st.integers(1, 9)
BATCHES = st.integers(1, 8)


ALL = None  # steps of an epoch


def order_of(length: int, epoch: int = 0, **arguments: Any) -> list[int]:
    """The epoch's order, as one rank has it."""
    sampler = ElasticSampler(range(length), 1, 0, **arguments)
    sampler.set_epoch(epoch)
    return list(sampler)


# Without a cut ----------------------------------------------------------------------------------------------


@given(length=LENGTHS, num_ranks=RANKS, batch_size=BATCHES, shuffle=st.booleans(), seed=st.integers(0, 2**63 - 1))
def test_global_batch_s_is_the_samples_from_s_times_g_on(length, num_ranks, batch_size, shuffle, seed):
    order = order_of(length, shuffle=shuffle, seed=seed)
    done = run(ranks_of(length, num_ranks, shuffle=shuffle, seed=seed), batch_size)
    size = num_ranks * batch_size
    global_batches = [interleaved(step) for step in done.steps]
    assert global_batches == [order[begin : begin + size] for begin in range(0, length, size)]
    assert sorted(done.seen) == list(range(length))


@given(length=LENGTHS, num_ranks=RANKS)
def test_ranks_differ_by_at_most_one_sample(length, num_ranks):
    counts = [len(list(sampler)) for sampler in ranks_of(length, num_ranks)]
    assert max(counts) - min(counts) <= 1
    assert counts == [len(sampler) for sampler in ranks_of(length, num_ranks)]


# Cut and gone on with ---------------------------------------------------------------------------------------


@st.composite
def runs(draw: Any, max_runs: int = 4) -> list[tuple[int, int, int]]:
    """Ranks, batch size and steps of each run of an epoch; the last one goes to its end."""
    return draw(st.lists(st.tuples(RANKS, BATCHES, st.integers(0, 12)), min_size=2, max_size=max_runs))


@given(length=LENGTHS, parts=runs(), shuffle=st.booleans(), epoch=st.integers(0, 5))
def test_each_sample_comes_once_whatever_ranks_and_batches_follow(length, parts, shuffle, epoch):
    seen: dict[int, list[int]] = {epoch: []}
    state = {**ranks_of(length, 1, shuffle=shuffle)[0].state_dict(), "epoch": epoch}
    for number, (num_ranks, batch_size, num_steps) in enumerate(parts, 1):
        at = state["epoch"]
        samplers = ranks_of(length, num_ranks, state, shuffle=shuffle)
        done = run(samplers, batch_size, ALL if number == len(parts) else num_steps)
        seen[at] += done.seen
        state = done.state
        if state["epoch"] == at:
            assert state["position"] == len(seen[at])
        else:
            assert (state["epoch"], state["position"]) == (at + 1, 0)
            seen[at + 1] = []
    del seen[state["epoch"]]  # the one that is next
    assert seen == {at: order_of(length, at, shuffle=shuffle) for at in range(epoch, state["epoch"])}


@given(length=LENGTHS, data=st.data())
def test_global_batches_do_not_change_where_ranks_times_batch_size_does_not(length, data):
    size = data.draw(st.sampled_from([6, 12, 24]))
    first, second = (data.draw(st.sampled_from([n for n in range(1, 9) if size % n == 0])) for _ in range(2))
    whole = run(ranks_of(length, first), size // first)
    cut = data.draw(st.integers(0, max(0, len(whole.steps) - 1)))
    before = run(ranks_of(length, first), size // first, cut)
    after = run(ranks_of(length, second, before.state), size // second)
    assert [*map(interleaved, before.steps), *map(interleaved, after.steps)] == [*map(interleaved, whole.steps)]


@given(length=LENGTHS, num_ranks=RANKS, batch_size=BATCHES, start=st.integers(0, 700))
def test_steps_are_equal_but_for_a_last_batch_smaller_than_the_ranks(length, num_ranks, batch_size, start):
    start = min(start, length)
    samplers = ranks_of(length, num_ranks)
    for sampler in samplers:
        sampler.start_at(start)
    num_steps = run(samplers, batch_size).num_steps
    last = (length - start) % (num_ranks * batch_size)
    assert (len(set(num_steps)) == 1) == (not 0 < last < num_ranks)


@given(length=LENGTHS, num_ranks=RANKS, batch_size=BATCHES)
def test_whole_batches_alone_are_equally_many_but_for_a_last_one_that_lacks_fewer_than_the_ranks(
    length, num_ranks, batch_size
):
    num_steps = [len(BatchSampler(sampler, batch_size, drop_last=True)) for sampler in ranks_of(length, num_ranks)]
    num_lacking = -length % (num_ranks * batch_size)
    assert (len(set(num_steps)) == 1) == (not 0 < num_lacking < num_ranks)


def test_a_partial_last_batch_is_the_end_on_every_rank():
    """Six samples on four ranks: two ranks have two, two have one, and all say that the epoch is over."""
    done = run(ranks_of(6, 4), 2, num_steps=1)
    assert list(map(len, done.steps[0])) == [2, 2, 1, 1]
    assert (done.state["epoch"], done.state["position"]) == (1, 0)


def test_ranks_that_have_no_more_batch_agree_with_those_that_have():
    """Ten samples on four ranks in batches of two: after the first step the last two ranks have nothing left."""
    done = run(ranks_of(10, 4), 2, num_steps=1)
    assert (done.state["epoch"], done.state["position"]) == (0, 8)
    assert run(ranks_of(10, 4), 2).num_steps == [2, 2, 1, 1]


# Equal steps, if asked ----------------------------------------------------------------------------------------


@given(length=LENGTHS, num_ranks=RANKS, batch_size=BATCHES, start=st.integers(0, 700))
def test_padded_the_first_samples_of_the_order_come_again_at_its_end(length, num_ranks, batch_size, start):
    order, start = order_of(length, seed=3), min(start, length)
    samplers = ranks_of(length, num_ranks, seed=3, tail="pad")
    for sampler in samplers:
        sampler.start_at(start)
    num_missing = -(length - start) % num_ranks
    assert [sampler.num_total for sampler in samplers] == [length + num_missing] * num_ranks
    done = run(samplers, batch_size)
    assert done.seen == order[start:] + (order * num_ranks)[:num_missing]
    assert len(set(done.num_steps)) == 1
    assert (done.state["epoch"], done.state["position"]) == (1, 0)


@given(length=LENGTHS, num_ranks=RANKS, batch_size=BATCHES, start=st.integers(0, 700))
def test_dropped_the_last_samples_of_the_order_are_left_out(length, num_ranks, batch_size, start):
    order, start = order_of(length, seed=3), min(start, length)
    samplers = ranks_of(length, num_ranks, seed=3, tail="drop")
    for sampler in samplers:
        sampler.start_at(start)
    end = length - (length - start) % num_ranks
    assert [sampler.num_total for sampler in samplers] == [end] * num_ranks
    done = run(samplers, batch_size)
    assert done.seen == order[start:end]
    assert len(set(done.num_steps)) == 1
    assert (done.state["epoch"], done.state["position"]) == (1, 0)


def test_the_tail_may_change_with_the_ranks():
    before = run(ranks_of(23, 4, tail="drop"), 2, num_steps=1)
    after = run(ranks_of(23, 3, before.state), 2)
    assert before.seen + after.seen == order_of(23)


@pytest.mark.parametrize("tail", ["exact", "pad", "drop"])
def test_more_ranks_than_samples(tail):
    done = run(ranks_of(3, 8, tail=tail), 2)
    order = order_of(3)
    assert done.seen == {"exact": order, "pad": order + order + order[:2], "drop": []}[tail]


def test_huge_datasets_are_shared_out_alike():
    length, start = 2**62 + 5, 2**62 - 4091
    samplers = ranks_of(length, 3)
    for sampler in samplers:
        sampler.start_at(start)
    assert [len(sampler) for sampler in samplers] == [1366, 1365, 1365]
    done = run(samplers, 64)
    assert len(set(done.seen)) == len(done.seen) == 4096
    alone = ElasticSampler(range(length), 1, 0)
    alone.start_at(start)
    assert done.seen == list(alone)
