"""Errors: a failure and where it happened in, the user's own exception with a note that says so out.

Guarantees: the exception raised is the object that user code raised, with its own traceback; only StopIteration, which
would silently end the epoch, is wrapped.
"""

import operator
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, cast

from torchstage.engine.segment import Worker
from torchstage.engine.ticket import Batch


def place(batch: Batch, stage: str, slot: int | None, dataset: Any, sample: int | None = None) -> str:
    """One sentence: ``stage 'fetch', dataset index 17 (cat/3.jpg), batch 2``. ``sample``: where the slot is a whole
    batch, the place of the sample in it, if it is one sample's error."""
    words = [f"stage {stage!r}"]
    indices = batch.indices
    if batch.chain.is_counted and slot == 0:  # the slot is the whole batch
        slot, indices = sample, indices[0] if isinstance(indices[0], list) else indices
    if batch.chain.lane is not None:
        words.append(f"lane {batch.chain.lane}")
    elif slot is not None and slot < len(indices):
        index = indices[slot]
        try:
            file = file_of(dataset, index)
        except Exception:  # a property of the user's: the error itself matters more
            file = None
        words.append(f"dataset index {index!r}" + (f" ({file})" if file else ""))
    return ", ".join([*words, f"batch {batch.number}"])


def placed(error: BaseException, where: str) -> BaseException:
    """The same exception with a note that names its place, or a RuntimeError caused by it if it is a StopIteration."""
    if isinstance(error, StopIteration):
        wrapper = RuntimeError(
            f"StopIteration was raised in {where}. It would have ended the epoch in silence; raise IndexError, or end "
            "the sampler earlier."
        )
        wrapper.__cause__ = error
        return wrapper
    add_note(error, f"torchstage: raised in {where}")
    return error


def add_note(error: BaseException, note: str) -> None:
    """As ``error.add_note``, once for each text (one exception object may be raised for many samples), and also on an
    exception whose class forbids to set attributes, as a frozen dataclass does."""
    notes: list[str] = getattr(error, "__notes__", [])
    if note not in notes:
        BaseException.__setattr__(error, "__notes__", [*notes, note])


def file_of(dataset: Any, index: Any) -> str | None:
    """The file that a sample comes from, where the dataset tells it: a list ``samples`` or ``imgs`` of (path, ...) as
    torchvision's folders have, also behind ``Subset``. None if unknown."""
    for _ in range(8):  # subsets of subsets
        indices = getattr(dataset, "indices", None)
        if indices is None or not hasattr(dataset, "dataset"):
            break
        try:
            index = indices[index]
        except (TypeError, IndexError, KeyError):
            return None
        dataset = dataset.dataset
    for name in ("samples", "imgs"):
        entries: Any = getattr(dataset, name, None)
        if isinstance(entries, list | tuple):
            try:
                entry: Any = cast("Sequence[Any]", entries)[operator.index(index)]
                path: Any = entry if isinstance(entry, str) else entry[0]
            except (IndexError, TypeError, KeyError):
                return None
            return path if isinstance(path, str) else None
    return None


def stack_of(worker: Worker) -> str:
    """The Python stack of a thread at this moment, innermost call last."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]  # documented by Python all the same
    frame = frames.get(worker.thread.ident or 0)
    return "".join(traceback.format_stack(frame)) if frame else "(it has just ended)\n"


def warn_user(message: str) -> None:
    """A UserWarning that points at the user's line: the nearest frame that is neither ours nor torch's DataLoader."""
    frame, level = sys._getframe(1), 2  # pyright: ignore[reportPrivateUsage]  # documented by Python all the same
    while frame is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "torchstage" or module == "torch.utils.data.dataloader"
