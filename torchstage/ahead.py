"""Ahead: finished batches in, the same on the device out, the next ones' copies begun before they are asked for.

No thread waits for its turn: whoever finishes a batch that is among the next to be handed out begins its copy, and the
consumer begins those that became so when it takes one.

Guarantees: besides the batch just handed out at most ``NUM_DEVICE_BATCHES`` are on the device, or on their way.
"""

import threading
from typing import Any

from torchstage.engine.gather import InFlight
from torchstage.engine.outcome import Failure, caught
from torchstage.engine.probe import Probes
from torchstage.engine.ticket import Batch
from torchstage.transfer import NUM_DEVICE_BATCHES, Moved, Route

STAGE = "transfer"


class Ahead:
    """What one run's threads and its consumer share of the transfer. ``begin`` may be called from any thread."""

    def __init__(self, route: Route, in_order: bool, probes: Probes | None = None) -> None:
        """``probes``: who else is told of the copies."""
        self._probes = probes or Probes()
        self._route = route
        self._in_order = in_order
        self._num_handed = 0  # in order: all batches of lower number were
        self._num_ahead = 0  # out of order: batches that were begun and not handed out
        self._lock = threading.Lock()  # a batch is begun once, by whoever is first

    def begin(self, batch: Batch) -> Failure | None:
        """Begin the batch's copy if it is due and was not begun. A failure takes the batch's place.

        Whoever finished a batch calls this once more: 1. it announces the batch, 2. the consumer hands that out, and
        its value is the caller's, 3. the second call comes. It finds ``after`` gone and touches nothing.
        """
        with self._lock:
            if batch.after is not None and not batch.is_dropped and self._is_due(batch):
                self._begin(batch)
            return batch.failure

    def _is_due(self, batch: Batch) -> bool:
        if self._in_order:
            return batch.number < self._num_handed + NUM_DEVICE_BATCHES
        return self._num_ahead < NUM_DEVICE_BATCHES

    def _begin(self, batch: Batch) -> None:
        if batch.failure is not None or batch.is_left_out or isinstance(batch.value, Moved):
            return
        try:
            probe = self._probes.now
            if probe is None:
                batch.value = self._route.begin(batch.value)
            else:
                with probe.around(STAGE, batch):
                    batch.value = self._route.begin(batch.value)
        except KeyboardInterrupt:  # the user's, not the batch's
            raise
        except BaseException as error:
            batch.value, batch.failure = None, caught(error, STAGE)
        else:
            self._num_ahead += 1

    def hand_out(self, batch: Batch, in_flight: InFlight) -> None:
        """In the consumer's thread: the batch's value is then what its caller may use. After Ctrl-C in here it can be
        called again for the same batch."""
        with self._lock:
            self._begin(batch)
            batch.after = None
            self._num_handed = batch.number + 1
            # Counted anew: some that were begun may have been dropped, to be made again.
            self._num_ahead = sum(isinstance(other.value, Moved) for other in in_flight)
            for other in in_flight:
                if other.done and not other.is_raw and self._is_due(other):  # a raw one's samples are not together yet
                    self._begin(other)
        if batch.failure is None and not batch.is_left_out:
            try:
                batch.value = self._route.end(batch.value)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                batch.value, batch.failure = None, caught(error, STAGE)


def moved_at_once(route: Route) -> Any:
    """The stage that puts a batch on the device, where nothing runs ahead."""

    def moved(batch: Any, indices: Any) -> Any:
        return route.end(route.begin(batch))

    return moved
