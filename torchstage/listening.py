"""Listening: a loader and a listener in, what the loader's threads and consumers do told to the listener.

Guarantees: the loader is not kept; a loader that a framework makes of it is listened to as well, because it has the
same counters; what a listener raises changes nothing of what is loaded.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torchstage.accounts import queued_in
from torchstage.engine.ledger import Ledger
from torchstage.engine.told import Listener, Ran, Thread, this_thread

__all__ = ["InFlight", "Listener", "Listening", "Ran", "Thread", "this_thread"]


@dataclass(frozen=True, slots=True)
class InFlight:
    """Batches that were admitted and not handed out yet, and the samples of them that wait, by stage."""

    num_in_the_making: int
    num_ready: int
    queued: Counter[str]


class Listening:
    """A listener on its loader. Raises TypeError for what is no StageLoader."""

    def __init__(self, loader: Any, listener: Listener, who: str) -> None:
        ledger = getattr(loader, "ledger", None)
        if isinstance(loader, type) or not isinstance(ledger, Ledger):
            kind = f"the class {loader.__name__}" if isinstance(loader, type) else f"a {type(loader).__name__}"
            raise TypeError(f"{who} needs a StageLoader, got {kind}. Only a StageLoader tells what its threads do.")
        self._ledger = ledger
        self._listener = listener

    def begin(self) -> None:
        """From each thread's next visit to a batch on, and from the consumer's next call."""
        self._ledger.probes.add(self._listener)

    def end(self) -> None:
        """Likewise. A second time does nothing."""
        self._ledger.probes.remove(self._listener)

    def in_flight(self) -> InFlight:
        """What is in flight now. From any thread."""
        batches = [batch for steps in self._ledger.consumers for batch in steps.look()]
        num_ready = sum(batch.done for batch in batches)
        return InFlight(len(batches) - num_ready, num_ready, queued_in(batches))
