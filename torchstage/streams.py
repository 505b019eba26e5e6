"""Streams: a device in, what a transfer asks of it out: its streams, its events, its copies.

Three kinds: CUDA; other accelerators of ``torch.accelerator`` that have streams; and those without, the CPU first of
all, where a copy is over when the call returns and all the rest is nothing to do.

Guarantees: no context is started on any other device; a thread's current device and stream are afterwards what they
were before.
"""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, cast

import torch


class Event(Protocol):
    """A place in a stream: reached once everything that was issued before it is done."""

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...


class Streams(Protocol):
    """What a transfer asks of one device."""

    device: torch.device
    pins: bool  # whether pinned memory makes copies asynchronous

    def here(self) -> AbstractContextManager[Any]:
        """Inside, it is the calling thread's current device."""
        ...

    def current(self) -> Any:
        """The calling thread's current stream on it."""
        ...

    def new(self) -> Any:
        """Another stream."""
        ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, that is the calling thread's current stream."""
        ...

    def mark(self, stream: Any) -> Event:
        """The place that the stream has come to, as far as it was given work."""
        ...

    def wait(self, stream: Any, event: Event) -> None:
        """What is given to the stream from now on begins after the event. Nobody waits here."""
        ...

    def maker(self, tensor: torch.Tensor) -> Any:
        """The calling thread's current stream on the device of a tensor that lies on one; None for any other."""
        ...

    def pin(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; issued on the current stream."""
        ...

    def record(self, tensor: Any, stream: Any) -> None:
        """The tensor's memory is used by that stream too: freed, it waits for what the stream was given until then."""
        ...

    def release(self) -> None:
        """Give pinned memory that nobody uses back to the system."""
        ...


class Done:
    """The event of a copy that is over when its call returns."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class Plain:
    """A device without streams: a copy is over when its call returns."""

    pins = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def current(self) -> Any:
        return None

    def new(self) -> Any:
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Event:
        return Done()

    def wait(self, stream: Any, event: Event) -> None:
        pass

    def maker(self, tensor: torch.Tensor) -> Any:
        return None

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device)

    def record(self, tensor: Any, stream: Any) -> None:
        pass

    def release(self) -> None:
        pass


class Accelerator:
    """Any accelerator with streams, by what torch has for all of them."""

    pins = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        scope: Any = getattr(torch.accelerator, "device_index", None)  # since torch 2.8
        self._scope: Callable[[Any], AbstractContextManager[Any]] = (
            scope or cast(Any, torch.get_device_module(device)).device
        )

    def here(self) -> AbstractContextManager[Any]:
        return self._scope(self.device.index)

    def current(self) -> Any:
        return torch.accelerator.current_stream(self.device)

    def new(self) -> Any:
        return torch.Stream(device=self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return _current_stream(stream, self.current())

    def mark(self, stream: Any) -> Event:
        event = torch.Event(device=stream.device, enable_timing=False)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Event) -> None:
        stream.wait_event(event)

    def maker(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type != self.device.type:
            return None
        return torch.accelerator.current_stream(tensor.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=True)

    def record(self, tensor: Any, stream: Any) -> None:
        tensor.record_stream(stream)

    def release(self) -> None:
        memory: Any = getattr(torch.accelerator, "memory", None)
        if hasattr(memory, "empty_host_cache"):
            memory.empty_host_cache()


@contextmanager
def _current_stream(stream: Any, before: Any) -> Generator[None]:
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


class Cuda(Accelerator):
    """CUDA, by ``torch.cuda``. Its events find the way back to the thread's current device without starting a context
    on that; ``torch.Event`` sets the device outright, when it is dropped, too."""

    def here(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self.device)

    def current(self) -> Any:
        return torch.cuda.current_stream(self.device)

    def new(self) -> Any:
        return torch.cuda.Stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return cast("AbstractContextManager[Any]", torch.cuda.stream(stream))

    def mark(self, stream: Any) -> Event:
        event: Any = torch.cuda.Event()
        event.record(stream)
        return event

    def maker(self, tensor: torch.Tensor) -> Any:
        return torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None

    def release(self) -> None:
        empty: Any = getattr(torch._C, "_host_emptyCache", None)  # pyright: ignore[reportPrivateUsage]  # older torch
        if empty is not None:
            empty()
        else:
            super().release()


def streams_of(device: torch.device) -> Streams:
    """What there is on that device. Touches it, so that it is asked as late as possible."""
    if device.type == "cpu":
        return Plain(device)
    if device.type == "cuda":
        return Cuda(device)
    try:
        accelerator = Accelerator(device)
        with accelerator.here():  # a backend may lack any one of these
            stream = accelerator.new()
            torch.empty(1, device=device).record_stream(stream)
            accelerator.wait(accelerator.current(), accelerator.mark(stream))
    except (RuntimeError, AttributeError, TypeError):
        return Plain(device)
    return accelerator


def index_of(device: torch.device) -> int | None:
    """Its number, None if it stands for whichever is current."""
    return device.index  # torch says that it is never None


def current_index(device: torch.device) -> int:
    """Of the calling thread's current device of that kind."""
    return torch.cuda.current_device() if device.type == "cuda" else torch.accelerator.current_device_index()


def checked(device: Any) -> torch.device:
    """The device, if batches can go there. Raises TypeError, ValueError and RuntimeError with the way out. Does not
    start it."""
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(f"StageLoader: device must be a torch.device, a string or an index, got {device!r}.")
    try:
        found = torch.device(device)
        if found.type == "cpu":
            return torch.device("cpu")  # "cpu:0" is another device to torch, with the same memory
        count: int = torch.get_device_module(found).device_count()  # of CUDA, by NVML: a fork may still follow
    except (RuntimeError, AttributeError) as error:
        raise ValueError(f"StageLoader: batches cannot go to device {device!r}: {_first_line(error)}") from None
    if not count:
        raise RuntimeError(
            f"StageLoader: batches cannot go to device {str(found)!r}: this machine has none, or this build of torch "
            f"has no support for it. Use device=None, or 'cpu'."
        )
    index = index_of(found)
    if index is not None and index >= count:
        raise ValueError(
            f"StageLoader: batches cannot go to device {str(found)!r}: there are {count}, numbered from 0."
        )
    return found


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
