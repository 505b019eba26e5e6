"""Desk: a job's slot in, memory for its result and a parcel of it out. In a process that works for a loader.

Guarantees: what lies in the slot already is not copied. Where anything in this process still refers to memory of the
slot when the parcel is sealed (a dataset or collate function that keeps its batch), that memory stays its own: it is
written by nobody else, and what it writes is seen by nobody else.
"""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast

import torch

from torchstage.executors import parcel as parcels
from torchstage.executors.blocks import ALIGNMENT, IN_SLOT, Layout
from torchstage.executors.memory import Memory, identity
from torchstage.executors.parcel import Parcel

# Smaller blocks travel in the parcel, so that a user who keeps the labels of all batches keeps no slot with each.
MIN_SLOT_BYTES = 16 << 10
MAX_REST = 256  # jobs


def _no_marks() -> Callable[[int], None]:
    return lambda stage: None


class Desk:
    """Where a process lays its results. For one thread."""

    def __init__(self, describe: Callable[[], str] | None = None) -> None:
        """``describe``: what to call the code that made a tensor that is refused, "the dataset Images" or so."""
        self.describe = describe
        self.marks: Callable[[], Callable[[int], None]] = _no_marks  # what tells the stages that a process is in
        self._known: dict[int, _Known] = {}
        self._use: _Use | None = None
        self._rest = 0  # jobs to go without room given out, because somebody keeps what he is given
        self._next_rest = 1

    def take(self, number: int, fd: int | None) -> None:
        """Lay the next result in that slot; None: in no slot. The file descriptor is this desk's from now on."""
        self._learn()
        self._use = None
        if fd is None:
            return
        try:
            which = identity(fd)
        except BaseException:
            os.close(fd)
            raise
        known = self._known.get(number)
        if known is not None and known.identity == which:
            os.close(fd)
        else:  # the first time, or another slot of this number: the parent has let go of the one before
            if known is not None:
                known.memory.close()
            known = self._known[number] = _Known(which, Memory(fd))
        known.use = self._use = _Use(known.memory, is_kept=known.use is not None and known.use.is_referred_to())

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor on the CPU, in the slot if it is large enough to lie there. Not resizable then.

        Raises MemoryError.
        """
        num_bytes = prod(shape) * dtype.itemsize
        if self._use is not None and not self._use.is_kept and not self._rest and num_bytes >= MIN_SLOT_BYTES:
            memory = self._use.given(num_bytes)
            if memory is not None:
                return memory.view(dtype).view(shape)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def pack(self, value: Any) -> Parcel:
        """The value as a parcel. Let go of the value then, and send ``sealed(parcel)``.

        Raises what ``torchstage.executors.parcel.pack`` raises; TypeError: a tensor is on a device.
        """
        use = self._use
        parcel = parcels.pack(value, None if use is None or use.is_kept else use, self._refuse)
        del value
        is_kept = use is not None and use.is_referred_to()
        return replace(parcel, is_kept=True) if is_kept else parcel

    def sealed(self, parcel: Parcel) -> Parcel:
        """The parcel as it should be sent, to be opened by the slot that was taken, once its value was let go of.

        If anything here refers to memory of the slot even now, the parcel gets a copy, in the slot if there is room, so
        that what this process does to its own is not seen elsewhere. A parcel that was not sealed is not wrong while
        nobody does that, but costs as much each time.
        """
        use = self._use
        if use is None or not parcel.is_kept:
            return parcel
        return use.moved(parcel) if use.is_referred_to() else replace(parcel, is_kept=False)

    def _learn(self) -> None:
        """Code that keeps what it is given gets ordinary memory for some jobs, more each time. That costs a copy into
        the slot, and the other way costs a slot for each batch."""
        use = self._use
        if use is None:
            return
        if use.is_referred_to():
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, MAX_REST)
        elif use.was_given:
            self._next_rest = 1
        else:
            self._rest = max(0, self._rest - 1)

    def close(self) -> None:
        """Close the file descriptors. Memory that is referred to stays."""
        self._use = None
        for known in self._known.values():
            known.memory.close()
        self._known.clear()

    def _refuse(self, device: torch.device) -> TypeError:
        whose = "" if self.describe is None else f"{self.describe()}: "
        return TypeError(
            f"{whose}a tensor on {device} was made in a process, and cannot be sent to another one. Make it on the CPU "
            "and move it in the loader: StageLoader(device=...); or make it in a thread: worker_method='thread'."
        )


@dataclass(slots=True)
class _Known:
    """A slot that was taken before."""

    identity: tuple[int, int]
    memory: Memory
    use: "_Use | None" = None  # the newest


class _Use:
    """A slot for one job: room that is given out from its start on.

    ``is_kept``: something still refers to what an earlier job laid there, which sent no parcel: it is left alone.
    """

    min_bytes = MIN_SLOT_BYTES

    def __init__(self, memory: Memory, is_kept: bool) -> None:
        self.is_kept = is_kept
        self._memory = memory
        self._view: memoryview | None = None  # of the newest map; storages in it refer to this very object
        self._views: list[tuple[weakref.ref[memoryview], int, int]] = []  # each with its addresses, from and to
        self._is_moving = False
        self.num_bytes = 0
        self.was_given = False

    def given(self, num_bytes: int) -> torch.Tensor | None:
        """Room as a tensor of bytes; None: it cannot be had."""
        if (offset := self._allotted(num_bytes)) is None:
            return None
        self.was_given = True
        return _bytes_at(self._view, offset, num_bytes)

    def room_for(self, num_bytes: int) -> tuple[int, int] | None:
        if (offset := self._allotted(num_bytes)) is None:
            return None
        return offset, self._views[-1][1] + offset

    def offset_of(self, address: int, num_bytes: int) -> int | None:
        for _, start, end in () if self._is_moving else self._views:
            if start <= address and address + num_bytes <= end:
                return address - start
        return None

    def moved(self, parcel: Parcel) -> Parcel:
        """The same parcel, its blocks in room that was not given out."""
        self._is_moving = True
        layout = Layout(self, parcel.carried)
        for block in parcel.blocks:
            place, offset, num_bytes = block
            if place == IN_SLOT:
                self._allotted(0)  # a map that shows all that was given out
                layout.lay(self._views[-1][1] + offset, num_bytes)
            else:
                layout.blocks.append(block)
        self._is_moving = False
        self._view = None
        blocks, carried = tuple(layout.blocks), tuple(layout.carried)
        return replace(parcel, blocks=blocks, carried=carried, num_slot_bytes=self.num_bytes)

    def is_referred_to(self) -> bool:
        """Whether anything refers to memory that was given out. The value must have been let go of."""
        self._view = None
        return self.is_kept or any(view() is not None for view, _, _ in self._views)

    def _allotted(self, num_bytes: int) -> int | None:
        offset = -(-self.num_bytes // ALIGNMENT) * ALIGNMENT
        block = self._memory.grown(offset + num_bytes)
        if block is None:
            return None
        if self._view is None or self._view.obj is not block:
            self._view = memoryview(block)
            start = _bytes_at(self._view, 0, 1).data_ptr()
            self._views.append((weakref.ref(self._view), start, start + len(block)))
        self.num_bytes = offset + num_bytes
        return offset


def _bytes_at(memory: Any, offset: int, num_bytes: int) -> torch.Tensor:
    return cast(Any, torch).frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=offset)
