"""Compare: two loaders in, whether they give the same and what each of them costs out.

Guarantees: nothing is called equal that was not compared; the process's random generators are afterwards as before.
"""

import pickle
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal

from torchstage.comparison.fresh import FreshSide, Rank
from torchstage.comparison.nearly import Tolerance
from torchstage.comparison.patience import generators_left_alone
from torchstage.comparison.reading import Settings, Side, check
from torchstage.comparison.report import Comparison
from torchstage.comparison.run import NAMES, Here, Order, Run

Restart = int | Literal["auto"] | None


def compare(
    reference: Any,
    candidate: Any,
    *,
    epochs: int = 2,
    order: Order = "exact",
    restart: Restart = "auto",
    seed: int | None = 0,
    set_epoch: bool = False,
    tolerance: float | tuple[float, float] | None = None,
    strides: bool = False,
    max_batches: int | None = None,
    max_differences: int = 10,
    timeout: float | None = None,
    timed_epochs: int = 1,
    fresh_processes: bool = False,
    ranks: int | None = None,
    process_group: bool = False,
) -> Comparison:
    """Whether two loaders give the same batches, and what each of them costs. ``print`` shows a table.

    Each loader is read alone, one after the other, and which one comes first alternates from epoch to epoch. Of each
    batch a fingerprint is kept: values bit by bit, dtypes, shapes, types of containers, order of keys.

    Args:
        reference: what gives batches once an epoch, such as a DataLoader, a StageLoader or another library's loader; or
            a function without arguments that makes one, or that gives an iterator for one epoch. A restart, ranks and
            fresh processes need functions.
        candidate: likewise; what the reference is compared with.
        epochs: how many are compared.
        order: "exact": batch by batch. "any": the same samples in each epoch, in whatever order, in batches of the same
            sizes.
        restart: the batch before which a restart is tried, in the first epoch: the state is saved, and a new loader
            goes on there. "auto": in the middle, for a candidate that has ``state_dict`` and ``load_state_dict``.
            Where the reference has none, what the candidate gives after it is compared with the reference's epoch as
            it was. None: no restart.
        seed: the global generators of torch, NumPy and Python are seeded before each loader is made, and before each
            epoch anew, so that both loaders shuffle alike. None: they are not.
        set_epoch: whether ``set_epoch`` of the loader, else of its samplers and dataset, is called before each epoch.
        tolerance: a number, or (relative, absolute): floating-point values may differ by
            ``absolute + relative * |reference|``; an epoch of them is kept in a temporary file. None: every bit counts.
        strides: whether the strides of tensors and arrays count.
        max_batches: of each epoch, no more are read. For loaders without an end it is needed.
        max_differences: how many are kept; the others are counted.
        timeout: seconds to wait for a batch. A loader that takes longer is left alone, and that is a difference.
        timed_epochs: how many epochs are read once more for time, CPU and memory, without fingerprints. 0: none.
        fresh_processes: whether each loader has a process of its own: then memory is its own, too.
        ranks: how many processes make and read each loader, with RANK and WORLD_SIZE set; they are compared by rank.
        process_group: ranks: whether ``torch.distributed`` is initialised in them, with gloo.

    Raises:
        TypeError: for arguments that cannot be compared.
        ValueError: for numbers and words that mean nothing here.
        Exception: whatever a function that makes a loader raises; from another process, CannotCompare with its words.
    """
    _check(epochs=epochs, max_differences=max_differences, timed_epochs=timed_epochs)
    _check_more(order, restart, tolerance, max_batches, ranks)
    if process_group and ranks is None:
        raise ValueError("torchstage.compare: process_group=True needs ranks: how many processes are in the group.")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"torchstage.compare: timeout must be a number of seconds above 0, or None, got {timeout!r}.")
    known = (
        Tolerance(*(tolerance if isinstance(tolerance, tuple) else (tolerance, 0.0))) if tolerance is not None else None
    )
    with ExitStack() as stack:
        folder = None
        if tolerance is not None or process_group:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="torchstage-compare-"))
        store = folder if tolerance is not None else None
        settings = Settings(seed, set_epoch, max_batches, timeout, strides, store)
        sides: list[Sequence[Any]] = []
        for name, given in zip(NAMES, (reference, candidate), strict=True):
            group = f"{folder}/{name}.group" if process_group else None
            made = _sides(given, settings, name, fresh_processes, ranks, group, stack)
            sides.append(made)
        stack.enter_context(generators_left_alone())
        run = Run(sides[0], sides[1], order, known, max_differences, ranks, set_epoch)
        run.note_shared(reference, candidate)
        for epoch in range(epochs):
            run.compare_epoch(epoch)
            if epoch == 0 and restart is not None and not run.has_hung:
                run.compare_restart(restart)
            if run.has_hung:
                break
        run.check_that_there_was_something()
        costs = run.costs(epochs, 0 if run.has_hung else timed_epochs)
        return run.comparison(costs, max_batches)


def _sides(
    given: Any,
    settings: Settings,
    name: str,
    fresh_processes: bool,
    ranks: int | None,
    group: str | None,
    stack: ExitStack,
) -> list[Any]:
    is_factory = _is_factory(given, name)
    if not fresh_processes and ranks is None:
        side = Side(given, settings, name, is_factory=is_factory)
        stack.callback(side.close)
        return [Here(side)]
    if not is_factory:
        raise TypeError(
            f"torchstage.compare: ranks and fresh processes need a function that makes the {name}, got a "
            f"{type(given).__name__}."
        )
    try:
        make = pickle.dumps(given)
    except Exception as error:
        raise TypeError(
            f"torchstage.compare: the function that makes the {name} cannot be sent to another process ({error}). "
            "Give a function of a module, not a lambda."
        ) from error
    made: list[FreshSide] = []
    for number in range(ranks or 1):
        rank = None if ranks is None else Rank(number, ranks, group)
        side = FreshSide(make, settings, name, rank)
        stack.callback(side.close)
        made.append(side)
    return made


def _is_factory(given: Any, name: str) -> bool:
    if isinstance(given, type) or (callable(given) and not hasattr(type(given), "__iter__")):
        return True
    if type(given).__module__ == "builtins" and hasattr(given, "__next__"):
        raise TypeError(
            f"torchstage.compare: the {name} is a {type(given).__name__}, which is used up after one epoch. Give a "
            "function that makes one."
        )
    check(given, name)
    return False


def _check(**numbers: Any) -> None:
    least = {"epochs": 1, "max_differences": 1, "timed_epochs": 0}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
            raise ValueError(
                f"torchstage.compare: {name} must be a whole number of at least {least[name]}, got {value!r}."
            )


def _check_more(order: Any, restart: Any, tolerance: Any, max_batches: Any, ranks: Any) -> None:
    if order not in ("exact", "any"):
        raise ValueError(f"torchstage.compare: order must be 'exact' or 'any', got {order!r}.")
    if tolerance is not None and order == "any":
        raise ValueError(
            "torchstage.compare: a tolerance needs order='exact': samples in any order are found by their bits."
        )
    if restart not in (None, "auto") and (not isinstance(restart, int) or isinstance(restart, bool)):
        raise ValueError(f"torchstage.compare: restart must be a batch number, 'auto' or None, got {restart!r}.")
    for name, value in (("max_batches", max_batches), ("ranks", ranks)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise ValueError(
                f"torchstage.compare: {name} must be a whole number of at least 1, or None, got {value!r}."
            )
