"""Gather: settled samples in, finished batches out in their order.

Guarantees: a batch is announced after it can be read; the order of hand-out is the order of admission, or whichever is
done where the run asks for that; a lost announcement (Ctrl-C between two bytecodes) delays nothing and loses nothing.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from torchstage.engine.ticket import Batch, Failure, caught


def finish(batch: Batch) -> None:
    """Turn the settled samples into the batch that the user gets, or into its failure; then announce it.

    Called by the one thread that claimed it.
    """
    failure = batch.first_failure()
    if failure is None:
        batch.value = [batch.settled[slot] for slot in range(batch.size)]
        for stage, step in batch.chain.finish:
            try:
                batch.value = step(batch.value, batch.indices)
            except BaseException as error:
                failure = caught(error, stage)
                batch.value = None
                break
    after = batch.after if failure is None else None
    if after is not None:
        failure = after(batch)
    announce(batch, failure)
    if after is not None:  # it may have become due right before it was announced
        after(batch)
    del failure  # the traceback may lead back to this frame


def announce(batch: Batch, failure: Failure | None) -> None:
    """Mark the batch as done, last of all, so that whoever sees it done can read it."""
    batch.failure = failure
    batch.settled = {}  # samples are not kept beside the batch made of them
    batch.let_go()
    batch.done = True


class InFlight:
    """The batches that were admitted and not yet handed out. Used by the consumer's thread alone."""

    def __init__(self, in_order: bool) -> None:
        self.wake: SimpleQueue[None] = SimpleQueue()
        self._batches: deque[Batch] = deque()
        self._in_order = in_order

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches)

    def num_of(self, lane: int) -> int:
        """How many of them are this lane's."""
        return sum(batch.chain.lane == lane for batch in self._batches)

    def __del__(self) -> None:
        """The run is gone: what it had in flight goes with it, at once, and not when garbage is collected."""
        for batch in self._batches:
            batch.let_go()

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)

    def next_done(self) -> Batch | None:
        """The batch to hand out now, still in flight; None if it is not done yet."""
        if self._in_order:
            head = self._batches[0]
            return head if head.done else None
        return next((batch for batch in self._batches if batch.done), None)

    def hand_out(self, batch: Batch) -> None:
        """The batch is no longer in flight; its announcement is taken back if nobody waited for it."""
        self._batches.remove(batch)
        with suppress(Empty):
            self.wake.get_nowait()

    def clear(self) -> None:
        self._batches.clear()

    def put_back(self, batch: Batch) -> None:
        """The batch was not handed out after all: it is the next one."""
        self._batches.appendleft(batch)

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until a batch, or anything else the consumer should look at, is announced; False if the time is over.

        Announcements are hints: whoever is woken looks again at what is done. So one too many costs a look, and one
        lost costs nothing, because a batch that is done is seen before anyone waits.
        """
        try:
            self.wake.get(timeout=timeout_seconds)
        except Empty:
            return False
        return True
