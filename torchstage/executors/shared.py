"""Shared: a value in, one file in memory out that any number of processes make the value from.

Guarantees: memory of tensors and arrays is there once, however many processes there are, until a process writes to it:
then that page is its own, and nobody else sees what it wrote. Memory that shows a file, as a numpy.memmap's does, is
not copied: each process maps the file again, and shares it as a forked process would.
"""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from torchstage.executors import parcel as parcels
from torchstage.executors.blocks import ALIGNMENT
from torchstage.executors.contents import Refuse, TooLarge, refuse
from torchstage.executors.files import Files
from torchstage.executors.memory import NO_FD, Memory, available_bytes, make_memfd
from torchstage.executors.parcel import Bound, Parcel

_bound: ContextVar[Bound | None] = ContextVar("_bound", default=None)


@contextlib.contextmanager
def bounded(bound: Bound) -> Generator[None]:
    """What is packed inside of this, in this thread, may take so much memory."""
    token = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(token)


class Shared:
    """A packed value. ``fd``: of the file, to be sent to each process; None: the parcel carries everything.

    The file is closed with ``close`` or when this is dropped; values that were made stay.
    """

    def __init__(self, parcel: Parcel, memory: Memory | None) -> None:
        self.parcel = parcel
        self._memory = memory

    @property
    def fd(self) -> int | None:
        return None if self._memory is None else self._memory.fd

    @classmethod
    def of(cls, value: Any, refuse: Refuse = refuse) -> "Shared":
        """Pack the value. Raises what ``torchstage.executors.parcel.pack`` raises.

        TooLarge: it is more than a ``bounded`` around the call allows; MemoryError: it is more than there is.
        """
        asked, left = _bound.get(), available_bytes()
        if asked is not None:
            return cls._packed(value, refuse, asked)
        try:
            return cls._packed(value, refuse, None if left is None else Bound(left))
        except TooLarge as error:
            raise MemoryError(
                f"There is no memory for what processes are to be sent: the dataset and its stages have at least "
                f"{error.num_bytes:,} bytes, and {left:,} are left. Load with threads, which share them: "
                "worker_method='thread'; or take multiprocessing_context='fork'; or keep arrays in files, and map them "
                "with mode 'r'."
            ) from None

    @classmethod
    def _packed(cls, value: Any, refuse: Refuse, bound: Bound | None) -> "Shared":
        try:
            fd = make_memfd("torchstage-dataset")
        except OSError:  # no file descriptors are left
            fd = None
        if fd is None:
            return cls(parcels.pack(value, None, refuse, Files(), bound), None)
        memory = Memory(fd)
        try:
            parcel = parcels.pack(value, _File(memory), refuse, Files(), bound)
        except BaseException:
            memory.close()
            raise
        if parcel.num_slot_bytes:
            memory.unmap()
            return cls(parcel, memory)
        memory.close()
        return cls(parcel, None)

    @staticmethod
    def open(fd: int | None, parcel: Parcel) -> Any:
        """The value, in another process or this one. The file descriptor is closed here. Raises OSError, MemoryError,
        what unpickling raises."""
        if fd is None:
            return parcels.unpack(parcel)
        try:
            own = mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, **NO_FD)
        finally:
            os.close(fd)
        return parcels.opened(parcel, memoryview(own))

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        if self._memory is not None:
            self._memory.close()


class _File:
    """Everything that has bytes is laid here, one after the other."""

    min_bytes = 1 << 10  # what is smaller is many times more than its place in a table, but not worth one

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.num_bytes = 0

    def offset_of(self, address: int, num_bytes: int) -> int | None:
        return None

    def room_for(self, num_bytes: int) -> tuple[int, int] | None:
        offset = -(-self.num_bytes // ALIGNMENT) * ALIGNMENT
        block = self._memory.grown(offset + num_bytes)
        if block is None:
            return None
        self.num_bytes = offset + num_bytes
        return offset, ctypes.addressof(ctypes.c_char.from_buffer(block)) + offset
