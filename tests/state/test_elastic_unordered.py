"""in_order=False over an ElasticSampler: each rank has a state of its own, and goes on with its part of the epoch."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .elastic_ranks import SEED, loaders_of, order_of, run

MAX_SECONDS = 30.0


class Held(Dataset[int]):
    """Range, of which some samples are not ready before they are let go of."""

    def __init__(self, length: int, held: set[int]) -> None:
        self.length = length
        self.held = held
        self.let_go = threading.Event()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index in self.held:
            assert self.let_go.wait(MAX_SECONDS)
        return index


def taken(
    length: int, ranks: tuple[int, int], batch_size: int, state: Any, held: set[int], num_steps: int | None
) -> tuple[list[int], dict[str, Any]]:
    """What one rank is given in so many steps while these samples are held, and its state then."""
    dataset = Held(length, held)
    rank, num_ranks = ranks
    sampler = ElasticSampler(dataset, num_ranks, rank, seed=SEED)
    seen: list[int] = []
    with StageLoader(dataset, batch_size, sampler=sampler, num_workers=2, in_order=False, isolation="shared") as loader:
        if state is not None:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        batches = iter(loader)
        try:
            while num_steps is None or num_steps > 0:
                batch = next(batches, None)
                if batch is None:
                    break
                seen += batch.tolist()
                num_steps = None if num_steps is None else num_steps - 1
            return seen, loader.state_dict()
        finally:
            dataset.let_go.set()


@settings(max_examples=60)
@given(length=st.integers(4, 60), num_ranks=st.integers(1, 4), data=st.data())
def test_each_rank_goes_on_with_its_own_part(length, num_ranks, data):
    """In each run one sample is late, so that batches overtake its batch; the batch size may change at each cut."""
    for rank in range(num_ranks):
        share, state, seen = order_of(length)[rank::num_ranks], None, []
        for _ in range(data.draw(st.integers(1, 3))):
            left = [index for index in share if index not in seen]
            batch_size = data.draw(st.integers(1, 5))
            num_others = -(-len(left) // batch_size) - 1
            if num_others < 1:
                break
            late = data.draw(st.sampled_from(left[:-batch_size]))
            num_steps = data.draw(st.integers(0, num_others))
            found, state = taken(length, (rank, num_ranks), batch_size, state, {late}, num_steps)
            assert late not in found
            seen += found
        rest, state = taken(length, (rank, num_ranks), data.draw(st.integers(1, 5)), state, set(), None)
        assert sorted(seen + rest) == sorted(share)
        assert (state["is_finished"], state["rank"], state["beyond"]) == (True, None, [])


@pytest.mark.parametrize("batch_size", [2, 3])
def test_a_rank_alone_goes_on_with_others_once_nothing_is_out_of_order(batch_size):
    """The second batch came before the first. Another batch size then, and the place is no multiple of any of them."""
    order = order_of(20)
    found, state = taken(20, (0, 1), 4, None, {order[0]}, 1)
    assert state["beyond"] == [[4, 8]]
    with pytest.raises(ValueError, match=r"was \[0, 1\] and is \[0, 2\]"):
        loaders_of(20, 2, 2, state)
    then, state = taken(20, (0, 1), 3, state, set(), 0)
    loader = StageLoader(range(20), 3, sampler=ElasticSampler(range(20), seed=SEED))
    loader.load_state_dict(state)
    batches = iter(loader)
    then = next(batches).tolist() + next(batches).tolist()  # 0 to 3, then 8 and 9: the ones between came before
    state = loader.state_dict()
    assert (state["position"], state["beyond"], state["rank"]) == (10, [], None)
    rest = run(loaders_of(20, 2, batch_size, state)).seen
    assert found + then + rest == [*order[4:8], *order[:4], *order[8:]]


def test_the_place_of_another_rank_is_refused():
    state = taken(20, (0, 2), 2, None, {order_of(20)[0]}, 2)[1]
    assert (state["position"], state["beyond"], state["rank"]) == (0, [[2, 4], [4, 6]], [0, 2])
    with pytest.raises(ValueError, match=r"each rank's own, \[rank, ranks\] was \[0, 2\] and is \[1, 2\]"):
        taken(20, (1, 2), 2, state, set(), None)


def test_an_epoch_that_is_over_on_a_rank_is_no_state_of_its_own():
    state = taken(20, (1, 2), 2, None, set(), None)[1]
    assert (state["is_finished"], state["rank"]) == (True, None)
    assert run(loaders_of(20, 3, 2, state)).seen == order_of(20)
