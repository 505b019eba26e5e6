"""Priority: the calling thread in, the same one standing back behind the training loop out.

Guarantees: Linux alone is asked; where it refuses, nothing changes. Threads and processes that the thread starts are
treated as it is.

Why: a training loop gives up the core whenever it waits, and a loader thread that wakes meanwhile may interrupt it
later on. Batch scheduling leaves loader threads their share of the cores, and has them interrupt nobody when they wake.
A lower priority (nice) helps the loop a little more where nobody else wants the cores; but where other programs do,
loader threads at nice +10 got a tenth of what worker processes get there, so that is for the user to choose.
"""

import os
import sys
import threading
from contextlib import suppress

VARIABLE = "TORCHSTAGE_NICE"


def niceness() -> int:
    """How much lower the priority of loader threads is to be, as ``nice`` counts: what the environment says, else 0.

    Raises ValueError if it says no number from 0 to 19.
    """
    text = os.environ.get(VARIABLE, "0")
    if not text.isdecimal() or not 0 <= int(text) <= 19:
        raise ValueError(f"{VARIABLE} must be a number from 0 to 19, got {text!r}. 0: no lower than the process's.")
    return int(text)


def stand_back(by: int) -> None:
    """Have the calling thread interrupt no other thread when it wakes, and lower its priority by so much."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:  # else somebody chose another policy for the process
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
        if by:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + by))
