"""One hash: a seeded run gives the same pixels, whoever makes them, wherever it is cut, on any number of ranks.

Drawn at random: inline or up to eight threads, batches in order or not, cuts, and ranks for each part between two cuts.
The pictures go through torchvision's random transforms as they are.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torchvision")

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

from .pictures import TRANSFORMS, Mixed, Pictures, Stream

LENGTH, SEED, NUM_EPOCHS = 13, 7, 2
NUM_EXAMPLES = 8

pytestmark = pytest.mark.fuzz


@pytest.fixture(autouse=True, scope="module")
def one_thread_an_operation() -> Iterator[None]:
    """Pictures as small as these are made faster so."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


Sample = tuple[int, int, bytes]  # epoch, dataset index, digest of the pixels


def samples_of(epoch: int, batch: Any) -> list[Sample]:
    return [
        (epoch, int(index), hashlib.blake2b(pixels.numpy().tobytes(), digest_size=16).digest())
        for index, pixels in zip(*batch, strict=True)
    ]


def hash_of(samples: list[Sample]) -> str:
    return hashlib.blake2b(repr(samples).encode(), digest_size=16).hexdigest()


def interleaved(batches: list[list[Sample]]) -> list[Sample]:
    """What the ranks made in one step, in the global order."""
    longest = max(map(len, batches), default=0)
    return [batch[at] for at in range(longest) for batch in batches if at < len(batch)]


def steps_of(loaders: list[StageLoader[Any]], epoch: int) -> Iterator[list[Sample]]:
    iterators = [iter(loader) for loader in loaders]
    while True:
        batches = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in batches):
            return
        yield interleaved([[] if batch is None else samples_of(epoch, batch) for batch in batches])


def stream_of(make: Callable[..., Any], parts: list[dict[str, Any]]) -> list[list[Sample]]:
    """The global batches of a run of several epochs, of which each part but the last takes so many steps. A part with
    the state of ranks of their own keeps their number."""
    steps: list[list[Sample]] = []
    states: list[Any] = [None]
    epoch, num_before = 0, 1
    for part in [*parts, {**parts[0], "num_steps": None}]:
        arguments = {name: value for name, value in part.items() if name not in ("num_steps", "num_ranks")}
        is_own = any(state is not None and state.get("rank") is not None for state in states)
        num_ranks = num_before if is_own else part["num_ranks"]
        loaders = [make(num_ranks, rank, **arguments) for rank in range(num_ranks)]
        for rank, loader in enumerate(loaders):
            state = states[rank if is_own else 0]
            if state is not None:
                loader.load_state_dict(state)
        num_left, num_before = part["num_steps"], num_ranks
        while epoch < NUM_EPOCHS and num_left != 0:
            for loader in loaders:
                if hasattr(loader.sampler, "set_epoch"):
                    loader.sampler.set_epoch(epoch)
            for step in steps_of(loaders, epoch):
                steps.append(step)
                num_left = None if num_left is None else num_left - 1
                if num_left == 0:
                    break
            states = [loader.state_dict() for loader in loaders]
            epoch += all(state.get("is_finished", False) for state in states) or num_left != 0
        for loader in loaders:
            loader.close()
    return steps


def flat(steps: list[list[Sample]]) -> list[Sample]:
    return [sample for step in steps for sample in step]


# Map-style ----------------------------------------------------------------------------------------------------------


def made(transform: str, num_ranks: int, rank: int, batch_size: int, **arguments: Any) -> StageLoader[Any]:
    dataset = Pictures(LENGTH, TRANSFORMS[transform]())
    sampler = ElasticSampler(dataset, num_ranks, rank, seed=SEED)
    return StageLoader(dataset, batch_size, sampler=sampler, seed=SEED, **arguments)


def parts(in_order: Any, **given_: Any) -> st.SearchStrategy[list[dict[str, Any]]]:
    known: dict[str, Any] = {
        "num_ranks": st.integers(1, 4),
        "batch_size": st.integers(1, 4),
        "num_workers": st.sampled_from([0, 1, 2, 3, 4, 8]),
        "num_steps": st.integers(0, 6),
        "in_order": in_order,
    }
    fields = {name: value for name, value in (known | given_).items() if value is not None}
    return st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=3)


@pytest.fixture(scope="module")
def whole() -> dict[str, list[Sample]]:
    """The stream of each transform, made inline and never cut."""
    inline = {"num_ranks": 1, "batch_size": 5, "num_workers": 0, "num_steps": 0}
    found = {}
    for name in TRANSFORMS:
        samples = flat(stream_of(lambda *ranks, name=name, **rest: made(name, *ranks, **rest), [inline]))
        assert len({pixels for _, _, pixels in samples}) == NUM_EPOCHS * LENGTH, "it draws nothing: nothing is shown"
        found[name] = samples
    return found


@pytest.mark.parametrize("transform", TRANSFORMS)
@settings(max_examples=NUM_EXAMPLES)
@given(parts=st.one_of(parts(st.just(True)), parts(st.booleans())))
def test_the_stream_has_one_hash(whole, transform, parts):
    """In order, as it is; with parts in any order, the set of each epoch."""
    samples = flat(stream_of(lambda *ranks, **rest: made(transform, *ranks, **rest), parts))
    assert hash_of(sorted(samples)) == hash_of(sorted(whole[transform]))
    if all(part["in_order"] for part in parts):
        assert hash_of(samples) == hash_of(whole[transform])


@settings(max_examples=NUM_EXAMPLES)
@given(
    parts=parts(st.just(True), batch_size=None),
    shares=st.lists(st.sampled_from([1, 2, 3, 6]), min_size=4, max_size=4),
)
def test_with_as_many_samples_in_a_global_batch_the_batches_have_one_hash(whole, parts, shares):
    parts = [
        {**part, "num_ranks": num_ranks, "batch_size": 6 // num_ranks}
        for part, num_ranks in zip(parts, shares, strict=False)
    ]
    steps = stream_of(lambda *ranks, **rest: made("v2", *ranks, **rest), parts)
    epochs = [whole["v2"][:LENGTH], whole["v2"][LENGTH:]]
    assert steps == [epoch[begin : begin + 6] for epoch in epochs for begin in range(0, LENGTH, 6)]


# Mixed batches: the draws belong to the batch, which stays the same where ranks and batch size do -------------------


def mixed(num_ranks: int, rank: int, **arguments: Any) -> StageLoader[Any]:
    dataset = Pictures(LENGTH, TRANSFORMS["v2"]())
    sampler = ElasticSampler(dataset, num_ranks, rank, seed=SEED)
    return StageLoader(dataset, 3, sampler=sampler, seed=SEED, collate_fn=Mixed(LENGTH), **arguments)


@pytest.fixture(scope="module")
def whole_mixed() -> list[Sample]:
    return flat(stream_of(mixed, [{"num_ranks": 2, "num_workers": 0, "num_steps": 0}]))


@settings(max_examples=NUM_EXAMPLES)
@given(parts=parts(st.just(True), num_ranks=st.just(2), batch_size=None))
def test_mixup_and_cutmix_have_one_hash(whole_mixed, parts):
    assert hash_of(flat(stream_of(mixed, parts))) == hash_of(whole_mixed)


# Iterable: one lane, whatever the threads ---------------------------------------------------------------------------


def streamed(num_ranks: int, rank: int, **arguments: Any) -> StageLoader[Any]:
    dataset = Stream(LENGTH, TRANSFORMS["v1"]())
    return StageLoader(dataset, 3, lanes=1, seed=SEED, **arguments)


@pytest.fixture(scope="module")
def whole_stream() -> list[Sample]:
    return flat(stream_of(streamed, [{"num_ranks": 1, "num_workers": 0, "num_steps": 0}]))


@settings(max_examples=NUM_EXAMPLES)
@given(data=st.data(), is_inline=st.booleans())
def test_one_lane_has_one_hash(whole_stream, data, is_inline):
    """A cut with ``num_workers=0`` goes on with it: that dataset is the caller's own, and not a copy."""
    num_workers = st.just(0) if is_inline else st.sampled_from([1, 2, 4, 8])
    drawn = data.draw(parts(st.booleans(), num_ranks=st.just(1), batch_size=None, num_workers=num_workers))
    assert hash_of(flat(stream_of(streamed, drawn))) == hash_of(whole_stream)
