"""Channel: work for threads in, the same work out, first in first out.

Guarantees: put never blocks and takes no lock that Python code can hold, so a finalizer or a signal handler may call
it; close wakes every waiter, and what was put before it is still taken first.
"""

from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """First-in-first-out between the door and the threads of one segment."""

    __slots__ = ("_queue", "get", "get_nowait", "is_empty", "put")

    def __init__(self) -> None:
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self.put = self._queue.put  # the C functions themselves: no Python frame on the way
        self.get = self._queue.get
        self.get_nowait = self._queue.get_nowait
        self.is_empty = self._queue.empty

    def close(self, num_threads: int) -> None:
        """Let each of that many threads get one None, the end. Safe in a finalizer."""
        for _ in range(num_threads):
            self._queue.put(None)
