"""First: the first samples of a dataset in, the word that they were made and judged out.

Guarantees: they are made by one thread, one after another, while no other thread is let in; unless that takes too long.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from torchstage.budget import size_of
from torchstage.engine.stuck import GivenUp

Function = Callable[..., Any]

NUM_LOOKED_AT = 2  # samples that are made by one thread alone
MAX_FAILED = 8  # of the first samples: then what the others showed must do


class FirstSamples:
    """Tells when the first samples were made: two, by one thread, each looked at before the next begins. One shows what
    a sample sets; the second, what it sets again."""

    def __init__(self, announce: Callable[[None], None]) -> None:
        self._announce = announce
        self._thread: int | None = None  # that makes them: others may have been let in
        self._num_made = self._num_failed = 0
        self.sizes: dict[str, int] = {}  # bytes of what each stage made of the first sample
        self.is_made = False
        self.is_judged = False
        self._claim = [None]  # whoever pops it: the judge, who then knows that the thread is alone; or who ends that

    def begin(
        self, look: Callable[[], bool], judge: Callable[[bool], None], go_on: Callable[[], None], seconds: float
    ) -> None:
        """Before they are made: who looks after the first (and tells whether to go on) and judges after the last, who
        goes on where the user had a say in between, and for how many seconds others are kept out for each."""
        self._look, self._judge, self.go_on, self._seconds = look, judge, go_on, seconds
        self.deadline = time.monotonic() + seconds

    def stop_waiting(self) -> bool:
        """Let others in before they are there. False if they are being judged at this moment."""
        try:
            self._claim.pop()
        except IndexError:
            return False
        return True

    def give_up(self, thread: int | None) -> None:
        """This thread is stuck in a sample: another one shows what there is to see. It is not alone, since the one that
        is stuck may come back at any moment."""
        self.stop_waiting()
        if self._thread == thread:
            self._thread = None

    def end(self) -> None:
        """There are no more samples to look at."""
        self.is_made = True

    def watch(self, function: Function, num_samples: int, stage: str = "") -> Function:
        """``function``, which makes that many samples at a time, watched until there were enough. 0: it is a stage that
        others come after, of which only the errors count. ``stage``: whose result is weighed once."""

        def watched(*arguments: Any) -> Any:
            if self.is_made or self._thread not in (None, threading.get_ident()):
                return function(*arguments)
            self._thread = threading.get_ident()
            try:
                value = function(*arguments)
            except GivenUp:  # another thread is at it
                raise
            except BaseException:
                self._num_failed += 1
                if self._num_failed >= MAX_FAILED:
                    self._conclude()
                self._announce(None)
                raise
            if stage and stage not in self.sizes:
                self.sizes[stage] = size_of(value)
            if num_samples:
                self._count(num_samples)
            return value

        return watched

    def _count(self, num_samples: int) -> None:
        self._num_made += num_samples
        if self._num_made >= NUM_LOOKED_AT or not self._claim or not self._look():
            self._conclude()
        else:
            self.deadline = time.monotonic() + self._seconds

    def _conclude(self) -> None:
        try:
            self._judge(self.stop_waiting())
            self.is_judged = True
        finally:
            self.is_made = True
            self._announce(None)
