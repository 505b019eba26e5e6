"""Threads: what user code sees of the thread it runs in.

A loader thread looks like one of torch's workers: ``get_worker_info()`` answers, grad mode, inference mode, autocast
and the current device are the consumer's, torch uses one core in it, and ``worker_init_fn`` has run.

Guarantees: nothing process-wide is changed but the code of ``torch.utils.data.get_worker_info`` and of
``torch.initial_seed``, which answer elsewhere what they always did;
``worker_init_fn`` leaves the process's random generators as they were.
"""

import contextvars
import ctypes
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data._utils.collate as torch_collate
import torch.utils.data._utils.worker as torch_worker

from torchstage import rng
from torchstage.copies import Private
from torchstage.engine.segment import Worker
from torchstage.errors import placed

MODE_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")  # device types whose autocast mode a thread takes over


_numpy_seed: Callable[[int, int], list[int]] = vars(torch_worker)["_generate_state"]  # torch leaves it untyped


class _ThisThread(threading.local):
    info: Callable[[], Any] | None = None
    initial_seed: int = 0
    private: Private | None = None  # what this thread has for its own of the dataset and its functions
    modes: ExitStack | None = None
    tokens: list[tuple[contextvars.ContextVar[Any], contextvars.Token[Any]]] = []  # noqa: RUF012  # replaced, not changed


_this_thread = _ThisThread()


# What torch's functions answer ------------------------------------------------------------------------------


def _answer(elsewhere: Any) -> Any:
    """The info of this loader thread; elsewhere, what torch itself would answer.

    torch's own collate functions are told "no worker": in a worker they would collate into shared memory.
    """
    info = _this_thread.info
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


def worker_info(number: int, num_workers: int, seed: int, dataset: Callable[[], Any]) -> Any:
    """torch's own WorkerInfo for one thread; releases before 2.12 know no ``worker_method``."""
    known: dict[str, Any] = {"id": number, "num_workers": num_workers, "seed": seed, "dataset": dataset()}
    try:
        scope = rng.current()
        return torch_worker.WorkerInfo(**known, worker_method="thread", rng=cast(Any, scope and scope.rng))
    except TypeError:
        return torch_worker.WorkerInfo(**known)


def _own_or(shared: Callable[[], Any]) -> Callable[[], Any]:
    """The calling thread's own dataset, if it has one."""
    return lambda: shared() if _this_thread.private is None else _this_thread.private.roots["dataset"]


def _weakly(dataset: Any) -> Callable[[], Any]:
    """The dataset, where it allows that without keeping it alive: an idle thread must not."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def _forget_this_thread() -> None:
    """In a child that a loader thread forked: it is nobody's loader thread."""
    _this_thread.info = None
    _this_thread.private = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_this_thread)


# Set-up of a thread -----------------------------------------------------------------------------------------


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
    _this_thread.initial_seed = base_seed + number
    _this_thread.info = partial(worker_info, number, num_workers, base_seed + number, _own_or(_weakly(dataset)))
    if init_fn is not None:
        with _cuda_restored() if has_scope else generators_seeded_and_restored(base_seed, number):
            try:
                init_fn(number)
            except BaseException as error:
                if isinstance(error, StopIteration):
                    raise placed(error, f"worker_init_fn({number})") from error
                placed(error, f"worker_init_fn({number})")
                raise
            if not has_scope:
                _this_thread.initial_seed = torch.default_generator.initial_seed()  # it may have called manual_seed


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
    the calling thread's alone. The first call lets torch set that thread up, so that it does not do so afterwards.
    """
    torch.get_num_threads()
    for runtime in _openmp_runtimes():
        runtime.omp_set_num_threads(1)


_found_runtimes: list[ctypes.CDLL] | None = None


def _openmp_runtimes() -> list[ctypes.CDLL]:
    global _found_runtimes
    if _found_runtimes is None:
        _found_runtimes = []
        folder = Path(torch.__file__ or "").parent / "lib"
        for path in sorted(path for name in ("gomp", "iomp5", "omp") for path in folder.glob(f"lib{name}*")):
            try:  # RTLD_NOLOAD: only what this process has loaded already
                _found_runtimes.append(
                    ctypes.CDLL(str(path), mode=getattr(ctypes, "RTLD_NOLOAD", 4) | ctypes.RTLD_LOCAL)
                )
            except OSError:
                continue
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


# Modes that belong to a thread ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Modes:
    """The modes of torch that belong to a thread, as they were in the consumer's thread at ``iter()``."""

    grad: bool
    inference: bool
    autocast: tuple[tuple[str, Any], ...]  # device types it is on for, with their dtypes
    device_index: int | None  # current accelerator, None without one
    default_device: torch.device
    context: contextvars.Context  # context variables: NumPy's errstate, decimal's precision, the user's own

    @classmethod
    def of_this_thread(cls) -> "Modes":
        on = tuple((d, torch.get_autocast_dtype(d)) for d in MODE_DEVICES if _is_autocast_enabled(d))
        device = torch.accelerator.current_device_index() if _has_accelerator_in_use() else None
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return cls(grad, inference, on, device, torch.get_default_device(), contextvars.copy_context())

    def enter(self) -> None:
        """Set the calling thread to these modes, until it enters others or ends."""
        if _this_thread.modes is not None:
            _this_thread.modes.close()
        _this_thread.modes = stack = ExitStack()
        if self.device_index is not None:
            torch.accelerator.set_device_index(self.device_index)
        for variable, token in _this_thread.tokens:
            variable.reset(token)
        _this_thread.tokens = [(variable, variable.set(value)) for variable, value in self.context.items()]
        if self.default_device != torch.get_default_device():
            stack.enter_context(self.default_device)
        if self.inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, dtype in self.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))


def _is_autocast_enabled(device_type: str) -> bool:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # this build of torch does not know that device
        return False


def _has_accelerator_in_use() -> bool:
    """Whether the current device can be asked for without a side effect: CUDA must not be started by a CPU loader."""
    return torch.cuda.is_initialized() and hasattr(torch, "accelerator") and torch.accelerator.is_available()
