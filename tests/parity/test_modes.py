"""Modes: what belongs to a thread in torch, numpy and Python is in a loader thread as in the consumer's."""

import contextlib
import contextvars
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from .datasets import Indices, Made, as_given
from .ways import INLINE, ONE_THREAD, PROCESSES, STAGED, STAGED_INLINE, THREADED, flat, on, on_all, on_both, on_threads

Enter = Callable[[], AbstractContextManager[Any]]


def modes() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )


@contextlib.contextmanager
def grad_inside_no_grad() -> Any:
    with torch.no_grad(), torch.enable_grad():
        yield


@contextlib.contextmanager
def autocast_without_grad() -> Any:
    with torch.autocast("cpu", dtype=torch.float16), torch.no_grad():
        yield


MODES: dict[str, tuple[Enter, tuple[Any, ...]]] = {
    "none": (contextlib.nullcontext, (True, False, False, torch.bfloat16)),
    "no grad": (torch.no_grad, (False, False, False, torch.bfloat16)),
    "grad off": (lambda: torch.set_grad_enabled(False), (False, False, False, torch.bfloat16)),
    "grad inside no grad": (grad_inside_no_grad, (True, False, False, torch.bfloat16)),
    "inference": (torch.inference_mode, (False, True, False, torch.bfloat16)),
    "autocast": (lambda: torch.autocast("cpu", dtype=torch.bfloat16), (True, False, True, torch.bfloat16)),
    "autocast to half": (lambda: torch.autocast("cpu", dtype=torch.float16), (True, False, True, torch.float16)),
    "autocast without grad": (autocast_without_grad, (False, False, True, torch.float16)),
}


@pytest.mark.parametrize("mode", MODES)
@on_both
def test_the_dataset_sees_the_consumer_s_modes(make_loader: Any, mode: str) -> None:
    enter, expected = MODES[mode]
    loader = make_loader(Made(6, lambda i: modes()), batch_size=None, collate_fn=as_given)
    before = modes()
    with enter():
        assert list(loader) == [expected] * 6
    assert modes() == before


@on(INLINE, PROCESSES, *STAGED)
def test_collate_sees_the_consumer_s_modes(make_loader: Any) -> None:
    loader = make_loader(Indices(3), collate_fn=lambda samples: modes()[:2])
    with torch.no_grad():
        assert list(loader) == [(False, False)] * 3


@on_both
def test_each_epoch_has_the_modes_it_began_with(make_loader: Any) -> None:
    keep = {"persistent_workers": True} if make_loader.num_workers else {}
    loader = make_loader(Made(3, lambda i: modes()[:2]), batch_size=None, collate_fn=as_given, **keep)
    for enter, expected in [
        (torch.no_grad, (False, False)),
        (torch.enable_grad, (True, False)),
        (torch.inference_mode, (False, True)),
    ]:
        with enter():
            assert list(loader) == [expected] * 3


@on_both
def test_two_iterators_have_the_modes_of_their_own_beginnings(make_loader: Any) -> None:
    """Both ask for their batches where they were made: inline there is no other thread to ask in."""
    loader = make_loader(Made(8, lambda i: torch.is_grad_enabled()), batch_size=2, collate_fn=all)
    one = iter(loader)
    assert next(one)
    with torch.no_grad():
        assert not any(loader)
    assert all(one)


@on_both
def test_what_is_computed_in_inference_mode_is_an_inference_tensor(make_loader: Any) -> None:
    loader = make_loader(Made(3, lambda i: torch.ones(2) * i), batch_size=3)
    with torch.inference_mode():
        (batch,) = loader
    assert batch.is_inference()


@on_all
def test_autocast_computes_in_the_dataset_as_it_would_here(make_loader: Any) -> None:
    weight = torch.ones(2, 2)
    loader = make_loader(Made(3, lambda i: (torch.ones(1, 2) @ weight).dtype), batch_size=None, collate_fn=as_given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert list(loader) == [torch.bfloat16] * 3
    assert list(loader) == [torch.float32] * 3


def default_device() -> str:
    try:
        return str(torch.get_default_device())
    except AttributeError:  # torch 2.9's way to say, after set_default_device(None), that there is none
        return "cpu"


@on_all
def test_the_dataset_sees_the_consumer_s_default_device(make_loader: Any) -> None:
    keep = {"persistent_workers": True} if make_loader.has_threads else {}
    loader = make_loader(Made(3, lambda i: default_device()), batch_size=None, **keep)
    with torch.device("cpu", 0):  # a device with a number is another one, even where no other device is
        assert list(loader) == ["cpu:0"] * 3
    assert list(loader) == ["cpu"] * 3
    torch.set_default_device("cpu:0")
    try:
        assert list(loader) == ["cpu:0"] * 3
    finally:
        torch.set_default_device(None)
    assert list(loader) == ["cpu"] * 3


# Not torch's, or not taken over ---------------------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@on_all
def test_the_dataset_sees_the_consumer_s_context_variables(make_loader: Any) -> None:
    token = variable.set("mine")
    try:
        loader = make_loader(Made(3, lambda i: variable.get()), batch_size=None)
        assert list(loader) == ["mine"] * 3
    finally:
        variable.reset(token)


@on(INLINE, PROCESSES, STAGED_INLINE, ONE_THREAD)
def test_each_epoch_has_the_context_variables_it_began_with(make_loader: Any) -> None:
    keep = {"persistent_workers": True} if make_loader.has_threads else {}
    loader = make_loader(Made(3, lambda i: variable.get()), batch_size=None, **keep)
    seen = []
    for value in ("one", "two"):
        token = variable.set(value)
        seen.append(list(loader))
        variable.reset(token)
    seen.append(list(loader))
    del loader
    assert seen == [["one"] * 3, ["two"] * 3, ["unset"] * 3]


@on_all
def test_numpy_raises_in_the_dataset_what_it_would_raise_here(make_loader: Any) -> None:
    def divide(index: int) -> str:
        try:
            return str(np.float64(1) / np.float64(0))
        except FloatingPointError:
            return "raised"

    with np.errstate(divide="raise"):
        assert list(make_loader(Made(3, divide), batch_size=None)) == ["raised"] * 3


@on_threads
def test_a_context_variable_that_the_dataset_sets_stays_out_of_the_consumer(make_loader: Any) -> None:
    def change(index: int) -> int:
        variable.set("the dataset's")
        return index

    assert flat(make_loader(Made(9, change))) == list(range(9))
    assert variable.get() == "unset"


class OnesAreTwos(TorchFunctionMode):
    """A function mode of the user's own, which belongs to a thread."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ones else result


@on(INLINE, PROCESSES, *STAGED, broken=THREADED, reason="of function modes only the default device is taken over")
def test_the_dataset_sees_the_consumer_s_function_modes(make_loader: Any) -> None:
    loader = make_loader(Made(3, lambda i: int(torch.ones(()))), batch_size=None)
    with OnesAreTwos():
        assert list(loader) == [2] * 3


@on_threads
def test_a_mode_that_the_dataset_sets_stays_out_of_the_consumer(make_loader: Any) -> None:
    def change(index: int) -> int:
        torch.set_grad_enabled(False)
        return index

    assert flat(make_loader(Made(9, change))) == list(range(9))
    assert torch.is_grad_enabled()


@on(STAGED_INLINE, *THREADED)
def test_a_warning_of_the_dataset_reaches_the_consumer(make_loader: Any) -> None:
    def complain(index: int) -> int:
        warnings.warn(f"sample {index} is odd", RuntimeWarning, stacklevel=1)
        return index

    with pytest.warns(RuntimeWarning, match="sample 0 is odd"):
        assert flat(make_loader(Made(1, complain))) == [0]
