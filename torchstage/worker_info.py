"""Worker info: a loader thread's number, seed and dataset in, what torch tells a worker process of itself out.

Guarantees: nothing process-wide is changed but the code of ``torch.utils.data.get_worker_info`` and of
``torch.initial_seed``, which answer elsewhere what they always did.
"""

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType, FunctionType
from typing import Any, cast

import torch
import torch.utils.data._utils.collate as torch_collate
import torch.utils.data._utils.worker as torch_worker

from torchstage import rng


class _ThisThread(threading.local):
    info: Callable[[], Any] | None = None
    initial_seed: int = 0


_this_thread = _ThisThread()
_everywhere: list[Callable[[], Any] | None] = [None]  # in a process of a loader's: what threads of the user's are told


def _answer(elsewhere: Any) -> Any:
    """The info of this loader thread; elsewhere, what torch itself would answer.

    torch's own collate functions are told "no worker": in a worker they would collate into shared memory.
    """
    info = _this_thread.info or _everywhere[0]
    if info is None:
        return elsewhere
    caller: FrameType = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  # documented by Python all the same
    return elsewhere if caller.f_globals is torch_collate.__dict__ else info()


def _answer_seed(elsewhere: int) -> int:
    """The seed of this loader thread, as in torch's worker of the same number; elsewhere the process's."""
    scope = rng.current()  # it knows what user code seeded since
    if scope is not None:
        return scope.initial_seed
    return elsewhere if _this_thread.info is None else _this_thread.initial_seed


def _get_worker_info() -> Any:
    return _torchstage_answer(_worker_info)  # type: ignore[name-defined]  # noqa: F821  # globals of torch's module


def _initial_seed() -> int:
    return _torchstage_answer_seed(default_generator.initial_seed())  # type: ignore[name-defined]  # noqa: F821  # likewise


def install_answers() -> None:
    """Let ``get_worker_info`` and ``initial_seed`` answer in loader threads, whoever imported them and when: their
    code is replaced, not their names."""
    if "_torchstage_answer" in torch_worker.__dict__:
        return
    torch_worker.__dict__["_torchstage_answer"] = _answer
    torch_worker.get_worker_info.__code__ = cast(FunctionType, _get_worker_info).__code__
    torch.random.__dict__["_torchstage_answer_seed"] = _answer_seed
    torch.random.initial_seed.__code__ = cast(FunctionType, _initial_seed).__code__


def answer_here(
    number: int, num_workers: int, seed: int, dataset: Callable[[], Any], *, method: str = "thread"
) -> None:
    """From now on, the calling thread is told that it is this worker, with this seed and what ``dataset()`` gives; with
    the method "multiprocessing", so is every thread of this process."""
    _this_thread.initial_seed = seed
    _this_thread.info = partial(_worker_info_of, number, num_workers, seed, dataset, method)
    if method != "thread":
        _everywhere[0] = _this_thread.info


def was_seeded(seed: int) -> None:
    """From now on, this is what the calling thread's generators began with."""
    _this_thread.initial_seed = seed


def _worker_info_of(number: int, num_workers: int, seed: int, dataset: Callable[[], Any], method: str) -> Any:
    """torch's own WorkerInfo for one thread; releases before 2.12 know no ``worker_method``."""
    known: dict[str, Any] = {"id": number, "num_workers": num_workers, "seed": seed, "dataset": dataset()}
    try:
        scope = rng.current()
        return torch_worker.WorkerInfo(**known, worker_method=cast(Any, method), rng=cast(Any, scope and scope.rng))
    except TypeError:
        return torch_worker.WorkerInfo(**known)


def _forget_this_thread() -> None:
    """In a child that a loader thread forked: it is nobody's loader thread."""
    _this_thread.info = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_this_thread)
