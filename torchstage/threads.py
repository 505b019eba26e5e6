"""Threads: the calling thread in, one that looks like a worker of torch's out.

``get_worker_info()`` answers in it, torch uses one core, ``worker_init_fn`` has run, and it may have objects for its
own. Frameworks see a ``Handle`` of it, as of a worker process.

Guarantees: nothing process-wide is changed but the code that ``worker_info`` replaces; ``worker_init_fn`` leaves the
process's random generators as they were.
"""

import ctypes
import os
import random
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data._utils.worker as torch_worker

from torchstage import rng, worker_info
from torchstage.copies import Private
from torchstage.engine.segment import Worker
from torchstage.errors import placed

_numpy_seed: Callable[[int, int], list[int]] = vars(torch_worker)["_generate_state"]  # torch leaves it untyped


class _ThisThread(threading.local):
    private: Private | None = None  # what this thread has for its own of the dataset and its functions


_this_thread = _ThisThread()


def _own_or(shared: Callable[[], Any]) -> Callable[[], Any]:
    """The calling thread's own dataset, if it has one."""
    return lambda: shared() if _this_thread.private is None else _this_thread.private.roots["dataset"]


def _weakly(dataset: Any) -> Callable[[], Any]:
    """The dataset, where it allows that without keeping it alive: an idle thread must not."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def _share() -> None:
    """In a child that a loader thread forked: it is nobody's loader thread."""
    _this_thread.private = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_share)


def private() -> Private | None:
    """What the calling thread has for its own of the dataset and its functions; None if it shares them."""
    return _this_thread.private


def have(own: Private | None) -> None:
    """From now on, this is the calling thread's own."""
    _this_thread.private = own


def set_up(
    number: int,
    num_workers: int,
    base_seed: int,
    dataset: Any,
    init_fn: Callable[[int], Any] | None,
    own: Private | None = None,
    *,
    has_scope: bool = False,
) -> None:
    """Make the calling thread loader thread ``number``, with ``own`` for its own, and random generators too if it is to
    have a scope. Raises what ``init_fn`` raises."""
    use_one_core()
    if has_scope:
        rng.enter_thread(rng.Scope.of_worker(base_seed, number, _numpy_seed(base_seed, number)))
    _this_thread.private = own
    worker_info.answer_here(number, num_workers, base_seed + number, _own_or(_weakly(dataset)))
    if init_fn is not None:
        with _cuda_restored() if has_scope else generators_seeded_and_restored(base_seed, number):
            run_init_fn(init_fn, number)
            if not has_scope:
                worker_info.was_seeded(torch.default_generator.initial_seed())  # it may have called manual_seed


def run_init_fn(init_fn: Callable[[int], Any], number: int) -> None:
    """``init_fn(number)``, whose error says what it was."""
    try:
        init_fn(number)
    except BaseException as error:
        if isinstance(error, StopIteration):
            raise placed(error, f"worker_init_fn({number})") from error
        placed(error, f"worker_init_fn({number})")
        raise


@contextmanager
def generators_seeded_and_restored(base_seed: int, number: int) -> Generator[None]:
    """The process's generators seeded as torch seeds them in a worker; afterwards what they were before.

    The caller sees to it that nobody draws meanwhile. CUDA's are looked after once CUDA is in use in this process.
    """
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.default_generator.manual_seed(base_seed + number)
    random.seed(base_seed + number)
    np.random.seed(_numpy_seed(base_seed, number))
    try:
        with _cuda_restored():
            yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def _cuda_restored() -> Generator[None]:
    """CUDA's generators afterwards what they were before, once CUDA is in use in this process."""
    states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        if states is not None:
            torch.cuda.set_rng_state_all(states)


def use_one_core() -> None:
    """Let torch's operators use one core in the calling thread. Other threads, also later ones, keep their number.

    ``torch.set_num_threads`` would become the default of every thread that torch meets later; OpenMP's own setting is
    the calling thread's alone, and so is MKL's, which need not use OpenMP. The first call lets torch set that thread
    up, so that it does not do so afterwards.
    """
    torch.get_num_threads()
    for runtime in _openmp_runtimes():
        runtime.omp_set_num_threads(1)
    for library in _mkl_libraries():
        library.MKL_Set_Num_Threads_Local(1)


_found_mkl: list[ctypes.CDLL] | None = None


def _mkl_libraries() -> list[ctypes.CDLL]:
    """MKL, where it is inside torch's own library or beside it, if it is loaded."""
    global _found_mkl
    if _found_mkl is None:
        folder = Path(torch.__file__ or "").parent / "lib"
        names = (str(folder / "libtorch_cpu.so"), "libmkl_rt.so.2", "libmkl_rt.so.1", "libmkl_rt.so")
        found = [library for name in names if (library := _if_loaded(name)) is not None]
        _found_mkl = [library for library in found if hasattr(library, "MKL_Set_Num_Threads_Local")]
    return _found_mkl


def _if_loaded(path: str) -> ctypes.CDLL | None:
    """RTLD_NOLOAD: only what this process has loaded already."""
    try:
        return ctypes.CDLL(path, mode=getattr(ctypes, "RTLD_NOLOAD", 4) | ctypes.RTLD_LOCAL)
    except OSError:
        return None


_found_runtimes: list[ctypes.CDLL] | None = None


def _openmp_runtimes() -> list[ctypes.CDLL]:
    global _found_runtimes
    if _found_runtimes is None:
        folder = Path(torch.__file__ or "").parent / "lib"
        paths = sorted(path for name in ("gomp", "iomp5", "omp") for path in folder.glob(f"lib{name}*"))
        _found_runtimes = [library for path in paths if (library := _if_loaded(str(path))) is not None]
    return _found_runtimes


class Handle:
    """A loader thread, looked at as one of torch's worker processes: alive or not, with this process's id."""

    daemon = True  # as torch's workers are

    def __init__(self, workers: Sequence[Worker], number: int, end_all: Callable[[], None]) -> None:
        self._workers = workers
        self._number = number
        self._end_all = end_all
        self.pid = os.getpid()

    @property
    def _thread(self) -> threading.Thread | None:
        return self._workers[self._number].thread if self._number < len(self._workers) else None

    @property
    def name(self) -> str | None:
        """The thread's name; None before it has started."""
        return self._thread.name if self._thread else None

    def is_alive(self) -> bool:
        """Whether it has started and not ended."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def exitcode(self) -> int | None:
        """None before it has ended, then 0: a thread has no other way to end."""
        return 0 if self._thread is not None and not self._thread.is_alive() else None

    def terminate(self) -> None:
        """Let it end, and the others of its pool, as soon as it is out of user code: a thread cannot be killed."""
        self._end_all()

    kill = terminate

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most ``timeout`` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
