"""Turns: lanes in, which of them is asked for the next batch out.

Guarantees: no lane is asked for more than ``num_ahead`` batches that were not handed out yet; used in the consumer's
thread alone.
"""

from collections.abc import Iterator
from typing import Any

from torchstage.cuts import Cut
from torchstage.engine.gather import InFlight
from torchstage.engine.pipeline import Admission
from torchstage.engine.ticket import Chain
from torchstage.reading import Reading


class Turns:
    """Whose turn it is: the lanes one after another, each with at most ``num_ahead`` batches in flight."""

    in_flight: InFlight  # of the run that this is the source of

    def __init__(
        self,
        sampler_iter: Iterator[Any],
        readings: list[Reading],
        chains: list[Chain],
        num_ahead: int,
        next_lane: int,
    ) -> None:
        self._sampler_iter = sampler_iter
        self._readings = readings
        self._chains = chains
        self._num_ahead = num_ahead
        self._next_lane = next_lane
        self._num_cuts = 0
        self.cuts: dict[int, Cut] = {}  # what is in flight, by the number of its batch

    def __iter__(self) -> "Turns":
        return self

    def __next__(self) -> Admission | None:
        """A ticket for the first lane that has room. A lane that has ended gets none, and leaves its room empty: the
        others are not to run ahead for its sake.

        Whether a lane is seen to have ended now or a turn later changes nothing: a ticket too many brings no batch.
        """
        num_lanes = len(self._readings)
        if all(reading.has_ended for reading in self._readings):
            raise StopIteration
        for step in range(num_lanes):
            lane = (self._next_lane + step) % num_lanes
            if not self._readings[lane].has_ended and self.in_flight.num_of(lane) < self._num_ahead:
                index = next(self._sampler_iter)
                self._next_lane = (lane + 1) % num_lanes
                self.cuts[self._num_cuts] = cut = Cut(index, lane)
                self._num_cuts += 1
                self._readings[lane].opening.is_asked = True
                return (index,), self._chains[lane], (cut,)
        return None
