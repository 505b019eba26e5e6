"""Gather: settled samples in, finished batches out in their order.

Guarantees: a batch is announced after it can be read; the order of hand-out is the order of admission, or whichever is
done where the run asks for that; a lost announcement (Ctrl-C between two bytecodes) delays nothing and loses nothing.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any, cast

from torchstage.engine.outcome import Failure, caught
from torchstage.engine.stats import Key, Tally
from torchstage.engine.ticket import Batch

TRANSFER: Key = (True, ("transfer",))  # what ``Batch.after`` does


def finish(batch: Batch, tally: Tally | None = None, begin: float | None = None) -> float:
    """Turn the settled samples into the batch that the user gets, or into its failure; then announce it.

    Called by the one thread that claimed it. ``tally``: of that thread. ``begin``: now, on time.perf_counter's clock.
    Returns when it was announced.
    """
    tally = Tally() if tally is None else tally
    begin = perf_counter() if begin is None else begin
    failure = batch.first_failure()
    after, goes_on = None, True
    if failure is None:
        batch.value = [batch.settled[slot] for slot in range(batch.size)]
        _count(batch, tally)
        if batch.has_bad:
            failure = sift(batch)
            goes_on = not batch.is_left_out
        elif batch.slots is not None:  # it was sifted where it was made
            batch.num_made = len(batch.slots)
            batch.is_left_out = not batch.slots
            goes_on = not batch.is_left_out
    if failure is None and goes_on:
        key, num_samples, watch = batch.chain.finish_key, batch.num_made, tally.watch
        work = tally.work_at(key)
        is_timed = work.begin_batch(num_samples) or tally.probe is not None
        if is_timed:
            watch.begin(batch)
        indices = batch.indices if batch.kept is None else batch.kept
        for stage, step in batch.chain.finish:
            try:
                batch.value = step(batch.value, indices)
            except BaseException as error:
                failure = caught(error, stage)
                batch.value = None
                tally.fail(key, stage, num_samples)
                watch.fail(error)
                break
            if is_timed:
                watch.lap()
        end = perf_counter()
        lost_seconds = watch.take_lost() if is_timed else 0.0
        work.end_batch(num_samples, end - begin - lost_seconds, watch.end() if is_timed else None)
        begin = end
        after = batch.after if failure is None else None
        if after is not None:
            failure = after(batch)
            end = perf_counter()
            _count_transfer(tally, num_samples, end - begin, has_failed=failure is not None)
            begin = end
    announce(batch, failure, begin)
    if after is not None:  # it may have become due right before it was announced
        after(batch)
    del failure  # the traceback may lead back to this frame
    return begin


def sift(batch: Batch) -> Failure | None:
    """Have the tolerance say what becomes of a batch in which samples failed. Its own failure, if it has one."""
    tolerance = batch.chain.tolerance
    assert tolerance is not None
    try:
        sifted = tolerance.sift(batch, batch.value)
    except BaseException as error:
        batch.value = None
        return caught(error, batch.chain.segments[0].stage)
    batch.take_sifted(sifted)
    if sifted.failure is not None:
        batch.value = None
    try:
        return sifted.failure
    finally:
        del sifted  # its traceback may lead back to this frame


def _count(batch: Batch, tally: Tally) -> None:
    """Have the batch tell its samples. Only now is known how many a lane read: fewer than it was asked for, at last."""
    batch.num_made = number = batch.num_samples
    if batch.chain.lane is not None:
        if number > 1 and isinstance(batch.value[0], list):
            batch.num_made = len(cast(list[Any], batch.value[0]))
        tally.work_at(batch.chain.segments[0].key).num_samples += batch.num_made


def _count_transfer(tally: Tally, num_samples: int, seconds: float, *, has_failed: bool) -> None:
    work = tally.work_at(TRANSFER)
    work.num_samples += num_samples
    work.seconds += seconds
    work.add([(seconds, None)], num_samples, num_samples)
    if has_failed:
        tally.fail(TRANSFER, TRANSFER[1][0], num_samples)


def announce(batch: Batch, failure: Failure | None, now: float | None = None) -> None:
    """Mark the batch as done, last of all, so that whoever sees it done can read it. ``now``: if the caller has just
    looked at time.perf_counter's clock."""
    batch.failure = failure
    batch.settled.clear()  # samples are not kept beside the batch made of them, nor by a thread that is stuck in it
    batch.let_go()
    batch.done_at = perf_counter() if now is None else now
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

    def listed(self) -> list[Batch]:
        """They, as they are now, for whoever looks on from another thread."""
        while True:
            try:
                return list(self._batches)
            except RuntimeError:  # it changed meanwhile
                continue

    @property
    def newest(self) -> Batch:
        """The one that was admitted last. There must be one."""
        return self._batches[-1]

    def num_of(self, lane: int) -> int:
        """How many of them are this lane's."""
        return sum(batch.chain.lane == lane for batch in self._batches)

    def __del__(self) -> None:
        """The run is gone: what it had in flight goes with it, at once, and not when garbage is collected."""
        for batch in self._batches:
            batch.let_go()

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)

    def is_ahead(self, num_others: int) -> bool:
        """Whether at least that many batches are in flight before the newest, and the first half of them is made."""
        num_before = len(self._batches) - 1
        return num_before >= num_others and self._batches[num_before // 2].done

    def next_done(self) -> Batch | None:
        """The batch to hand out now, still in flight; None if it is not done yet."""
        if self._in_order:
            if not self._batches:
                return None
            head = self._batches[0]
            return head if head.done and not head.is_raw else None
        return next((batch for batch in self._batches if batch.done), None)

    def hand_out(self, batch: Batch) -> None:
        """The batch is no longer in flight; its announcement is taken back if nobody waited for it."""
        self._batches.remove(batch)
        with suppress(Empty):
            self.wake.get_nowait()

    def clear(self) -> None:
        self._batches.clear()

    # Where batches are made of the samples of others: those that are handed out come first, then the raw ones --------

    @property
    def has_raw(self) -> bool:
        """Whether any is there that is not handed out itself."""
        return any(batch.is_raw for batch in self._batches)

    def raw_and_done(self) -> list[Batch]:
        """The first raw ones, as far as they are done."""
        raw = (batch for batch in self._batches if batch.is_raw)
        return list(takewhile(lambda batch: batch.done, raw))

    def has(self, batch: Batch) -> bool:
        return batch in self._batches

    def put_in_place(self, raw: Batch | None, groups: Sequence[Batch]) -> None:
        """What was made of the samples of a raw one, in its place; at once, and once however often it is asked for."""
        others = [batch for batch in self._batches if batch is not raw]
        if groups and groups[0] in others:
            return
        at = next((number for number, batch in enumerate(others) if batch.is_raw), len(others))
        self._batches = deque([*others[:at], *groups, *others[at:]])

    def put_back(self, batch: Batch) -> None:
        """The batch was not handed out after all: it is the next one. It may still be there."""
        if batch not in self._batches:
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
