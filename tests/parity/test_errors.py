"""Errors: the user's own exception arrives in its place, after the batches before it; the epoch goes on."""

import contextlib
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from torch.utils.data import default_collate

from .compare import story
from .datasets import Indices, Made, as_given
from .faults import (
    BATCHES,
    IN_LOADER,
    IN_SAMPLERS,
    NUM_BATCHES,
    PLACES,
    Fault,
    Place,
    Stop,
    ThreePartError,
    in_dataset,
    in_sampler,
    pretend_accelerator,
)
from .ways import (
    FOUR_THREADS,
    INLINE,
    STAGED,
    THREADED,
    Way,
    on,
    on_both,
    on_both_inline,
    on_threads,
    on_workers,
)


def make_errors() -> list[Exception]:
    chained = RuntimeError("the decoder failed")
    chained.__cause__ = OSError(5, "the disk failed")
    return [
        ValueError("a value"),
        IndexError("list index out of range"),
        KeyError("cat"),
        OSError(2, "No such file", "cat.jpg"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        ThreePartError(7, path="cat.jpg", line=3),
        AssertionError(),
        chained,
    ]


@pytest.fixture(autouse=True)
def _accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_accelerator(monkeypatch)


def assert_story(make_loader: Way, place: Place, errors: dict[int, BaseException], *also: type[BaseException]) -> None:
    """Every batch comes in its place, or its error does: the very object that was raised."""
    events = story(make_loader(**place(Fault(errors))), *also)
    assert len(events) == NUM_BATCHES, events
    for number, event in enumerate(events):
        if number in errors:
            assert event is errors[number], f"in place of error {number} came {event!r}"
        else:
            assert event == BATCHES[number], f"in place of batch {number} came {event!r}"


@pytest.mark.parametrize("place", PLACES)
@on_both
def test_an_error_comes_in_its_place_and_the_epoch_goes_on(make_loader: Any, place: str) -> None:
    for error in make_errors():
        assert_story(make_loader, PLACES[place], {3: error})


@pytest.mark.parametrize("place", PLACES)
@on_both
def test_errors_come_in_the_first_and_the_last_batch_and_one_after_another(make_loader: Any, place: str) -> None:
    for numbers in ([0], [NUM_BATCHES - 1], [2, 3, 4], [0, 1, 6, 7], [*range(NUM_BATCHES)]):
        assert_story(make_loader, PLACES[place], {number: ValueError(number) for number in numbers})


@pytest.mark.parametrize("place", PLACES)
@on_both
def test_one_exception_object_may_be_raised_again_and_again(make_loader: Any, place: str) -> None:
    error = ValueError("always the same")
    assert_story(make_loader, PLACES[place], dict.fromkeys([1, 2, 5], error))


@pytest.mark.parametrize("place", IN_LOADER)
@on_both
def test_what_is_no_exception_comes_in_its_place_too(make_loader: Any, place: str) -> None:
    for error in (Stop("enough"), SystemExit(3), GeneratorExit(), KeyboardInterrupt("not from a keyboard")):
        assert_story(make_loader, PLACES[place], {3: error}, type(error))


@pytest.mark.parametrize("place", IN_SAMPLERS)
@on_both
def test_what_is_no_exception_comes_in_its_place_from_samplers(make_loader: Any, place: str) -> None:
    for error in (Stop("enough"), SystemExit(3), GeneratorExit()):
        assert_story(make_loader, PLACES[place], {3: error}, type(error))


@pytest.mark.parametrize("number", [NUM_BATCHES - 3, NUM_BATCHES - 1])
@on_both
def test_ctrl_c_in_the_sampler_loses_no_batch(make_loader: Any, number: int) -> None:
    """It is raised at once, not in its place: it is the user's, not the sampler's."""
    ctrl_c = KeyboardInterrupt()
    loader = make_loader(**in_sampler(Fault({number: ctrl_c})), **window_of(make_loader, 2))
    events = story(loader, KeyboardInterrupt)
    events.remove(ctrl_c)
    assert events == [*BATCHES[:number], *BATCHES[number + 1 :]]


def window_of(make_loader: Way, num_batches: int) -> dict[str, int]:
    """Without batching, ``prefetch_factor * num_workers + 1`` batches are in flight."""
    return {"prefetch_factor": num_batches // make_loader.num_workers or 1} if make_loader.num_workers else {}


@on_both
def test_an_exception_that_forbids_to_set_attributes_arrives_as_itself(make_loader: Any) -> None:
    @dataclass(frozen=True)
    class FrozenError(Exception):
        code: int

    assert_story(make_loader, in_dataset, {3: FrozenError(7)})


@on(FOUR_THREADS)
def test_an_error_that_comes_early_waits_for_the_batches_before_it(make_loader: Any) -> None:
    has_failed = threading.Event()

    def make(index: int) -> int:
        if index == 3:
            has_failed.set()
            raise ValueError("three")
        if index == 2:
            assert has_failed.wait(60)
        return index

    events = story(make_loader(Made(6, make), batch_size=None))
    assert [*events[:3], *events[4:]] == [0, 1, 2, 4, 5]
    assert str(events[3]) == "three"


@on(FOUR_THREADS)
def test_of_two_errors_in_a_batch_the_first_sample_s_counts(make_loader: Any) -> None:
    """A loop over the samples would have met it first, whichever thread was faster."""
    has_failed = threading.Event()

    def make(index: int) -> int:
        if index == 3:
            has_failed.set()
            raise ValueError("three")
        if index == 1:
            assert has_failed.wait(60)
            raise ValueError("one")
        return index

    for _ in range(2):
        has_failed.clear()
        events = story(make_loader(Made(5, make), batch_size=5, isolation="shared"))  # they wait for each other
        assert [str(event) for event in events] == ["one"]


@on_both
def test_after_an_error_the_next_epoch_is_complete(make_loader: Any) -> None:
    fault = Fault({3: ValueError("once")})
    loader = make_loader(**in_dataset(fault))
    assert len(story(loader)) == NUM_BATCHES
    fault.errors.clear()
    assert story(loader) == BATCHES


@on_threads
def test_after_an_error_kept_threads_work_on(make_loader: Any) -> None:
    fault = Fault({3: ValueError("once"), 7: ValueError("at the end")})
    loader = make_loader(**in_dataset(fault), persistent_workers=True)
    for error in (ValueError("two"), Stop("three")):
        fault.errors[2] = error
        events = story(loader, Stop)
        assert (events[2], events[3], events[7]) == (error, fault.errors[3], fault.errors[7])
    fault.errors.clear()
    assert story(loader) == BATCHES


def fail(_: Any) -> Any:
    raise ValueError("nothing keeps it")


def failing_sampler() -> Any:
    yield fail(0)


def failing_iterator(make_loader: Way, place: str) -> weakref.ref[Any]:
    """An iterator whose user met an error and dropped both."""
    arguments = {
        "dataset": {"dataset": Made(3, fail)},
        "collate": {"dataset": Indices(3), "collate_fn": fail},
        "sampler": {"dataset": Indices(3), "sampler": failing_sampler()},
        "worker_init_fn": {"dataset": Indices(3), "worker_init_fn": fail},
    }
    iterator = iter(make_loader(**arguments[place]))
    with contextlib.suppress(ValueError):
        next(iterator)
    return weakref.ref(iterator)


@on(INLINE, *STAGED)
def test_an_error_of_the_dataset_that_was_dealt_with_keeps_no_iterator(make_loader: Any) -> None:
    assert_gone(make_loader, "dataset")


@on(INLINE, *STAGED)
def test_an_error_of_collate_that_was_dealt_with_keeps_no_iterator(make_loader: Any) -> None:
    assert_gone(make_loader, "collate")


@on_both
def test_an_error_of_the_sampler_that_was_dealt_with_keeps_no_iterator(make_loader: Any) -> None:
    assert_gone(make_loader, "sampler")


@on(*THREADED)
def test_an_error_of_a_worker_init_fn_that_was_dealt_with_keeps_no_iterator(make_loader: Any) -> None:
    assert_gone(make_loader, "worker_init_fn")


def assert_gone(make_loader: Way, place: str) -> None:
    gc.disable()
    try:
        is_gone = failing_iterator(make_loader, place)() is None
    finally:
        gc.enable()
        gc.collect()
    assert is_gone


@on_workers
def test_processes_raise_the_same_types(make_loader: Any) -> None:
    """torch makes a new exception of the same type with the same words in it; threads raise the user's own."""
    errors = {number: error for number, error in enumerate(make_errors()) if type(error) is not UnicodeDecodeError}
    errors.pop(5)  # ThreePartError: torch cannot make it again and raises RuntimeError
    events = story(make_loader(**in_dataset(Fault(dict(errors)))))
    assert [type(event) for number, event in enumerate(events) if number in errors] == [*map(type, errors.values())]
    for number, error in errors.items():
        assert str(error) in str(events[number])


@on_both
def test_a_generator_that_raises_ends_the_epoch(make_loader: Any) -> None:
    def indices() -> Any:
        yield from (0, 1, 2)
        raise ValueError("no more")

    error, *rest = story(make_loader(Indices(5), sampler=indices(), batch_size=None))[3:]
    assert (str(error), rest) == ("no more", [])
    batch, error = story(make_loader(Indices(5), sampler=indices(), batch_size=2, collate_fn=as_given))
    assert (batch, str(error)) == ([0, 1], "no more")


@on_both
def test_a_sampler_that_cannot_start_fails_in_iter(make_loader: Any) -> None:
    class Broken:
        def __iter__(self) -> Any:
            raise ThreePartError(1, path="list.txt", line=2)

    with pytest.raises(ThreePartError, match=r"list\.txt:2: 1"):
        iter(make_loader(Indices(5), sampler=Broken(), batch_size=None))


@on_both
def test_collate_fails_with_torch_s_words(make_loader: Any) -> None:
    for samples, error_type, words in [
        ([object(), object()], TypeError, "default_collate: batch must contain tensors"),
        ([[1, 2], [1]], RuntimeError, "each element in list of batch should be of equal size"),
        ([{"a": 1}, {"b": 1}], KeyError, "'a'"),
    ]:
        (error,) = story(make_loader(samples, batch_size=2))
        assert type(error) is error_type
        assert str(error).startswith(words)
    (error,) = story(make_loader(samples, batch_sampler=[[]]))
    assert (type(error), str(error)) == (IndexError, "list index out of range")


@on_both
def test_collating_what_is_no_batch_fails_with_torch_s_words(make_loader: Any) -> None:
    (error,) = story(make_loader([5], batch_size=None, collate_fn=default_collate))
    assert (type(error), str(error)) == (TypeError, "'int' object is not subscriptable")


# StopIteration: where torch ends the epoch in silence, we do not ---------------------------------------------------


@pytest.mark.parametrize("place", IN_LOADER)
@on_both
def test_stop_iteration_from_user_code_is_no_end(make_loader: Any, place: str) -> None:
    loader = make_loader(**PLACES[place](Fault({3: StopIteration("oops")})))
    if make_loader is INLINE:
        assert story(loader) == BATCHES[:3]
        return
    events = story(loader)
    assert [event for event in events if event in BATCHES] == [*BATCHES[:3], *BATCHES[4:]]
    assert type(events[3]) is RuntimeError
    assert str(events[3]).startswith("StopIteration was raised in stage")
    assert type(events[3].__cause__) is StopIteration


@pytest.mark.parametrize("place", IN_SAMPLERS)
@on_both
def test_stop_iteration_from_a_sampler_is_the_end(make_loader: Any, place: str) -> None:
    assert story(make_loader(**PLACES[place](Fault({3: StopIteration()})))) == BATCHES[:3]


@on_both_inline
def test_an_error_between_inline_batches_leaves_the_sampler_where_it_was(make_loader: Any) -> None:
    asked: list[int] = []
    sampler = (asked.append(index) or index for index in range(6))
    iterator = iter(make_loader(Made(6, lambda i: 1 // (i - 2)), sampler=sampler, batch_size=None))
    assert [next(iterator), next(iterator)] == [-1, -1]
    with pytest.raises(ZeroDivisionError):
        next(iterator)
    assert asked == [0, 1, 2]
    assert list(iterator) == [1, 0, 0]
