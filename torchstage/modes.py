"""Modes: torch's modes of the consumer's thread in, the same modes in a loader thread out.

Guarantees: only the calling thread's modes change; CUDA is not started by looking.
"""

import contextvars
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

MODE_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu")  # device types whose autocast mode a thread takes over


class _ThisThread(threading.local):
    modes: ExitStack | None = None
    tokens: list[tuple[contextvars.ContextVar[Any], contextvars.Token[Any]]] = []  # noqa: RUF012  # replaced, not changed


_this_thread = _ThisThread()


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
        return cls(grad, inference, on, device, _default_device(), contextvars.copy_context())

    def __reduce__(self) -> tuple[Any, ...]:
        """To a process go the modes that have a meaning there: context variables stay, and so does the accelerator."""
        return _elsewhere, (self.grad, self.inference, self.autocast, self.default_device)

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
        if self.default_device != _default_device():
            stack.enter_context(self.default_device)
        if self.inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(self.grad))
        for device, dtype in self.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))


def _elsewhere(grad: bool, inference: bool, autocast: tuple[tuple[str, Any], ...], device: torch.device) -> Modes:
    return Modes(grad, inference, autocast, None, device, contextvars.Context())


def _default_device() -> torch.device:
    try:
        return torch.get_default_device()
    except AttributeError:  # torch 2.9's way to say, after set_default_device(None), that there is none
        return torch.device("cpu")


def _is_autocast_enabled(device_type: str) -> bool:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # this build of torch does not know that device
        return False


def _has_accelerator_in_use() -> bool:
    """Whether the current device can be asked for without a side effect: CUDA must not be started by a CPU loader."""
    return torch.cuda.is_initialized() and hasattr(torch, "accelerator") and torch.accelerator.is_available()
