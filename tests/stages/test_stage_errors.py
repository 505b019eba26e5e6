"""Errors of stages: the user's own exception, in its place in the order, with a note that says where; the epoch goes
on."""

import traceback
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.parity.compare import story
from tests.stages.placing import Numbers, Places
from torchstage import Stage, StagedDataset, StageLoader

LENGTH = 20
BAD = 9  # of batches of four: the second sample of batch 2
WORDS = ["t", "1", "3", "a", "a1", "x", "x1", "p"]
MIXTURES = ["a t 2", "t a t", "2 t a", "x x x", "t t t", "2 x a", "p t 2", "t 2 p", "a a a"]


class OddError(Exception):
    """A user's own."""


class FrozenError(Exception):
    """Allows no attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot set {name}")


class TwoPartsError(Exception):
    """Cannot be made again from its arguments: it does not survive pickling."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


def bad(value: int) -> int:
    if value == 10 * BAD:
        raise OddError("this one")  # the user's line
    return value


def frozen(value: int) -> int:
    if value == 10 * BAD:
        raise FrozenError("this one")
    return value


def two_parts(value: int) -> int:
    if value == 10 * BAD:
        raise TwoPartsError("this", "one")
    return value


def stops(value: int) -> int:
    if value == 10 * BAD:
        raise StopIteration
    return value


def lacks(value: int) -> int:
    return {10 * index: 10 * index for index in range(LENGTH) if index != BAD}[value]


def leaves(value: int) -> int:
    if value == 10 * BAD:
        raise SystemExit(3)
    return value


def good(value: int) -> int:
    return value


def told(places: Places, words: str, functions: Any, *also: type[BaseException], **arguments: Any) -> list[Any]:
    """What an epoch was like; batches as lists."""
    arguments = {"batch_size": 4, "num_workers": 2, **arguments}
    with StageLoader(Numbers(LENGTH), stages=places.stages(functions, words), **arguments) as loader:
        events = story(loader, *also)
    return [event.tolist() if isinstance(event, torch.Tensor) else event for event in events]


def batch(number: int) -> list[int]:
    return [10 * index for index in range(4 * number, 4 * number + 4)]


def the_error_of(events: list[Any]) -> BaseException:
    """In its place, with all other batches around it."""
    assert events[:2] + events[3:] == [batch(0), batch(1), batch(3), batch(4)]
    assert isinstance(events[2], BaseException)
    return events[2]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
@pytest.mark.parametrize("words", WORDS)
def test_an_error_comes_in_its_place_and_the_epoch_goes_on(words, num_workers, everywhere):
    error = the_error_of(told(everywhere, words, [bad], num_workers=num_workers))
    assert type(error) is OddError
    assert error.args == ("this one",)
    assert error.__notes__ == ["torchstage: raised in stage 'bad', dataset index 9, batch 2"]
    assert "the user's line" in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("words", MIXTURES)
def test_the_note_names_the_stage_among_others(words, position, everywhere):
    functions = [good] * position + [bad] + [good] * (2 - position)
    error = the_error_of(told(everywhere, words, functions))
    assert type(error) is OddError
    assert error.__notes__ == ["torchstage: raised in stage 'bad', dataset index 9, batch 2"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", [*WORDS, *MIXTURES])
def test_an_error_of_the_dataset_before_them_says_so(words, num_workers, everywhere):
    class Fails(Numbers):
        def __getitem__(self, index: int) -> int:
            return bad(super().__getitem__(index))

    stages = everywhere.stages([good] * 3, words)
    with StageLoader(Fails(LENGTH), 4, num_workers=num_workers, stages=stages) as loader:
        error = story(loader)[2]
    assert type(error) is OddError
    assert error.__notes__ == ["torchstage: raised in stage 'fetch', dataset index 9, batch 2"]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", WORDS)
def test_the_same_object_is_raised(words, num_workers, somewhere):
    if words == "p":
        pytest.skip("a process has objects of its own")
    raised = OddError("mine")

    def fails(value: int) -> int:
        if value == 10 * BAD:
            raise raised
        return value

    assert the_error_of(told(somewhere, words, [fails], num_workers=num_workers)) is raised
    raised.__traceback__ = None


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", WORDS)
def test_stop_iteration_is_told_in_words_and_ends_nothing(words, num_workers, everywhere):
    error = the_error_of(told(everywhere, words, [stops], num_workers=num_workers))
    assert type(error) is RuntimeError
    if words[0] == "a":  # Python itself makes a RuntimeError of it, as it leaves the coroutine
        assert type(error.__cause__) is StopIteration
    elif words != "p" or num_workers == 0:
        assert str(error).startswith("StopIteration was raised in stage 'stops', dataset index 9, batch 2.")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", WORDS)
def test_a_key_error_is_a_key_error(words, num_workers, everywhere):
    error = the_error_of(told(everywhere, words, [lacks], num_workers=num_workers))
    assert type(error) is KeyError
    assert error.args == (90,)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", [*WORDS, "t t t", "x x x", "p p p"])
def test_an_exception_that_allows_no_attributes(words, num_workers, everywhere):
    functions = [frozen, good, good]
    error = the_error_of(told(everywhere, words, functions, num_workers=num_workers))
    if "p" in words and num_workers:
        assert type(error) is RuntimeError
        assert "FrozenError: this one" in str(error)
    else:
        assert type(error) is FrozenError
    assert error.__notes__[-1] == "torchstage: raised in stage 'frozen', dataset index 9, batch 2"


@pytest.mark.parametrize("functions", [[two_parts, good, good], [good, two_parts, good]])
@pytest.mark.parametrize("words", ["p p p", "p t p", "a p t"])
def test_an_exception_that_cannot_be_sent_comes_in_words_and_breaks_nothing(words, functions, everywhere):
    for _ in range(2):
        error = the_error_of(told(everywhere, words, functions))
        assert error.__notes__[-1] == "torchstage: raised in stage 'two_parts', dataset index 9, batch 2"
        if functions.index(two_parts) == words.split().index("p"):
            assert type(error) is RuntimeError
            assert "TwoPartsError: thisone" in str(error)
            assert 'raise TwoPartsError("this", "one")' in str(error)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("words", WORDS)
def test_system_exit_in_a_stage_reaches_the_user(words, num_workers, everywhere):
    if words == "p" and num_workers:
        pytest.skip("a process that exits is a process that died")
    if num_workers == 0:
        with pytest.raises(SystemExit):
            told(everywhere, words, [leaves], num_workers=0)
    else:
        error = the_error_of(told(everywhere, words, [leaves], SystemExit, num_workers=num_workers))
        assert type(error) is SystemExit


@pytest.mark.parametrize("words", WORDS)
def test_the_file_is_named(words, everywhere):
    class Filed(Numbers):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.samples = [(f"cat/{number}.jpg", 0) for number in range(length)]

    with StageLoader(Filed(LENGTH), 4, num_workers=2, stages=everywhere.stages([bad], words)) as loader:
        error = story(loader)[2]
    assert error.__notes__ == ["torchstage: raised in stage 'bad', dataset index 9 (cat/9.jpg), batch 2"]


@pytest.mark.parametrize("words", ["t", "3", "a", "x", "2 a x"])
def test_of_two_errors_in_a_batch_the_first_sample_s_is_raised(words, somewhere):
    def fails(value: int) -> int:
        if value in (50, 60, 70, 170):
            raise OddError(value)
        return value

    functions = [fails, good, good]
    for _ in range(3):
        events = told(somewhere, words, functions, num_workers=4)
        assert [event.args for event in events if isinstance(event, OddError)] == [(50,), (170,)]
        assert [event for event in events if not isinstance(event, OddError)] == [batch(0), batch(2), batch(3)]


@pytest.mark.parametrize("words", ["t", "3", "a", "x", "p", "2 a x"])
def test_every_sample_fails_and_the_epoch_still_ends(words, everywhere):
    def error(value: Any) -> Any:
        raise OddError(value)

    functions = [lacks_all if words == "p" else error, good, good]
    events = told(everywhere, words, functions, num_workers=3)
    assert len(events) == 5
    assert all(isinstance(event, OddError | KeyError) for event in events)
    for event in events:
        event.__traceback__ = None


def lacks_all(value: int) -> int:
    return {}[value]


@pytest.mark.parametrize("words", ["t", "3", "a", "x", "2 a x"])
def test_an_error_of_collate_after_stages(words, somewhere):
    def collate(samples: list[int]) -> list[int]:
        bad(samples[1])
        return samples

    functions = [good] * 3
    error = the_error_of(told(somewhere, words, functions, collate_fn=collate))
    assert error.__notes__ == ["torchstage: raised in stage 'collate', batch 2"]


class Bulk(StagedDataset):
    def __len__(self) -> int:
        return LENGTH

    def fetch_many(self, indices: Sequence[int]) -> list[int]:
        return [10 * index for index in indices]

    def decode(self, value: int) -> int:
        return bad(value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_a_bulk_read_the_sample_is_named(num_workers):
    with StageLoader(Bulk(), 4, num_workers=num_workers, stages=[Stage(good)]) as loader:
        events = story(loader)
    assert events[2].__notes__ == ["torchstage: raised in stage 'decode', dataset index 9, batch 2"]
    assert [event.tolist() for event in events[:2] + events[3:]] == [batch(0), batch(1), batch(3), batch(4)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stages_of_one_name_are_told_apart(num_workers):
    stages = [Stage(good, "step"), Stage(bad, "step"), Stage(good, "step", concurrency=1)]
    with StageLoader(Numbers(LENGTH), 4, num_workers=num_workers, stages=stages) as loader:
        error = story(loader)[2]
    assert error.__notes__ == ["torchstage: raised in stage 'step-2', dataset index 9, batch 2"]
