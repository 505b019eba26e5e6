"""Ending: processes that are to end in, gone ones out, with more pressure as time passes.

Guarantees: user code has a grace; whatever it does, nothing is waited for longer than the last of the times below.
"""

import signal
import time
from collections.abc import Sequence

from torchstage.executors.nursing import Birth

GRACE_SECONDS = 1.5  # for user code; then SIGTERM
TERM_SECONDS = 0.3  # then SIGKILL
KILL_SECONDS = 2.0  # then it is left behind: it is in the kernel, and ends as soon as it comes out


class Ending:
    """How far the end is."""

    def __init__(self) -> None:
        self.is_hurried = False  # nothing more is to be done
        self.is_over = False
        self._steps: list[tuple[float, int | None]] = []  # when the next pressure is due, and which

    @property
    def has_begun(self) -> bool:
        """Whether the processes were told to end."""
        return bool(self._steps) or self.is_over

    def begin(self) -> None:
        """The processes have been told."""
        now = time.monotonic()
        self._steps = [
            (now + GRACE_SECONDS, signal.SIGTERM),
            (now + GRACE_SECONDS + TERM_SECONDS, signal.SIGKILL),
            (now + GRACE_SECONDS + TERM_SECONDS + KILL_SECONDS, None),
        ]

    def seconds_left(self) -> float | None:
        """Until the next pressure is due; None: none is."""
        return max(0.0, self._steps[0][0] - time.monotonic()) if self._steps else None

    def press(self, births: Sequence[Birth]) -> None:
        """See whether they have ended, and press them if it is time."""
        if not any(birth.pid is not None for birth in births):  # what is not born yet, ends as it is born
            self.is_over = True
            return
        while self._steps and self._steps[0][0] <= time.monotonic():
            _, number = self._steps.pop(0)
            if number is None:
                self.is_over = True
                return
            for birth in births:
                birth.kill(number)
