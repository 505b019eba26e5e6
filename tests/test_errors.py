"""Errors: the user's own exception, in its place, with a note that says where it came from."""

import dataclasses
import traceback

import pytest
import torch
from raising import Raising, closed_loader_of

PATIENCE_SECONDS = 20.0

loader_of = closed_loader_of  # the fixture


def story_of(loader) -> list:
    """The batches of an epoch as lists, and the exceptions raised in their places."""
    iterator, story = iter(loader), []
    while True:
        try:
            story.append(next(iterator).tolist())
        except StopIteration:
            return story
        except BaseException as error:
            story.append(error)


@pytest.fixture(params=[0, 1, 2])
def num_workers(request):
    return request.param


# In its place ----------------------------------------------------------------------------------------------


def test_an_error_arrives_after_the_batches_before_it_and_does_not_end_the_epoch(num_workers, loader_of):
    error = ValueError("broken")
    story = story_of(loader_of(Raising({5: error}), num_workers))
    assert story == [[0, 1, 2, 3], error, [8, 9, 10, 11], [12, 13, 14, 15]]


def test_of_two_errors_in_a_batch_the_first_is_raised(num_workers, loader_of):
    errors = {6: KeyError("second"), 5: ValueError("first"), 14: OSError("elsewhere")}
    assert story_of(loader_of(Raising(errors), num_workers)) == [[0, 1, 2, 3], errors[5], [8, 9, 10, 11], errors[14]]


def test_every_batch_may_fail(num_workers, loader_of):
    errors = {index: ValueError(index) for index in range(16)}
    assert [error.args for error in story_of(loader_of(Raising(errors), num_workers))] == [(0,), (4,), (8,), (12,)]


def test_the_next_epoch_is_whole_again_with_threads_that_stay(loader_of):
    dataset = Raising({5: ValueError()})
    with loader_of(dataset, persistent_workers=True) as loader:
        assert len(story_of(loader)) == 4
        dataset.errors = {}
        assert story_of(loader) == torch.arange(16).view(4, 4).tolist()


def test_an_error_of_the_sampler_comes_in_its_place(loader_of):
    def sampler():
        yield from range(6)
        raise LookupError("sampler")

    story = story_of(loader_of(range(16), sampler=sampler()))
    assert story[0] == [0, 1, 2, 3]
    assert isinstance(story[1], LookupError)
    assert story[1].__notes__ == ["torchstage: raised in stage 'sampler', batch 1"]
    assert len(story) == 2


# The user's own --------------------------------------------------------------------------------------------


class FussyError(Exception):
    """Wants three arguments."""

    def __init__(self, code, path, *, hint):
        super().__init__(f"{code} at {path}: {hint}")
        self.code, self.path, self.hint = code, path, hint


@pytest.mark.parametrize(
    "error",
    [
        FussyError(404, "a.jpg", hint="gone"),
        KeyError("a key"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"),
        AssertionError(),
        ExceptionGroup("several", [ValueError(1), KeyError(2)]),
        MemoryError("much"),
        SystemExit(3),
        KeyboardInterrupt("from a thread"),
        GeneratorExit(),
        BaseException("bare"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_is_the_very_object_that_was_raised(error, num_workers, loader_of):
    arguments = error.args
    iterator = iter(loader_of(Raising({2: error}), num_workers))
    with pytest.raises(type(error)) as caught:
        next(iterator)
    assert caught.value is error
    assert error.args == arguments
    if num_workers or isinstance(error, Exception):
        assert error.__notes__[-1] == "torchstage: raised in stage 'fetch', dataset index 2, batch 0"


def test_its_traceback_shows_the_users_line(num_workers, loader_of):
    with pytest.raises(ValueError, match="mine") as caught:
        next(iter(loader_of(Raising({2: ValueError("mine")}), num_workers)))
    lines = "".join(traceback.format_exception(caught.value))
    assert "raise self.errors[index]" in lines
    assert lines.count("Traceback") == 1
    assert lines.endswith("ValueError: mine\ntorchstage: raised in stage 'fetch', dataset index 2, batch 0\n")


def test_its_cause_and_its_own_notes_stay(loader_of):
    def sample(samples):
        try:
            raise OSError("disk")
        except OSError as cause:
            error = ValueError("sample")
            error.add_note("mine")
            raise error from cause

    with pytest.raises(ValueError, match="sample") as caught:
        next(iter(loader_of(range(8), collate_fn=sample)))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__notes__ == ["mine", "torchstage: raised in stage 'collate', batch 0"]


def test_an_end_that_is_none_is_made_loud(num_workers, loader_of):
    """torch ends the epoch in silence when a sample raises StopIteration: a documented difference."""
    end = StopIteration("not the end")
    story = story_of(loader_of(Raising({5: end}), num_workers))
    assert [type(outcome) for outcome in story] == [list, RuntimeError, list, list]
    assert story[1].__cause__ is end
    assert "StopIteration was raised in stage 'fetch', dataset index 5, batch 1" in str(story[1])


def test_one_exception_object_may_be_raised_for_many_samples(num_workers, loader_of):
    shared = ValueError("always the same")
    iterator = iter(loader_of(Raising(dict.fromkeys(range(16), shared)), num_workers))
    for batch in range(4):
        with pytest.raises(ValueError, match="always the same") as caught:
            next(iterator)
        assert caught.value is shared
        where = f"torchstage: raised in stage 'fetch', dataset index {4 * batch}, batch {batch}"
        assert shared.__notes__[-1] == where
        assert shared.__notes__.count(where) == 1


def test_an_exception_that_forbids_to_set_attributes_is_raised_as_it_is(num_workers, loader_of):
    @dataclasses.dataclass(frozen=True)
    class FrozenError(Exception):
        code: int

    with pytest.raises(FrozenError):
        next(iter(loader_of(Raising({2: FrozenError(7)}), num_workers)))
