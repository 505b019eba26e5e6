"""Streams: what is asked of torch for a device, in which order. No device is needed: torch's functions are replaced."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from torchstage.streams import Accelerator, Cuda, Plain, streams_of

DEVICE = torch.device("cuda", 1)


class Stream:
    def __init__(self, log: list[str], name: str, device: torch.device = DEVICE) -> None:
        self.log = log
        self.name = name
        self.device = device

    def wait_event(self, event: "Event") -> None:
        self.log.append(f"{self.name} waits for {event.stream.name}")


class Event:
    stream: Stream

    def record(self, stream: Stream) -> None:
        self.stream = stream


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was asked, for CUDA and for accelerators in general."""
    log: list[str] = []
    current = {"stream": Stream(log, "default"), "device": 0}

    def set_stream(stream: Stream) -> None:
        log.append(f"stream {stream.name}")
        current["stream"] = stream

    @contextmanager
    def on(stream: Stream):
        before = current["stream"]
        set_stream(stream)
        yield
        set_stream(before)

    @contextmanager
    def device(index: Any):
        log.append(f"device {getattr(index, 'index', index)}")
        yield
        log.append("device as before")

    def current_stream(device: torch.device) -> Stream:
        assert device.type == "cuda"
        return current["stream"]

    def new(device: torch.device) -> Stream:
        assert device == DEVICE
        return Stream(log, "new")

    def new_event(**options: Any) -> Event:
        assert options in ({}, {"device": DEVICE, "enable_timing": False})
        return Event()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "Stream", new)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "Event", new_event)
    monkeypatch.setattr(torch.accelerator, "device_index", device, raising=False)
    monkeypatch.setattr(torch.accelerator, "current_stream", current_stream)
    monkeypatch.setattr(torch.accelerator, "set_stream", set_stream)
    monkeypatch.setattr(torch, "Stream", new)
    monkeypatch.setattr(torch, "Event", new_event)
    return log


@pytest.mark.parametrize("kind", [Cuda, Accelerator])
def test_a_copys_way_through_streams(log, kind):
    streams = kind(DEVICE)
    with streams.here():
        side = streams.new()
        with streams.on(side):
            assert streams.current() is side
            event = streams.mark(side)
        assert streams.current().name == "default"
        streams.wait(streams.current(), event)
    assert log == ["device 1", "stream new", "stream default", "default waits for new", "device as before"]


def test_the_stream_is_as_before_also_after_an_error(log):
    streams = Accelerator(DEVICE)
    with pytest.raises(OSError, match="in the copy"), streams.on(Stream(log, "side")):
        raise OSError("in the copy")
    assert streams.current().name == "default"


@pytest.mark.parametrize("kind", [Cuda, Accelerator])
def test_a_tensor_in_host_memory_has_no_maker(log, kind):
    assert kind(DEVICE).maker(torch.ones(1)) is None


@pytest.mark.parametrize("kind", [Cuda, Accelerator])
def test_a_tensor_on_a_device_was_made_on_the_threads_stream_there(log, kind):
    class Elsewhere:
        device = torch.device("cuda", 0)
        is_cuda = True

    assert kind(DEVICE).maker(Elsewhere()).name == "default"


@pytest.mark.parametrize("kind", [Cuda, Accelerator])
def test_a_copy_does_not_block_and_its_memory_is_told_to_the_callers_stream(log, kind):
    class Asked:
        def to(self, device: torch.device, *, non_blocking: bool) -> None:
            log.append(f"to {device}, {non_blocking}")

        def pin_memory(self) -> None:
            log.append("pin")

        def record_stream(self, stream: str) -> None:
            log.append(f"record {stream}")

    streams = kind(DEVICE)
    streams.pin(Asked())
    streams.copy(Asked())
    streams.record(Asked(), "mine")
    assert log == ["pin", "to cuda:1, True", "record mine"]


def test_an_older_torch_is_asked_for_the_device_of_its_module(log, monkeypatch):
    monkeypatch.delattr(torch.accelerator, "device_index")
    with Accelerator(DEVICE).here():
        pass
    assert log == ["device 1", "device as before"]


def test_cuda_has_a_way_of_its_own_and_the_cpu_none():
    assert type(streams_of(torch.device("cuda:0"))) is Cuda
    assert type(streams_of(torch.device("cpu"))) is Plain


def test_pinned_memory_is_given_back(monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: asked.append("cuda"), raising=False)
    Cuda(DEVICE).release()
    assert asked == ["cuda"]
