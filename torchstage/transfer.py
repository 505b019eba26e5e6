"""Transfer: a collated batch in, the same batch on the device out, its copy hidden behind what the device does.

A batch goes three steps. ``pin``: into pinned memory, in the thread that collated it. ``begin``: its copies are issued
on the loader's one side stream, in whatever thread. ``end``: in the consumer's thread, whose stream waits for them.

Guarantees: the side stream is one and the same for the loader's life; nobody waits for the device, but for the oldest
copy while three are under way; a batch's types, attributes and nesting stay what they are, also where torch's own
``pin_memory`` changes them; a thread's current device and stream are afterwards what they were.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.data._utils.pin_memory as torch_pinning

from torchstage.errors import add_note
from torchstage.moving import Method, as_it_was, has_method, has_own, method_of, parts_of, tensors_in
from torchstage.nested import DESCEND, replaced
from torchstage.streams import Event, Streams, checked, current_index, index_of, streams_of

NUM_DEVICE_BATCHES = 2  # ahead of the caller: one that is there, one that is being copied
MAX_UNDER_WAY = NUM_DEVICE_BATCHES + 1  # copies that are not over: theirs, and that of the batch just handed out

_pin_memory: Callable[[Any, str | None], Any] = vars(torch_pinning)["pin_memory"]  # torch leaves it untyped


def pinned(device_type: str | None) -> Callable[[Any, Sequence[Any]], Any]:
    """The stage that copies a batch into pinned memory as torch does, for the accelerator of that type."""
    return lambda batch, indices: _pin_memory(batch, device_type)


@dataclass(slots=True)
class Moved:
    """A batch whose copy was begun. Its tensors may be touched only after ``end``."""

    batch: Any
    event: Event | None  # reached when the copy is over; None once ``end`` has seen to it
    used: list[Any]  # tensors on the device, and objects that tell their own


class Transfer:
    """Where a loader's batches go. One for its life; a copy of the loader gets another one.

    Raises ValueError for a device that torch does not know or that does not exist, and RuntimeError where there is no
    device of that kind: both at once, not at the first batch. Asking leaves CUDA as it is, so that forking goes on.
    """

    def __init__(
        self, device: torch.device | str | int, streams: Callable[[torch.device], Streams] = streams_of
    ) -> None:
        self.device = checked(device)
        self._streams = streams
        self._routes: dict[torch.device, Route] = {}
        self._lock = threading.Lock()

    def route(self) -> "Route":
        """The way to the device; where no index was given, to the one that is current in the calling thread: so this
        is asked in the consumer's thread, at ``iter()``."""
        device = self.device
        if device.type != "cpu" and index_of(device) is None:
            device = torch.device(device.type, current_index(device))
        with self._lock:
            return self._routes.setdefault(device, Route(device, self._streams))

    def close(self) -> None:
        """Let go of what was copied, and give unused pinned memory back to the system. It can be used again."""
        for route in list(self._routes.values()):
            route.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return Transfer, (self.device, self._streams)  # streams belong to this process; copies have their own


class Route:
    """The way to one device. ``pin`` and ``begin`` may be called in several threads at once."""

    def __init__(self, device: torch.device, streams: Callable[[torch.device], Streams] = streams_of) -> None:
        self.device = device
        self._streams_of = streams
        self._opened: tuple[Streams, Any] | None = None
        self._lock = threading.Lock()
        self._under_way: deque[tuple[Event, Any]] = deque()  # copies, and what they are copied from

    def _open(self) -> tuple[Streams, Any]:
        """The device's streams, and the one of them that copies. Made at the first batch: not before, because until
        then the program may want to fork, or to use another device."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    streams = self._streams_of(self.device)
                    with streams.here():
                        self._opened = streams, streams.new()
        return self._opened

    def pin(self, batch: Any, indices: Any = ()) -> Any:
        """The batch with its tensors in pinned memory, where that helps. For the thread that collated it: what the
        samples computed on the device, on this thread's current stream, is waited for there."""
        streams, side = self._open()
        if not streams.pins:
            return batch
        makers: set[Any] = set()

        def give(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                maker = streams.maker(value)
                if maker is not None:
                    makers.add(maker)
                    return value
                return as_it_was(value, "pin_memory", streams.pin) if _can_be_pinned(value) else value
            move = method_of(value, "to", self.device)
            own = method_of(value, "pin_memory", self.device)
            if move is None and own is None:
                return DESCEND
            makers.update(maker for tensor in tensors_in(value) if (maker := streams.maker(tensor)) is not None)
            return DESCEND if own is None else own()

        with streams.here():
            result = replaced(batch, give, must=False)
            for maker in makers:
                streams.wait(side, streams.mark(maker))
        return result

    def begin(self, batch: Any) -> Moved:
        """Issue the copies of the batch to the device. Raises what torch raises, with a note of how large it was."""
        streams, side = self._open()
        with streams.here():
            try:
                self._make_room()
                moved = _Copying(streams, side, self.device).of(batch)
            except Exception as error:
                add_note(error, f"torchstage: {_size_of(batch)} were being copied to {self.device}")
                raise
            if moved.event is not None:
                self._under_way.append((moved.event, batch))
        return moved

    def end(self, moved: Moved) -> Any:
        """The batch on the device, for the calling thread's current stream, which waits for the copy; nobody else
        does."""
        streams, _ = self._open()
        with streams.here():
            event = moved.event
            if event is not None:
                current = streams.current()
                streams.wait(current, event)
                for used in moved.used:
                    streams.record(used, current)
            moved.event, moved.used = None, []  # last: after Ctrl-C in here it is called again
            self._forget_done()
            del event  # here, where the device is the current one
        return moved.batch

    def release(self) -> None:
        """Wait for the copies under way, let go of their sources, and give unused pinned memory back to the system."""
        if self._opened is None:
            return
        streams, _ = self._opened
        with streams.here():
            while (oldest := self._take_oldest(at_least=1)) is not None:
                oldest[0].synchronize()
            streams.release()

    def _make_room(self) -> None:
        """Where batches come faster than they can be copied, whoever begins one waits: so pinned memory is bounded."""
        self._forget_done()
        while (oldest := self._take_oldest(at_least=MAX_UNDER_WAY)) is not None:
            oldest[0].synchronize()

    def _take_oldest(self, at_least: int) -> tuple[Event, Any] | None:
        """The copy that was begun first, if there are so many."""
        with self._lock:
            return self._under_way.popleft() if len(self._under_way) >= at_least else None

    def _forget_done(self) -> None:
        """Let go of the sources of copies that are over. torch keeps what it pinned itself until then; memory that
        somebody else pinned, it does not know."""
        done: list[Any] = []
        with self._lock:
            while self._under_way and self._under_way[0][0].query():
                done.append(self._under_way.popleft())
        del done  # not under the lock: what ends with them may be code of the user's


class _Copying:
    """One batch's copies."""

    def __init__(self, streams: Streams, side: Any, device: torch.device) -> None:
        self._streams = streams
        self._device = device
        self._side = side
        self._maker = streams.current()
        self._must_wait = False
        self._used: list[Any] = []

    def of(self, batch: Any) -> Moved:
        streams = self._streams
        with streams.on(self._side):
            on_device = replaced(batch, self._give)
            if self._must_wait:
                streams.wait(self._side, streams.mark(self._maker))
            return Moved(on_device, streams.mark(self._side), self._used)

    def _give(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not has_own(type(value), "to"):
            return self._tensor(value)
        move = method_of(value, "to", self._device)
        return DESCEND if move is None else self._object(value, move)

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_meta:
            return tensor
        is_made_there = self._streams.maker(tensor) is not None
        self._must_wait = self._must_wait or is_made_there
        moved = as_it_was(tensor, "to", self._streams.copy)
        if self._is_there(moved):
            self._used.extend(part for part in parts_of(moved) if self._is_there(part))
        return moved

    def _object(self, value: Any, move: Method) -> Any:
        """What has a method ``to``. Where we cannot see its tensors, nobody could tell its memory when the caller's
        stream is done with it: so it is copied on the thread's own stream, as the user would."""
        with ExitStack() as scope:
            if _is_opaque(value):
                scope.enter_context(self._streams.on(self._maker))
                self._must_wait = True
            elif any(self._streams.maker(tensor) is not None for tensor in tensors_in(value)):
                self._must_wait = True
            moved = move()
        if has_method(moved, "record_stream") and not isinstance(moved, torch.Tensor):
            self._used.append(moved)
        else:
            self._used.extend(part for part in tensors_in(moved) if self._is_there(part))
        return moved

    def _is_there(self, tensor: torch.Tensor) -> bool:
        return self._streams.maker(tensor) is not None


def explain_fork(error: BaseException, dataset: Any) -> None:
    """Tell what to do beside torch's own error of CUDA in a worker process that was forked; of any other, nothing."""
    if "re-initialize CUDA in forked subprocess" in str(error):
        add_note(
            error,
            f"torchstage: the dataset, a {type(dataset).__name__}, uses CUDA in a worker process. Let it return "
            "tensors in host memory, and give device='cuda': batches are copied while the device computes. Or leave "
            "out multiprocessing_context: threads may use CUDA.",
        )


def _is_opaque(value: Any) -> bool:
    return not has_method(value, "record_stream") and next(tensors_in(value), None) is None


def _can_be_pinned(tensor: torch.Tensor) -> bool:
    """Whether it is an ordinary tensor in host memory. Others are copied from where they lie, which takes longer and is
    right all the same."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.grad_fn is None
        and not has_own(type(tensor), "__torch_dispatch__")
    )


def _size_of(batch: Any) -> str:
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(batch))
    return f"{num_bytes / 2**20:,.1f} MiB"
