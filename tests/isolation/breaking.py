"""All datasets that break in plain threads, by name. As a program: whether one of them breaks, where it may crash.

``BREAKING``: isolation="auto" has to make them right. ``UNSEEN``: no look at the first samples can tell; only
``check_thread_safety`` can, and only isolation="serial" makes all of them right.
"""

import faulthandler
import sys
from pathlib import Path

from . import breaking_handles, breaking_memory, breaking_places, breaking_state
from .stories import NUM_ROUNDS, Story, breaks

STORIES: dict[str, Story] = {
    name: value
    for module in (breaking_handles, breaking_state, breaking_memory, breaking_places)
    for name, value in vars(module).items()
    if isinstance(value, Story)
}
UNSEEN = {name: STORIES[name] for name in ("a_descriptor", "state_of_later_samples", "state_of_the_second_part")}
BREAKING = {name: told for name, told in STORIES.items() if name not in UNSEEN}
COPIED = {name: told for name, told in BREAKING.items() if told.way == "copies"}
SERIALISED = {name: told for name, told in BREAKING.items() if told.way == "serial"}
HANG_SECONDS = 6.0  # an epoch takes 0.1 s; one that takes this long waits for a lock that nobody gives back


def breaks_or_ends(told: Story, folder: Path) -> bool:
    """Whether it breaks. A crash, or an epoch that hangs, ends the process; that is for others to see."""
    with told.opened(folder) as case:
        for _ in range(NUM_ROUNDS):
            faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
            if breaks(told, case, num_rounds=1):
                return True
            faulthandler.cancel_dump_traceback_later()
    return False


if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    print("it breaks" if breaks_or_ends(STORIES[sys.argv[1]], Path(sys.argv[2])) else "it holds", flush=True)
