"""Page: where a process is in its work in, the same out for the parent, at any moment and after the process has died.

Guarantees: writing costs a fifth of a microsecond and no lock; what was written outlives its writer.
"""

import faulthandler
import mmap
import os
import signal
import time
from collections.abc import Callable
from functools import partial

from torchstage.executors.wire import memory_file

_PAGE_BYTES = mmap.PAGESIZE
_TEXT_BYTES = 16 * 1024  # behind the words: for a stack of some 150 calls
NOWHERE = -1
_MESSAGE, _INDEX, _POSITION, _REACHES, _STAGE, _SINCE = range(6)  # the words
STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", signal.SIGUSR2))  # a process that gets it writes where it is


class Page:
    """Memory that a process shares with its parent: the message it works on, the job in it, and where in the job.

    The parent makes it; the process opens it by its file.
    """

    def __init__(self, file: int, size: int = _PAGE_BYTES + _TEXT_BYTES) -> None:
        self._map = mmap.mmap(file, size)
        self._words = memoryview(self._map)[:_PAGE_BYTES].cast("q")
        self._file = file

    @classmethod
    def make(cls) -> "tuple[Page, int]":
        """A new one, and its file, which is the caller's to pass on and close."""
        file = memory_file("torchstage-page")
        os.ftruncate(file, _PAGE_BYTES + _TEXT_BYTES)
        page = cls(file)
        page._words[_POSITION] = NOWHERE
        return page, file

    def reach(self) -> None:
        """The process is about to receive a message, if there is one."""
        self._words[_REACHES] = 1

    def take(self, message: int) -> None:
        """The process has received this message, and begins its first job; 0: there was none."""
        if message:
            self.begin(0)
            self._words[_MESSAGE] = message  # last: who reads it, reads the job's own numbers
        self._words[_REACHES] = 0

    def begin(self, index: int) -> None:
        """The process begins this job of its message."""
        self._words[_STAGE] = 0
        self._words[_POSITION] = NOWHERE
        self._words[_INDEX] = index

    def rest(self) -> None:
        """The process works on no message."""
        self._words[_MESSAGE] = 0
        self._words[_POSITION] = NOWHERE

    @property
    def at(self) -> Callable[[int], None]:
        """Writes where in its job the process is."""
        return partial(self._words.__setitem__, _POSITION)

    def enter(self, stage: int) -> None:
        """The process enters the stage of this number, of those that are looked at; 0: it leaves it."""
        words = self._words
        if stage:
            words[_SINCE] = time.monotonic_ns()
        words[_STAGE] = stage  # last: who reads it first, reads no time before it

    def tell_stack(self) -> None:
        """In the process: write where it is whenever it gets the signal, whatever it does."""
        os.lseek(self._file, _PAGE_BYTES, os.SEEK_SET)
        faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=False, chain=False)

    @property
    def stage(self) -> tuple[int, float]:
        """The number of the stage that the process is in, 0: of none, and since when, on time.monotonic's clock."""
        number = self._words[_STAGE]
        return number, self._words[_SINCE] / 1e9

    @property
    def text(self) -> str:
        """What the process wrote of its stack."""
        return self._map[_PAGE_BYTES:].rstrip(b"\0").decode(errors="replace")

    def clear_text(self) -> None:
        """Before it is told to write."""
        self._map[_PAGE_BYTES:] = bytes(_TEXT_BYTES)

    @property
    def message(self) -> int:
        """The number of the message that the process works on; 0: none."""
        return self._words[_MESSAGE]

    @property
    def reaches(self) -> bool:
        """Whether the process may have a message of which it has not told."""
        return bool(self._words[_REACHES])

    @property
    def index(self) -> int:
        """Which job of its message the process works on."""
        return self._words[_INDEX]

    @property
    def position(self) -> int | None:
        """Where in the job the process is; None: it has not said."""
        position = self._words[_POSITION]
        return None if position == NOWHERE else position

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()
