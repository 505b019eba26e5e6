"""Launch: a seat in, a process that has taken it out.

Guarantees: by default processes are born in the nursery; a context of the user's is used as given.
"""

import contextlib
import os
from multiprocessing.context import BaseContext
from typing import Any, cast

from torchstage.executors import child
from torchstage.executors.nursing import Birth, Ended, conditions, nurseries
from torchstage.executors.seat import Seat
from torchstage.executors.wire import HAS_PACKETS, file_of


class ContextBirth:
    """A process of multiprocessing."""

    def __init__(self, context: BaseContext, seat: Seat) -> None:
        self._process = cast(Any, context).Process(
            target=child.run, args=(seat,), name=f"torchstage-{seat.number}", daemon=True
        )
        self._process.start()
        self.pid: int | None = self._process.pid
        self.news: int = self._process.sentinel

    def look(self) -> Ended | None:
        """What became of it; None: it lives, as far as one knows."""
        if self._process.is_alive():
            return None
        return Ended(self._process.exitcode)

    def kill(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self._process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def close(self) -> None:
        """Let go of what tells about it."""
        with contextlib.suppress(ValueError):  # it runs yet: multiprocessing waits for it at exit
            self._process.close()


class Launcher:
    """Makes processes of one kind. ``context``: the user's; None: the nursery, or spawned ones where it cannot be."""

    def __init__(self, context: BaseContext | None) -> None:
        if context is None and not HAS_PACKETS:
            import multiprocessing

            context = multiprocessing.get_context("spawn")
        self._context = context
        self.inherits = context is not None and cast(Any, context).get_start_method() == "fork"
        self._conditions: int | None = None

    def launch(self, seat: Seat) -> Birth:
        """Ask for a process in this seat. The seat's files stay the caller's."""
        if self._context is not None:
            return ContextBirth(self._context, seat)
        if self._conditions is None:
            self._conditions = file_of(conditions())
        return nurseries.bear(seat, self._conditions)

    def close(self) -> None:
        """Let go of what it keeps for later processes."""
        if self._conditions is not None:
            os.close(self._conditions)
            self._conditions = None
