"""Loaders of several ranks over an ElasticSampler, cut anywhere and gone on with by any number of ranks.

Every sample of an epoch comes once, in the global batches of a run that was never cut, and the state is the same on all
ranks after each step.
"""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from .elastic_ranks import interleaved, loaders_of, order_of, run

LENGTHS, RANKS, BATCHES = st.integers(1, 40), st.integers(1, 5), st.integers(1, 6)
TAILS = st.sampled_from(["exact", "pad", "drop"])
THREADS = st.sampled_from([0, 0, 0, 1, 2, 4])  # mostly none: starting them is what takes time


def steps_by_the_book(
    order: list[int], position: int, num_ranks: int, batch_size: int, tail: str = "exact", drop_last: bool = False
) -> list[list[list[int]]] | None:
    """What docs/elastic.md says that the ranks are given from there on; None: they would have unequal whole batches."""
    left = order[position:]
    if tail == "drop":
        left = left[: len(left) // num_ranks * num_ranks]
    if tail == "pad":
        left += (order * num_ranks)[: -len(left) % num_ranks]
    shares = [left[rank::num_ranks] for rank in range(num_ranks)]
    batches = [[share[at : at + batch_size] for at in range(0, len(share), batch_size)] for share in shares]
    if drop_last:
        batches = [[batch for batch in share if len(batch) == batch_size] for share in batches]
        if len({len(share) for share in batches}) != 1:
            return None
    num_steps = max(map(len, batches))
    return [[share[step] if step < len(share) else [] for share in batches] for step in range(num_steps)]


@st.composite
def parts(draw: Any, max_size: int = 4) -> list[tuple[int, int, int, int]]:
    """Ranks, batch size, threads and steps of runs, one after another."""
    return draw(st.lists(st.tuples(RANKS, BATCHES, THREADS, st.integers(0, 9)), min_size=2, max_size=max_size))


# By the book --------------------------------------------------------------------------------------------------------


@given(
    length=LENGTHS, parts=parts(), tail=TAILS, drop_last=st.booleans(), shuffle=st.booleans(), sets_epoch=st.booleans()
)
@example(length=10, parts=[(4, 2, 0, 2), (3, 1, 0, 9)], tail="exact", drop_last=False, shuffle=True, sets_epoch=True)
@example(length=10, parts=[(4, 2, 0, 1), (4, 2, 0, 1)], tail="exact", drop_last=False, shuffle=True, sets_epoch=False)
@example(length=7, parts=[(3, 2, 0, 9), (2, 2, 2, 1)], tail="pad", drop_last=True, shuffle=True, sets_epoch=True)
def test_every_step_of_every_run_is_what_the_book_says(length, parts, tail, drop_last, shuffle, sets_epoch):
    state, epoch, position = None, 0, 0
    given: dict[str, Any] = {"tail": tail, "drop_last": drop_last, "shuffle": shuffle}
    for num_ranks, batch_size, num_workers, num_steps in parts:
        order = order_of(length, epoch, shuffle=shuffle)
        book = steps_by_the_book(order, position, num_ranks, batch_size, tail, drop_last)
        loaders = loaders_of(length, num_ranks, batch_size, state, num_workers=num_workers, **given)
        if book is None:
            with pytest.raises(ValueError, match="wait for good"):
                run(loaders, epoch=epoch if sets_epoch else None)
            continue
        done = run(loaders, num_steps, epoch=epoch if sets_epoch else None)
        assert done.steps == book[:num_steps]
        if not num_steps:
            continue
        state, size = done.state, num_ranks * batch_size
        for number, between in enumerate(done.states[: len(book)]):
            if number:
                assert (between["epoch"], between["position"]) == (epoch, position + number * size)
        assert state["is_finished"] == (num_steps >= max(1, len(book)))
        if state["is_finished"]:
            epoch, position = epoch + sets_epoch, 0
        else:
            position = state["position"]


@given(length=LENGTHS, parts=parts(), shuffle=st.booleans())
def test_each_sample_of_an_epoch_comes_once_over_all_runs(length, parts, shuffle):
    state, seen = None, []
    for number, (num_ranks, batch_size, num_workers, num_steps) in enumerate(parts, 1):
        loaders = loaders_of(length, num_ranks, batch_size, state, num_workers=num_workers, shuffle=shuffle)
        done = run(loaders, None if number == len(parts) else num_steps)
        seen += done.seen
        state = done.state
        if state["is_finished"]:
            break
    assert seen == order_of(length, shuffle=shuffle)


@given(length=LENGTHS, data=st.data(), num_workers=THREADS)
def test_global_batches_do_not_change_where_ranks_times_batch_size_does_not(length, data, num_workers):
    size = data.draw(st.sampled_from([6, 12]))
    ranks = [data.draw(st.sampled_from([n for n in range(1, 7) if size % n == 0])) for _ in range(3)]
    order = order_of(length)
    found, state = [], None
    for number, num_ranks in enumerate(ranks, 1):
        loaders = loaders_of(length, num_ranks, size // num_ranks, state, num_workers=num_workers)
        done = run(loaders, None if number == len(ranks) else data.draw(st.integers(0, 3)))
        found += [interleaved(step) for step in done.steps]
        state = done.state
        if state["is_finished"]:
            break
    assert found == [order[begin : begin + size] for begin in range(0, length, size)]


@pytest.mark.parametrize("tail", ["exact", "pad", "drop"])
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 3), (3, 5), (1, 4), (4, 4)], ids=str)
def test_cut_at_every_step(before, after, tail):
    """Twenty-three samples; the last global batch is partial, also on the ranks that go on."""
    length = 23
    whole = run(loaders_of(length, before, 2, tail=tail))
    for cut, state in enumerate(whole.states[:-1]):
        rest = run(loaders_of(length, after, 2, state, num_workers=cut % 3, tail=tail))
        assert rest.steps == steps_by_the_book(order_of(length), 2 * before * cut, after, 2, tail)
        assert rest.state["is_finished"]
    again = run(loaders_of(length, after, 2, whole.state, tail=tail))  # the last one: nothing of that epoch is left
    assert again.steps == steps_by_the_book(order_of(length), 0, after, 2, tail)


def test_several_epochs_cut_and_gone_on_with_in_any_of_them():
    """With ``set_epoch``, each run on other ranks. The last state of an epoch is the next one's."""
    epochs, cuts = range(4), [5, 2, 9, 1, 1, 30]
    ranks = [4, 2, 3, 1, 2, 4]
    state, epoch, seen = None, 0, {epoch: [] for epoch in epochs}
    for num_ranks, cut in zip(ranks, cuts, strict=True):
        loaders, left = loaders_of(25, num_ranks, 2, state, num_workers=2, persistent_workers=True), cut
        while left and epoch in epochs:
            done = run(loaders, left, epoch)
            seen[epoch] += done.seen
            left -= len(done.steps)
            state = done.state
            epoch += state["is_finished"]
    assert seen == {epoch: order_of(25, epoch) for epoch in epochs}


def test_several_epochs_that_nobody_numbered_have_one_order_and_end_each():
    state, seen = None, []
    for num_ranks, cut in ((3, 3), (2, 4), (4, 2), (2, 9)):
        done = run(loaders_of(20, num_ranks, 2, state), cut)
        seen += done.seen
        state = done.state
    assert seen == order_of(20) * 2


def test_batches_of_one_sample_each_without_batching():
    state = run(loaders_of(11, 3, None), 2).state
    assert state["position"] == 6
    assert run(loaders_of(11, 2, None, state, num_workers=2)).seen == order_of(11)[6:]


def test_worker_processes_go_on_where_threads_were_and_back():
    first = run(loaders_of(30, 2, 3, num_workers=2), 2)
    second = run(loaders_of(30, 1, 3, first.state, num_workers=2, multiprocessing_context="fork"), 3)
    third = run(loaders_of(30, 3, 2, second.state, num_workers=2))
    assert first.seen + second.seen + third.seen == order_of(30)


@pytest.mark.parametrize("after", [(2, 16, 24), (3, 4, 16)], ids=["2 ranks x 16 threads", "3 ranks x 4 threads"])
def test_ur_041_saved_on_eight_ranks_with_four_threads_each(after):
    """In mid-epoch, with the same number of samples in a global batch; and once more, to one rank."""
    num_ranks, num_workers, batch_size = after
    length, size = 500, 48
    before = run(loaders_of(length, 8, 6, num_workers=4), 4)
    then = run(loaders_of(length, num_ranks, batch_size, before.state, num_workers=num_workers), 3)
    last = run(loaders_of(length, 1, size, then.state))
    assert before.seen + then.seen + last.seen == order_of(length)
    assert [interleaved(step) for step in [*before.steps, *then.steps, *last.steps]] == [
        order_of(length)[begin : begin + size] for begin in range(0, length, size)
    ]
