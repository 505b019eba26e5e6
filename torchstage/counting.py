"""Counting: an iterator in, the same one, whose every batch and every wait is counted, out.

Guarantees: what is counted costs a microsecond or two a batch; nothing keeps the iterator.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from torch.utils.data.dataloader import _BaseDataLoaderIter  # pyright: ignore[reportPrivateUsage]  # the seam

from torchstage.engine.ledger import Site, Steps
from torchstage.engine.stats import Tally
from torchstage.engine.told import Ran, this_thread
from torchstage.lineup import TORCHS, Lined
from torchstage.moving import tensors_in
from torchstage.resumed import Resumed, next_data_of

if TYPE_CHECKING:
    from torchstage.loader import StageLoader


def counted(iterator: Any, loader: "StageLoader[Any]", setup_seconds: float) -> None:
    """Count what the iterator hands out in the epoch that begins, for which so much time went by already."""
    if not isinstance(iterator, _BaseDataLoaderIter):  # a subclass has one of its own
        return
    known: Any = iterator
    steps: Steps | None = known.__dict__.get("_steps")
    if steps is None:
        known._steps = steps = loader.ledger.steps(iterator)
        if not hasattr(iterator, "counts_itself"):
            next_data = _of_torchs_own(iterator, loader, steps, next_data_of(iterator))
            known._next_data = partial(steps.count, next_data)
    steps.begin(setup_seconds)


def _of_torchs_own(
    iterator: Any, loader: "StageLoader[Any]", steps: Steps, next_data: Callable[[], Any]
) -> Callable[[], Any]:
    """Of iterators that torch makes batches in, only what comes out is known."""
    num_workers: int = iterator._num_workers
    site = Site("process" if num_workers else "inline", num_workers or 1, TORCHS)
    loader.ledger.lineup = (Lined("fetch", False, site),)
    steps.num_elsewhere = partial(_num_outstanding, weakref.ref(iterator))
    tally = loader.ledger.tally(site.label)
    weakref.finalize(iterator, setattr, tally, "is_over", True).atexit = False
    resumed: Resumed | None = iterator.__dict__.get("_resumed")
    next_counted: Callable[[], tuple[Any, int]]
    if resumed is not None:
        next_counted = partial(_next_indexed, resumed, next_data)
    else:
        is_batched: bool = cast(Any, loader)._auto_collation
        next_counted = partial(_next_read, next_data, (loader.batch_size or 0) if is_batched else None)
    return partial(_counted, steps, tally, next_counted, not num_workers)


def _next_indexed(resumed: Resumed, next_data: Callable[[], Any]) -> tuple[Any, int]:
    """The next batch of a map-style dataset, and how many indices it was asked for."""
    position = resumed.epoch.position
    before = position.num_samples
    batch = next_data()
    now = resumed.epoch.position
    return batch, now.num_samples - (before if now is position else 0)


def _next_read(next_data: Callable[[], Any], size: int | None) -> tuple[Any, int]:
    """The next batch of an iterable dataset, and how many samples it seems to have."""
    batch = next_data()
    return batch, 1 if size is None else _num_in(batch, size)


def _counted(steps: Steps, tally: Tally, next_counted: Callable[[], tuple[Any, int]], is_inline: bool) -> Any:
    work = tally.work(("fetch",))
    num_bad, num_filtered = steps.num_bad, steps.num_filtered
    try:
        batch, number = next_counted()
    except StopIteration:
        raise
    except Exception:
        tally.fail((False, ("fetch",)), "fetch", 0)
        raise
    finally:  # of an iterable dataset that is read inline
        if num_new := steps.num_bad + steps.num_filtered - num_bad - num_filtered:
            work.num_samples += num_new
            work.stages[0].num_lost += num_new
            work.stages[0].num_errors += steps.num_bad - num_bad
    steps.num_samples += number
    work.num_samples += number
    if is_inline and number and steps.called_at is not None:
        seconds = steps.seconds_since_call()
        work.seconds += seconds
        work.add([(seconds, None)], number, number)
        if (probe := steps.probes.now) is not None:
            begin = steps.called_at
            probe.tell("ran", Ran("fetch", begin, begin + seconds, this_thread(), num_samples=number))
    return batch


def _num_in(batch: Any, size: int) -> int:
    """The samples of a batch, by its first tensor; no more than the batch size, which it is where there is none."""
    try:
        found = next((len(tensor) for tensor in tensors_in(batch) if tensor.ndim), size)
    except Exception:  # a user's object with a mind of its own
        found = size
    return min(found, size) if size else found


def _num_outstanding(iterator: Callable[[], Any]) -> int:
    return getattr(iterator(), "_tasks_outstanding", 0)
