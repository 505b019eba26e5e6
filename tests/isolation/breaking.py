"""All datasets that break in plain threads, by name. As a program: whether one of them breaks, where it may crash.

``BREAKING``: isolation="auto" has to make them right. ``UNSEEN``: no look at the first samples can tell; only
``check_thread_safety`` can, and only isolation="serial" makes all of them right.
"""

import sys
from pathlib import Path

from . import breaking_handles, breaking_memory, breaking_places, breaking_state
from .stories import Story, breaks

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

if __name__ == "__main__":
    sys.setswitchinterval(1e-6)
    told = STORIES[sys.argv[1]]
    with told.opened(Path(sys.argv[2])) as case:
        print("it breaks" if breaks(told, case) else "it holds")
