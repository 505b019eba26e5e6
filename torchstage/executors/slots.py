"""Slots: memory that processes lay batches in, lent to a job, then to the batch, and used again after that.

Guarantees: a slot is used again only after the last storage in it was freed: no tensor, view, array or memoryview of
its batch is left. Nothing waits for a slot: where they are scarce a batch is copied and its slot is free at once.
What gives a slot back takes no lock, so it may happen in any thread at any time, in the midst of a garbage collection
too. Nothing has a name in the file system; when the last process is gone, so is the memory.
"""

import os
import threading
import weakref
from collections import deque
from typing import Any

from torchstage.executors.desk import Desk
from torchstage.executors.memory import HAS_MEMFD, Memory, make_memfd
from torchstage.executors.parcel import Parcel, opened
from torchstage.executors.shared import Shared

__all__ = ["Desk", "Shared", "Slot", "Slots"]


class Slots:
    """The slots of one loader. Any thread may call anything here."""

    def __init__(self, max_slots: int) -> None:
        self._lock = threading.Lock()  # only for take and close, which no finalizer calls
        self._free: deque[Slot] = deque()
        self._numbers: deque[int] = deque(range(max_slots))  # of slots that could be made
        self._pid = os.getpid()
        self._is_closed = not HAS_MEMFD

    def take(self) -> "Slot | None":
        """A slot that nobody uses. None: all are in use, or there are none on this system, in this process (a fork of
        the one that made them) or any more."""
        if self._is_closed or self._pid != os.getpid():
            return None
        with self._lock:
            try:
                return (
                    self._free.pop()
                )  # the one used last: it is more likely in a cache, and others may never be needed
            except IndexError:
                return self._made()

    def _made(self) -> "Slot | None":
        try:
            number = self._numbers.popleft()
        except IndexError:
            return None
        try:
            fd = make_memfd("torchstage-slot")
        except OSError:  # no file descriptors are left: do without
            fd = None
        if fd is None:
            self._numbers.append(number)
            return None
        return Slot(self, number, fd)

    def close(self) -> None:
        """Close the file descriptors of the slots that are free, those of others once they come back. Memory that is
        referred to stays until it is not. Idempotent."""
        self._is_closed = True
        while True:
            try:
                self._free.pop().close()
            except IndexError:
                return

    @property
    def has_spare(self) -> bool:
        """Whether another slot could be taken now."""
        return bool(self._free or self._numbers)

    def come_back(self, slot: "Slot", again: bool) -> None:
        """A slot that nobody refers to any more. ``again``: whether it may be used again."""
        if again and not self._is_closed:
            self._free.append(slot)
            if not self._is_closed:
                return
            self.close()  # another thread closed just now, and may not have seen this one
            return
        slot.close()
        self._numbers.append(slot.number)


class Slot:
    """Memory that one job lays its result in. One thread at a time.

    After ``take`` exactly one of ``open``, ``give_back`` and ``drop`` is called.
    """

    def __init__(self, slots: Slots, number: int, fd: int) -> None:
        self.number = number
        self._slots = weakref.ref(slots)  # a batch that the user keeps keeps no other slot of the loader
        self._memory = Memory(fd)

    @property
    def fd(self) -> int:
        """Of its memfd: to be sent to the process, and not to be closed."""
        return self._memory.fd

    def open(self, parcel: Parcel) -> Any:
        """The value of a parcel that a process laid here. The slot is free once nothing refers to the memory.

        Where no other slot could be taken the value is copied, and the slot is free at once; so it is if nothing of
        the value lies here. The slot goes back if this raises, too: what unpickling raises; OSError.
        """
        slots = self._slots()
        again = not parcel.is_kept
        if not parcel.num_slot_bytes:
            self._come_back(again)
            return opened(parcel, None)
        if not again or slots is None or not slots.has_spare:
            try:
                return opened(parcel, memoryview(self._memory.mapped(parcel.num_slot_bytes)), copies=True)
            finally:
                self._come_back(again)
        try:
            view = memoryview(self._memory.mapped(parcel.num_slot_bytes))
        except BaseException:
            self._come_back(again)
            raise
        weakref.finalize(view, self._come_back, True, _forks.number).atexit = False
        return opened(parcel, view)

    def give_back(self) -> None:
        """Nobody refers to the memory: the job was not begun, or its process is dead."""
        self._come_back(True)

    def drop(self) -> None:
        """A process may still write here or refer to it: the job failed, or may run although it is not waited for.
        The slot is not used again; another is made in its place."""
        self._come_back(False)

    def close(self) -> None:
        self._memory.close()

    def _come_back(self, again: bool, fork: int | None = None) -> None:
        """``fork``: what ``_forks`` counted when the user got the value. A child that was forked since has it too."""
        slots = self._slots()
        if slots is None:
            self.close()
        else:
            slots.come_back(self, again and fork in (None, _forks.number))


class _Forks:
    """Counts the forks of this process, before and after each, so that what was made in the meantime is seen too."""

    def __init__(self) -> None:
        self.number = 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._count, after_in_parent=self._count, after_in_child=self._count)

    def _count(self) -> None:
        self.number += 1


_forks = _Forks()
