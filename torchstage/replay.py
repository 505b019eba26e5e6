"""Replay: batches that were handed out before and are read once more in, what there is to say about that out.

Guarantees: a warning says how many they are before it begins, and how long it will take once that can be told; that
there are fewer of them this time is an error.
"""

from collections.abc import Sequence
from time import monotonic

from torchstage.errors import warn_user

FIRST_WORD_SECONDS = 10.0  # until the first estimate; each further one comes after twice the time
ADVICE = (
    "Give the dataset (or its iterator) state_dict() and load_state_dict(), as "
    "torchdata.stateful_dataloader.Stateful has them, and the next one goes on at once."
)


class Replay:
    """What the readers of an epoch read once more. Each counts in its own thread, all else is the consumer's."""

    def __init__(self, num_batches: Sequence[int], has_state: Sequence[bool]) -> None:
        """Of each reader: how many batches, and whether they are but those since the dataset told its state."""
        self._num_batches = tuple(num_batches)
        self._num_done = [0] * len(num_batches)
        self._num_stateless = sum(
            number for number, is_known in zip(num_batches, has_state, strict=True) if not is_known
        )
        self._is_running = any(num_batches)
        self._next_word_seconds = FIRST_WORD_SECONDS
        self._began = 0.0

    def begin(self) -> None:
        """The first batch is asked for."""
        self._began = monotonic()
        if self._num_stateless:
            warn_user(
                f"StageLoader: the dataset has no state, so {self._num_stateless} batches that were handed out before "
                f"are read once more to get to where the loaded state is. {ADVICE}"
            )

    def num_left(self, reader: int = 0) -> int:
        return self._num_batches[reader] - self._num_done[reader]

    def made(self, reader: int = 0) -> None:
        """That reader has made one of its batches."""
        self._num_done[reader] += 1

    def attend(self) -> None:
        """Say how long it will take, if it is time to. Called while the consumer waits."""
        if not self._is_running:
            return
        seconds = monotonic() - self._began
        if seconds < self._next_word_seconds:
            return
        done, total = sum(self._num_done), sum(self._num_batches)
        self._is_running = done < total
        left = self._seconds_left(seconds)
        if left is not None and self._is_running:
            self._next_word_seconds = 2 * seconds
            warn_user(
                f"StageLoader: of {total} batches that were handed out before, {done} were read once more in "
                f"{seconds:.0f} s; about {left:.0f} s are left."
            )

    def _seconds_left(self, seconds: float) -> float | None:
        """Those of the slowest reader; None: it has not made a batch."""
        counts = [both for both in zip(self._num_batches, self._num_done, strict=True) if both[0]]
        if not all(done for _, done in counts):
            return None
        return max(seconds * (total - done) / done for total, done in counts)

    def too_few(self, where: str, reader: int = 0) -> ValueError:
        """That reader has no more."""
        return fewer_than(where, self._num_batches[reader], self._num_done[reader])


def fewer_than(where: str, num_batches: int, num_found: int | None = None) -> ValueError:
    ended = "ended before that" if num_found is None else f"ended after {num_found}"
    return ValueError(
        f"StageLoader: {where} was to read {num_batches} batches once more that were handed out before the state was "
        f"saved, and {ended}. So the dataset is not the one that the state was saved with, or it yields another number "
        "of samples this time, and what is left of its epoch cannot be told. Load the state with the dataset as it "
        "was; or begin a new epoch, with a loader that loads no state; or give the dataset (or its iterator) "
        "state_dict() and load_state_dict()."
    )
