"""Position: batches admitted and handed out in, what was handed out of the sampler's order out.

Places in the order are counted in samples; in batches where the caller's own batch sampler says what a batch is.

Guarantees: what was admitted and not yet handed out does not count; nothing is counted twice; also where batches are
handed out in another order than they were admitted in.
"""

from typing import Any

Range = tuple[int, int]  # from the first place to before the second


class Position:
    """How far an epoch is. Used in the consumer's thread alone."""

    def __init__(self, low: int = 0, above: list[Range] | None = None) -> None:
        self.low = low  # every place below it was handed out
        self.num_batches = 0  # handed out, since this object was made
        self.last: Any = None  # the index in the last place below it, as a plain value; None: not known
        self._above: dict[int, tuple[int, Any]] = {begin: (end, None) for begin, end in above or ()}
        self.num_samples = 0  # in these
        self._spans: dict[int, tuple[int, int, Any, int]] = {}  # of the batches in flight, by their number
        self._num_admitted = 0
        self.end = low  # every place below it was admitted

    @property
    def is_level(self) -> bool:
        """Whether all that was admitted was handed out."""
        return not self._spans

    @property
    def above(self) -> list[Range]:
        """What was handed out beyond the first place that was not."""
        return [(begin, end) for begin, (end, _) in sorted(self._above.items())]

    @property
    def latest(self) -> int:
        """The number of the batch that was admitted last."""
        return self._num_admitted - 1

    def admit(self, num_places: int, last: Any, num_samples: int = 1) -> None:
        """The next batch: it has that many places, some of which were perhaps handed out before this object was made.
        ``last``: the index in its last place. ``num_samples``: of the batch."""
        begin = self.end
        self.end = end = begin + num_places
        self._spans[self._num_admitted] = begin, end, last, num_samples
        self._num_admitted += 1

    def fail_to_admit(self) -> None:
        """The sampler raised an error, which is handed out like a batch."""
        self._num_admitted += 1

    def hand_out_next(self) -> None:
        """The caller gets the first of the batches in flight."""
        self.hand_out(min(self._spans, default=-1))

    def begin_of(self, number: int) -> int:
        """The first place of a batch that was admitted, by its number."""
        return self._spans[number][0]

    def hand_out_to(self, end: int, last: Any, num_samples: int, num_batches: int = 1) -> None:
        """The caller gets what is left of all places before this one, which ``last`` is the index of the last of."""
        self.num_batches += num_batches
        self.num_samples += num_samples
        self.low, self.last = end, last
        for number in [number for number, span in self._spans.items() if span[1] <= end]:
            del self._spans[number]

    def hand_out(self, number: int) -> None:
        """The caller gets the batch of this number, counted from the first that was admitted."""
        span = self._spans.pop(number, None)
        if span is None:
            return
        self.num_batches += 1
        begin, end, last, num_samples = span
        self.num_samples += num_samples
        if begin != self.low:
            self._above[begin] = end, last
            return
        self.low, self.last = end, last
        while self._above:
            first = min(self._above)
            if first > self.low:
                return
            end, last = self._above.pop(first)
            if end > self.low:
                self.low, self.last = end, last
