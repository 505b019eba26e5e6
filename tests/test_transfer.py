"""Transfer: three steps to the device, in the right threads, on the right streams, and nobody waits."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_accelerator import GARBAGE, FakeAccelerator, FakeStream

from torchstage.transfer import MAX_UNDER_WAY, NUM_DEVICE_BATCHES, Route, Transfer


@pytest.fixture
def fake() -> FakeAccelerator:
    return FakeAccelerator()


@pytest.fixture
def route(fake: FakeAccelerator) -> Route:
    return Transfer("cpu", lambda device: fake).route()


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What the function returns in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


# On the CPU ---------------------------------------------------------------------------------------------------------


def test_on_the_cpu_the_batch_itself_arrives():
    route = Transfer("cpu").route()
    batch = {"image": torch.ones(2), "label": [1, 2], "name": ("a", "b")}
    assert route.end(route.begin(route.pin(batch))) is batch


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu", 0)])
def test_every_name_of_the_cpu_means_the_same(device):
    assert Transfer(device).device == torch.device("cpu")


def test_on_the_cpu_nothing_is_kept_of_a_batch_that_was_handed_out():
    route = Transfer("cpu").route()
    for _ in range(10):
        route.end(route.begin(torch.ones(2)))
    tensor = torch.ones(2)
    gone = weakref.ref(tensor)
    route.end(route.begin([tensor]))
    del tensor
    gc.collect()
    assert gone() is None


# Three steps --------------------------------------------------------------------------------------------------------


def test_a_batch_is_there_for_what_the_caller_computes_from_then_on(fake, route):
    moved = route.begin(route.pin([torch.tensor([1.0, 2.0])]))
    assert moved.batch[0].tolist() == [GARBAGE, GARBAGE]  # on its way
    (tensor,) = route.end(moved)
    assert fake.read(tensor).tolist() == [1.0, 2.0]


def test_without_the_last_step_the_callers_stream_would_not_wait(fake, route):
    moved = route.begin([torch.ones(1)])
    assert fake.read(moved.batch[0]).tolist() == [GARBAGE]


def test_the_steps_ask_for_this_and_no_more(fake, route):
    batch = route.pin([torch.ones(1), torch.zeros(1)])
    assert fake.log == []
    moved = route.begin(batch)
    assert fake.log == ["copy on side", "copy on side", "mark side"]
    fake.log.clear()
    route.end(moved)
    assert fake.log == ["default waits for side", "record default", "record default"]


def test_copies_come_from_pinned_memory(fake, route):
    batch = route.pin([torch.ones(1)])
    assert fake.is_pinned(batch[0])


def test_it_is_the_stream_that_is_current_in_the_callers_thread_that_waits(fake, route):
    moved = in_a_thread(lambda: route.begin(route.pin([torch.ones(1)])))
    fake.set_stream(FakeStream("mine"))
    (tensor,) = route.end(moved)
    assert fake.log[-2:] == ["mine waits for side", "record mine"]
    assert fake.read(tensor).tolist() == [1.0]


def test_ending_twice_waits_once(fake, route):
    moved = route.begin([torch.ones(1)])
    first = route.end(moved)
    fake.log.clear()
    assert route.end(moved) is first
    assert fake.log == []


def test_each_batch_has_an_event_of_its_own_and_all_have_one_stream(fake, route):
    for _ in range(60):
        in_a_thread(lambda: route.end(route.begin(route.pin([torch.ones(1)]))))
        fake.streams[0].drain()
    assert len(fake.streams) == 1
    assert len(fake.events) == 60
    assert len({id(event) for event in fake.events}) == 60


def test_two_threads_that_come_first_make_one_stream_together(fake, route):
    both = threading.Barrier(2)

    def begin() -> None:
        both.wait()
        route.begin([torch.ones(1)])

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake.streams) == 1


def test_no_stream_is_made_before_the_first_batch(fake, route):
    assert fake.streams == []
    route.release()
    assert fake.log == []


def test_an_empty_batch_passes(fake, route):
    assert route.end(route.begin(route.pin([]))) == []


def test_many_threads_move_many_batches(fake, route):
    pinned = [route.pin([torch.tensor([number])]) for number in range(200)]
    moved: dict[int, Any] = {}

    def work(first: int) -> None:
        for number in range(first, 200, 4):
            moved[number] = route.begin(pinned[number])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrived = [fake.read(route.end(moved[number])[0]).item() for number in range(200)]
    assert arrived == list(range(200))


# The thread afterwards ----------------------------------------------------------------------------------------------


def test_a_threads_device_and_stream_stay_what_they_were(fake, route):
    mine = FakeStream("mine")
    fake.set_stream(mine)
    for step in (route.pin, route.begin, lambda batch: route.end(route.begin(batch))):
        step([torch.ones(1)])
        assert fake.current_device == 0
        assert fake.current() is mine


def test_also_where_a_copy_fails(fake, route):
    fake.fails_to_copy = torch.OutOfMemoryError("the device is full")
    with pytest.raises(torch.OutOfMemoryError):
        route.begin([torch.ones(1)])
    assert fake.current_device == 0
    assert fake.current() is fake.default


def test_a_failed_copy_keeps_its_exception_and_tells_how_much_it_was(fake, route):
    error = fake.fails_to_copy = torch.OutOfMemoryError("the device is full")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        route.begin({"a": torch.zeros(2**18), "b": [torch.zeros(2**17)]})
    assert caught.value is error
    assert error.__notes__ == ["torchstage: 1.5 MiB were being copied to cpu"]


def test_after_a_failed_copy_the_next_batch_arrives(fake, route):
    fake.fails_to_copy = RuntimeError("once")
    with pytest.raises(RuntimeError, match="once"):
        route.begin([torch.ones(1)])
    fake.fails_to_copy = None
    (tensor,) = route.end(route.begin([torch.ones(1)]))
    assert fake.read(tensor).tolist() == [1.0]


# Memory -------------------------------------------------------------------------------------------------------------


class Source(list):
    """A list that can be watched."""


def test_what_is_copied_lives_until_the_copy_is_over_and_no_longer(fake, route):
    source = Source([torch.ones(1)])
    gone = weakref.ref(source)
    moved = route.begin(source)
    del source
    gc.collect()
    assert gone() is not None
    fake.streams[0].drain()
    route.end(moved)
    del moved
    gc.collect()
    assert gone() is None


def test_nobody_waits_while_no_more_are_under_way_than_were_asked_for(fake, route):
    for _ in range(MAX_UNDER_WAY):
        route.begin([torch.ones(1)])
    assert "somebody waits for side" not in fake.log
    assert MAX_UNDER_WAY == NUM_DEVICE_BATCHES + 1


def test_one_more_waits_for_the_first_alone(fake, route):
    for _ in range(MAX_UNDER_WAY + 1):
        route.begin([torch.ones(1)])
    assert fake.log.count("somebody waits for side") == 1
    first, second = fake.events[:2]
    assert first.query()
    assert not second.query()


def test_copies_that_are_over_make_nobody_wait(fake, route):
    for _ in range(3 * MAX_UNDER_WAY):
        route.begin([torch.ones(1)])
        fake.streams[0].drain()
    assert "somebody waits for side" not in fake.log


def test_a_batch_that_is_never_handed_out_holds_nothing_for_ever(fake, route):
    sources = [Source([torch.ones(1)]) for _ in range(20)]
    gone = [weakref.ref(source) for source in sources]
    while sources:
        route.begin(sources.pop(0))
    gc.collect()
    assert sum(ref() is not None for ref in gone) <= MAX_UNDER_WAY


def test_closing_waits_for_what_is_under_way_and_gives_memory_back(fake):
    transfer = Transfer("cpu", lambda device: fake)
    source = Source([torch.ones(1)])
    gone = weakref.ref(source)
    moved = transfer.route().begin(source)
    del source
    transfer.close()
    assert fake.log[-2:] == ["somebody waits for side", "release"]
    gc.collect()
    assert gone() is None
    (tensor,) = transfer.route().end(moved)
    assert fake.read(tensor).tolist() == [1.0]
    assert len(fake.streams) == 1


# Tensors that the samples made on the device -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [lambda t: [t], lambda t: {"a": (t,)}, lambda t: Own(t)], ids=["list", "dict", "own"])
def test_what_a_loader_thread_computed_there_is_right_for_the_caller(fake, route, shape):
    def in_loader_thread() -> Any:
        fake.set_stream(FakeStream("of the thread"))
        return route.pin(shape(fake.computed(torch.tensor([5.0]))))

    batch = in_a_thread(in_loader_thread)
    arrived = route.end(route.begin(batch))
    tensor = arrived.value if isinstance(arrived, Own) else (arrived["a"] if isinstance(arrived, dict) else arrived)[0]
    assert fake.read(tensor).tolist() == [5.0]
    assert "side waits for of the thread" in fake.log


class Own:
    """A batch that moves itself."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def to(self, device: torch.device, non_blocking: bool = False) -> "Own":
        return self


def test_also_where_the_thread_that_made_it_begins_the_copy_itself(fake, route):
    def in_loader_thread() -> Any:
        fake.set_stream(FakeStream("of the thread"))
        return route.begin([fake.computed(torch.tensor([5.0])), torch.ones(1)])

    made, copied = route.end(in_a_thread(in_loader_thread))
    assert fake.read(made).tolist() == [5.0]
    assert fake.read(copied).tolist() == [1.0]
    assert fake.log.count("record default") == 2  # its memory is the other thread's: it must be kept for this stream


def test_batches_from_host_memory_wait_for_no_thread(fake, route):
    route.begin(route.pin([torch.ones(1)]))
    assert "side waits for default" not in fake.log


# Copies of the loader -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_goes_to_the_same_device_by_a_way_of_its_own(twin_of):
    transfer = Transfer("cpu")
    route = transfer.route()
    route.begin([torch.ones(1)])
    twin = twin_of(transfer)
    assert twin.device == transfer.device
    assert twin.route() is not route
