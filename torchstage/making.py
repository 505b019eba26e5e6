"""Making: a batch and its chain in, what the user gets out, made in the calling thread.

Guarantees: one sample after another, each through all stages of a segment; the first error ends it; what every stage
took is counted.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Any, cast

from torchstage.engine.executors import stage_of
from torchstage.engine.gather import sift
from torchstage.engine.outcome import Failure, NoError, caught, said_stage
from torchstage.engine.stats import LONG_SECONDS, Tally
from torchstage.engine.ticket import Batch, is_tolerated
from torchstage.engine.watch import here

NOWHERE = -1  # no sample's place


def made_here(batch: Batch, tally: Tally, at: Callable[[int], None] | None = None) -> Any:
    """The value of the batch. ``tally``: the calling thread's. ``at`` is told the place of each sample before it is
    made, and NOWHERE before what is not one sample's. Raises what a stage raises; then ``batch.failure`` says where
    that was, for an Exception."""
    chain = batch.chain
    stage: str = ""
    slot: int | None = 0
    key, num_samples = chain.segments[0].key, batch.num_each  # of what may fail
    probe = tally.probes.now
    if probe is not tally.probe:
        tally.follow()
    watch, before, here.watch = tally.watch, here.watch, tally.watch
    try:
        values: list[Any] = list(batch.items)
        for slot, lost in batch.lost:
            batch.has_bad, stage = True, chain.segments[0].stage
            values[slot] = Failure(lost, stage, slot)
            tally.fail(key, stage, num_samples)
        begin = perf_counter()
        for segment in chain.segments:
            key, num_samples = segment.key, batch.num_each
            work = tally.work_at(key)
            every = work.every(num_samples) if probe is None else 1
            due = every - work.num_untimed  # the sample that is timed by itself
            for slot in range(batch.size):
                if batch.has_bad and type(values[slot]) is Failure:
                    continue
                work.num_samples += num_samples
                if at is not None:
                    at(slot if num_samples == 1 else NOWHERE)
                if is_timed := slot + 1 >= due:
                    due = slot + 1 + every
                    watch.begin(batch, slot, segment)
                try:
                    for leg in segment.legs:
                        if leg.begin is not None:
                            leg.begin(batch.items[slot])
                        for stage, step in leg.steps:  # noqa: B007  # named after an error
                            values[slot] = step(values[slot])
                            if is_timed:
                                watch.lap()
                except Exception as error:
                    if not is_tolerated(chain, error):
                        raise
                    batch.has_bad = True
                    watch.fail(error)
                    is_error = not isinstance(error, NoError)
                    tally.fail(key, said_stage(error, stage), num_samples, is_error=is_error)
                    values[slot] = caught(error, stage_of(error, stage), slot)
                    continue
                if is_timed:
                    work.add(watch.end(), num_samples, every * num_samples)
            end = perf_counter()
            work.num_untimed = every - (due - batch.size)
            work.is_long = end - begin >= LONG_SECONDS * batch.size
            work.seconds += end - begin - watch.take_lost()
            begin = end
            if segment.spread is not None and type(values[0]) is not Failure:
                values = batch.spread(values[0], segment.spread)
                for one in values:
                    batch.has_bad |= type(one) is Failure and is_tolerated(chain, one.error)
        slot, value = None, cast(Any, values)
        if at is not None:
            at(NOWHERE)
        key, num_samples = chain.finish_key, batch.num_samples
        batch.num_made = num_samples
        if batch.has_bad:
            batch.value = values
            failure = sift(batch)
            value, num_samples, batch.value = batch.value, batch.num_made, None
            if failure is not None:
                stage, slot, key = failure.stage, failure.slot, chain.segments[-1].key
                try:
                    raise failure.error
                finally:
                    del failure  # its traceback refers to this frame
            if batch.is_left_out:
                return []
        indices = batch.indices if batch.kept is None else batch.kept
        work = tally.work_at(key)
        is_timed = work.begin_batch(num_samples) or probe is not None
        if is_timed:
            watch.begin(batch)
        for stage, step in chain.finish:  # noqa: B007  # named after an error
            value = step(value, indices)
            if is_timed:
                watch.lap()
        seconds = perf_counter() - begin - (watch.take_lost() if is_timed else 0.0)
        work.end_batch(num_samples, seconds, watch.end() if is_timed else None)
    except BaseException as error:
        watch.fail(error)
        watch.take_lost()  # of a batch whose time is not counted
        if isinstance(error, Exception):  # Ctrl-C is no stage's
            tally.fail(key, said_stage(error, stage), num_samples)
            batch.failure = Failure(error, stage_of(error, stage), slot)
        raise
    finally:
        here.watch = before
        values = []  # a frame of the user's, kept by a traceback, keeps this one
    return value
