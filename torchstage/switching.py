"""Switching: a line that partly runs in processes in, the word that it can be used out.

Guarantees: the consumer waits no longer than it says; what cannot be sent to a process changes nothing.
"""

import threading
import time
from collections.abc import Callable

from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch
from torchstage.executors.unpicklable import NotPicklable
from torchstage.line import Line
from torchstage.processes import Hired

MAX_BYTES = 1 << 30  # of memory that is taken unasked,
MAX_SHARE = 0.25  # and of what is left of the system's


def _most_bytes() -> int:
    from torchstage.executors.memory import available_bytes

    left = available_bytes()
    return MAX_BYTES if left is None else min(MAX_BYTES, int(MAX_SHARE * left))


def _too_large(num_bytes: int) -> str:
    return (
        f"the dataset and its stages hold {num_bytes / 1e9:.3g} GB or more in memory, which would be there once more "
        "for processes; pass worker_method='multiprocessing' to have that"
    )


def _not_begun(failure: BaseException) -> str:
    return f"a process cannot begin with what it was sent: {type(failure).__name__}: {failure}"


class Switch:
    """Processes get ready in the background. An annex of a pool: it ends with it.

    ``send`` tells the processes what they are to run; that takes as long as pickling the dataset does. What would take
    much memory, a quarter of what is left or 1 GiB, is not sent: nobody asked for that. ``joins``: whether they may
    take over in this epoch; else they are there when the next one begins.
    """

    def __init__(self, line: Line, hired: Hired, send: Callable[[], None], *, joins: bool = True) -> None:
        self.line = line
        self.error: Exception | None = None
        self._hired = hired
        self._send = send
        self._is_sent = False
        self._joins = joins
        self._thread = threading.Thread(target=self._run, name="torchstage-placement", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        from torchstage.executors.shared import Bound, TooLarge, bounded  # as late as this: few loaders come here

        try:
            try:
                with bounded(Bound(_most_bytes(), self._num_processes)):
                    self._send()
            except TooLarge as error:
                raise MemoryError(_too_large(error.num_bytes)) from None
            self._is_sent = True
        except Exception as error:
            self.error = error.with_traceback(None)  # it leads to what holds this
        finally:
            del self._send

    def wait(self, seconds: float) -> None:
        """Wait until it is ready, so long at the most."""
        deadline = time.monotonic() + seconds
        self._thread.join(seconds)
        if self._is_sent:
            self._hired.wait(deadline)

    @property
    def is_ready(self) -> bool:
        """Whether batches can be made there now."""
        return self._joins and self._is_sent and self._hired.is_up()

    @property
    def why_not(self) -> str | None:
        """Why this comes to nothing: it cannot be sent, or no process can begin with it. None: so far it goes well."""
        if self.error is not None:
            return str(self.error)
        failure = self._hired.failure() if self._is_sent else None
        if failure is None:
            return None
        return str(failure) if isinstance(failure, NotPicklable) else _not_begun(failure)

    @property
    def _num_processes(self) -> int:
        return max((getattr(one, "num_processes", 0) for one in self.line.executors), default=0)

    # As an annex of a pool ----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Whatever was begun is of no use any more."""

    def leave(self) -> None:
        """It has no samples."""

    def where(self, batch: Batch, slot: int) -> tuple[str, Worker | None] | None:
        return None

    def join(self, deadline: float) -> list[Worker]:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return []

    def forget(self) -> None:
        """In a forked child the thread stayed behind."""
