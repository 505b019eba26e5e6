"""A make-believe accelerator in host memory, whose streams do nothing until somebody has to wait for them.

A copy that was issued has garbage for values until its stream has run. A stream runs when it is drained, and then
everything runs first that it was told to wait for, and nothing else: so a missing wait shows as garbage, every time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchstage.transfer import Transfer

GARBAGE = 99
ONE_AT_A_TIME = threading.RLock()  # for the device as a whole


class FakeStream:
    """What it was given to do, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: list[Callable[[], Any]] = []
        self.num_done = 0

    def drain(self, until: int | None = None) -> None:
        """Do what it was given, up to that place."""
        with ONE_AT_A_TIME:
            while self.num_done < (len(self.work) if until is None else until):
                work = self.work[self.num_done]
                self.num_done += 1
                work()


class FakeEvent:
    def __init__(self, stream: FakeStream, log: list[str]) -> None:
        self.stream = stream
        self.place = len(stream.work)
        self._log = log

    def query(self) -> bool:
        return self.stream.num_done >= self.place

    def synchronize(self) -> None:
        self._log.append(f"somebody waits for {self.stream.name}")
        self.stream.drain(self.place)


class _ThisThread(threading.local):
    device: int = 0
    stream: FakeStream | None = None


class FakeAccelerator:
    """Device 1 of two; ``log`` tells what was asked of it."""

    pins = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.log: list[str] = []
        self.streams: list[FakeStream] = []  # those asked for
        self.events: list[FakeEvent] = []
        self.memory: list[torch.Tensor] = []  # kept, so that no address comes twice
        self.pinned: list[torch.Tensor] = []
        self.fails_to_copy: Exception | None = None
        self.default = FakeStream("default")
        self._this_thread = _ThisThread()

    # What a test asks

    @property
    def current_device(self) -> int:
        """Of the calling thread."""
        return self._this_thread.device

    def set_stream(self, stream: FakeStream) -> None:
        """As user code does in its own thread."""
        self._this_thread.stream = stream

    def is_there(self, tensor: torch.Tensor) -> bool:
        if tensor.is_sparse:
            return self.is_there(tensor._values())
        return any(tensor.data_ptr() == other.data_ptr() for other in self.memory)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return any(tensor.data_ptr() == other.data_ptr() for other in self.pinned)

    def computed(self, value: torch.Tensor) -> torch.Tensor:
        """A tensor that a kernel makes there, on the calling thread's current stream."""
        return self._issued(value)

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a kernel sees that is issued on the calling thread's current stream now."""
        self.current().drain()
        return tensor

    # What a transfer asks

    @contextmanager
    def here(self) -> Iterator[None]:
        before, self._this_thread.device = self._this_thread.device, 1
        try:
            yield
        finally:
            self._this_thread.device = before

    def current(self) -> FakeStream:
        return self._this_thread.stream or self.default

    def new(self) -> FakeStream:
        assert self.current_device == 1
        self.streams.append(FakeStream("side"))
        return self.streams[-1]

    @contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        before, self._this_thread.stream = self._this_thread.stream, stream
        try:
            yield
        finally:
            self._this_thread.stream = before

    def mark(self, stream: FakeStream) -> FakeEvent:
        assert self.current_device == 1
        self.log.append(f"mark {stream.name}")
        self.events.append(FakeEvent(stream, self.log))
        return self.events[-1]

    def wait(self, stream: FakeStream, event: Any) -> None:
        assert self.current_device == 1
        self.log.append(f"{stream.name} waits for {event.stream.name}")
        stream.work.append(lambda: event.stream.drain(event.place))

    def maker(self, tensor: torch.Tensor) -> FakeStream | None:
        return self.current() if self.is_there(tensor) else None

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self.current_device == 1
        assert not self.is_there(tensor)
        self.pinned.append(tensor.clone())
        return self.pinned[-1]

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        assert self.current_device == 1
        if self.fails_to_copy is not None:
            raise self.fails_to_copy
        if self.is_there(tensor):
            return tensor
        self.log.append(f"copy on {self.current().name}")
        return self._issued(tensor)

    def record(self, tensor: Any, stream: FakeStream) -> None:
        assert not isinstance(tensor, torch.Tensor) or self.is_there(tensor)
        self.log.append(f"record {stream.name}")

    def release(self) -> None:
        self.log.append("release")

    def _issued(self, value: torch.Tensor) -> torch.Tensor:
        made = torch.full_like(value, GARBAGE) if value.layout is torch.strided else value.clone()
        self.memory.extend([made._indices(), made._values()] if made.is_sparse else [made])
        source = value.detach()
        self.current().work.append(lambda: made.copy_(source))
        return made


def arrival(fake: FakeAccelerator) -> Callable[[Any], Any]:
    """What arrives of a batch, once the caller's stream has come to it."""
    route = Transfer("cpu", lambda device: fake).route()

    def arrived(batch: Any) -> Any:
        result = route.end(route.begin(route.pin(batch)))
        fake.current().drain()
        return result

    return arrived
