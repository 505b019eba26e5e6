"""Random loaders: any samples may fail in any way, under any policy; compared with what a few lines of Python say."""

import json
import warnings
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bad.broken import ERROR, FILTERED, GOOD, Moody, MoodyAtOnce, below_zero
from torchstage import SkipSample, StageLoader, TooManyBadSamples
from torchstage.tolerance import MAX_SUBSTITUTES

pytestmark = pytest.mark.fuzz

POLICIES: dict[str, Any] = {"raise": "raise", "skip": "skip", "replace": "replace", "function": below_zero}
AN_ERROR, ALL_BAD = "an error", "every sample failed"  # in the place of a batch
Outcome = list[int] | str


@dataclass(frozen=True)
class Case:
    """A loader, and where it is cut."""

    moods: list[int]
    batch_size: int
    drop_last: bool
    policy: str
    num_workers: int
    method: str
    prefetch_factor: int
    batches: list[list[int]] | None  # of a sampler of the user's
    in_order: bool
    comes_at_once: bool  # all samples of a batch
    cut: int

    def loader(self) -> StageLoader[Any]:
        arguments: dict[str, Any] = {"on_error": POLICIES[self.policy], "in_order": self.in_order}
        if self.num_workers:
            arguments |= {"worker_method": self.method, "prefetch_factor": self.prefetch_factor}
        if self.batches is None:
            arguments |= {"batch_size": self.batch_size, "drop_last": self.drop_last}
        else:
            arguments |= {"batch_sampler": self.batches}
        dataset = MoodyAtOnce(self.moods) if self.comes_at_once else Moody(self.moods)
        return StageLoader(dataset, num_workers=self.num_workers, **arguments)

    @property
    def fills_up(self) -> bool:
        is_kept = self.batches is None and (self.in_order or not self.num_workers)
        return self.policy in ("skip", "function") and is_kept and not self.comes_at_once


# What it should give -------------------------------------------------------------------------------------------


def instead_of(case: Case, index: int) -> int | None:
    """What comes for a sample; None: nothing. Raises LookupError where that is an error."""
    mood, length = case.moods[index], len(case.moods)
    if mood == GOOD:
        return index
    if case.policy == "replace":
        others = [(index + step) % length for step in range(1, min(MAX_SUBSTITUTES + 1, length))]
        try:
            return next(other for other in others if case.moods[other] == GOOD)
        except StopIteration:
            raise LookupError from None
    if mood == ERROR and case.policy == "raise":
        raise LookupError
    return -1 - index if mood == ERROR and case.policy == "function" else None


def in_batches(indices: list[int], size: int, drop_last: bool) -> list[list[int]]:
    found = [indices[begin : begin + size] for begin in range(0, len(indices), size)]
    return [batch for batch in found if len(batch) == size or not drop_last]


def by_hand(case: Case) -> list[Outcome]:
    every = list(range(len(case.moods)))
    has_error = case.policy != "raise" and ERROR in case.moods
    if case.fills_up:
        left = [value for index in every if (value := instead_of(case, index)) is not None]
        batches: list[Outcome] = [*in_batches(left, case.batch_size, case.drop_last)]
        return batches if left or not has_error else [ALL_BAD]
    given_out: list[Outcome] = []
    num_bad = num_good = 0
    for indices in in_batches(every, case.batch_size, case.drop_last) if case.batches is None else case.batches:
        batch: list[int] = []
        try:
            for index in indices:
                value = instead_of(case, index)
                num_bad += case.moods[index] == ERROR and case.policy != "raise"
                batch += [] if value is None else [value]
        except LookupError:
            given_out.append(AN_ERROR)
            continue
        num_good += len(batch)
        given_out += [batch] if batch else []
    return [*given_out, ALL_BAD] if num_bad and not num_good else given_out


# What it gives -------------------------------------------------------------------------------------------------


def outcomes(loader: StageLoader[Any], most: int | None = None) -> list[Outcome]:
    """``most``: how many are taken; None: all."""
    found: list[Outcome] = []
    batches = iter(loader)
    while most is None or len(found) < most:
        try:
            found.append(next(batches).tolist())
        except StopIteration:
            break
        except TooManyBadSamples:
            found.append(ALL_BAD)
            break
        except (ValueError, SkipSample):
            found.append(AN_ERROR)
    return found


def check(case: Case) -> None:
    expected = by_hand(case)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "StageLoader: [0-9]+ bad samples", UserWarning)
        if not case.in_order:
            expected.sort(key=str)
        with case.loader() as loader:
            for _ in range(2):  # epochs
                found = outcomes(loader)
                if not case.in_order:
                    found.sort(key=str)
                assert found == expected
        if not case.in_order or not 0 < case.cut < len(expected):
            return
        with case.loader() as loader:
            first = outcomes(loader, case.cut)
            state = json.loads(json.dumps(loader.state_dict()))
        with case.loader() as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert first + outcomes(loader) == expected


@st.composite
def cases(draw: st.DrawFn) -> Case:
    odds = draw(st.sampled_from([[GOOD] * 6 + [ERROR, FILTERED], [GOOD, ERROR, FILTERED], [GOOD] + [ERROR] * 20]))
    moods = draw(st.lists(st.sampled_from(odds), min_size=1, max_size=45))
    batch = st.lists(st.integers(0, len(moods) - 1), min_size=1, max_size=5)
    return Case(
        moods=moods,
        batch_size=draw(st.integers(1, 9)),
        drop_last=draw(st.booleans()),
        policy=draw(st.sampled_from(list(POLICIES))),
        num_workers=draw(st.integers(0, 3)),
        method="thread",
        prefetch_factor=draw(st.integers(1, 4)),
        batches=draw(st.none() | st.lists(batch, min_size=1, max_size=8)),
        in_order=draw(st.sampled_from([True, True, True, False])),
        comes_at_once=draw(st.sampled_from([False, False, True])),
        cut=draw(st.integers(1, 12)),
    )


@settings(max_examples=150)
@given(case=cases())
def test_inline_and_threads_give_what_the_book_says(case: Case) -> None:
    check(case)


@settings(max_examples=12)
@given(case=cases())
def test_processes_give_what_the_book_says(case: Case) -> None:
    check(replace(case, method="multiprocessing", num_workers=max(1, case.num_workers)))
