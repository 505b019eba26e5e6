"""Channel: work for threads in, the same work out, first in first out.

Guarantees: put never blocks and takes no lock that Python code can hold, so a finalizer or a signal handler may call
it; close wakes every waiter, and what was put before it is still taken first.
"""

from collections import deque
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Channel(Generic[T]):
    """First-in-first-out between the door and the threads of one segment. What is ``urgent`` is asked for first."""

    __slots__ = ("_queue", "get", "get_nowait", "is_empty", "put", "urgent")

    def __init__(self) -> None:
        self._queue: SimpleQueue[T | None] = SimpleQueue()
        self.put = self._queue.put  # the C functions themselves: no Python frame on the way
        self.get = self._queue.get
        self.get_nowait = self._queue.get_nowait
        self.is_empty = self._queue.empty
        self.urgent: deque[T] = deque()

    def put_urgent(self, item: T) -> None:
        """Before all that waits: a sample that was begun is to be done before others begin."""
        self.urgent.append(item)
        self._queue.put(item)  # wakes a thread that waits

    def close(self, num_threads: int) -> None:
        """Let each of that many threads get one None, the end. Safe in a finalizer."""
        for _ in range(num_threads):
            self._queue.put(None)
