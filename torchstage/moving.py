"""Moving: one tensor or object in, what it is elsewhere out; and which tensors an object shows.

Guarantees: a tensor keeps its class, its attributes and ``requires_grad``; an object's own method is found only where
it takes what we would give it; nothing is changed.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from typing import Any, cast

import torch

Method = Callable[[], Any]

_as_plain: Any = vars(torch._C)["DisableTorchFunctionSubclass"]  # pyright: ignore[reportPrivateUsage]  # torch tells to
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


def as_it_was(tensor: torch.Tensor, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """``change(tensor)``, by torch's method of that name, with the tensor's class and attributes; a leaf of autograd
    stays a leaf. A class that has that method for its own, or that is no plain memory, changes itself."""
    kind = type(tensor)
    if kind is torch.Tensor and not tensor.requires_grad and not tensor.__dict__:
        return change(tensor)
    if tensor.grad_fn is not None or has_own(kind, name) or has_own(kind, "__torch_dispatch__"):
        return change(tensor)
    with _as_plain():
        plain = tensor.detach().as_subclass(torch.Tensor)
        changed = change(plain)
        if changed is plain:
            return tensor
        changed = changed.as_subclass(kind)
        if tensor.requires_grad:
            changed.requires_grad_()
    cast(Any, changed).__dict__.update(tensor.__dict__)
    return changed


def has_own(kind: type[torch.Tensor], name: str) -> bool:
    """Whether the class has this method of tensors for its own."""
    return getattr(kind, name) is not getattr(torch.Tensor, name)


def has_method(value: Any, name: str) -> bool:
    """Whether its class has a method of that name."""
    return callable(getattr(cast(Any, type(value)), name, None))


def parts_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that one consists of: mostly itself."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        for name in cast(Any, tensor).__tensor_flatten__()[0]:
            yield from parts_of(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())  # without coalescing
    elif tensor.layout in _COMPRESSED:
        yield from (getattr(tensor, name)() for name in (*_COMPRESSED[tensor.layout], "values"))
    elif tensor.is_nested:
        yield from tensor.unbind()[:1]  # all lie in the same memory
    else:
        yield tensor


def method_of(value: Any, name: str, device: torch.device) -> Method | None:
    """The object's own method of that name, ready to be called, if it can be told a device; None if it has none.

    Looked up in the class, for a mapping may answer with what it contains. Many classes have a ``to`` that is about
    something else, such as units or time zones: one that knows no device is left alone.
    """
    takes = _takes(cast(Any, type(value)), name)
    if takes is None:
        return None
    method = getattr(value, name)
    if name == "pin_memory":
        return partial(method, device=device.type) if "device" in takes else method
    keywords = {"non_blocking": True} if "non_blocking" in takes else {}
    return partial(method, device, **keywords)


@lru_cache(maxsize=256)
def _takes(kind: type, name: str) -> frozenset[str] | None:
    """What its method may be told, by name; None if there is no method, or one that knows no device."""
    function = getattr(kind, name, None)
    if not callable(function):
        return None
    if name == "pin_memory":
        try:
            return frozenset(inspect.signature(function).parameters)
        except (ValueError, TypeError):  # it is written in C
            return frozenset()
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return None
    if not parameters or isinstance(inspect.getattr_static(kind, name), staticmethod):
        return None
    if not isinstance(inspect.getattr_static(kind, name), classmethod):
        parameters = parameters[1:]
    names = frozenset(parameter.name for parameter in parameters)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    if "device" not in names and not (parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL):
        return None
    return names | {"non_blocking"} if takes_any else names


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that can be seen in containers, in dataclasses, and in the attributes of the
    object itself and of objects with a method ``to``."""
    yield from _seen_in(value, set(), is_first=True)


def _seen_in(value: Any, seen: set[int], *, is_first: bool = False) -> Iterator[torch.Tensor]:
    if value is None or isinstance(value, int | float | str | bytes | type) or id(value) in seen:
        return
    seen.add(id(value))
    inner: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        yield from parts_of(value)
        return
    if isinstance(value, Mapping):
        inner = cast("Mapping[Any, Any]", value).values()
    elif isinstance(value, Sequence):
        inner = cast("Sequence[Any]", value)
    elif is_dataclass(value):
        inner = [getattr(value, field.name, None) for field in fields(value)]
    for element in inner:
        yield from _seen_in(element, seen)
    if is_first or has_method(value, "to"):
        for attribute in _attributes_of(cast(Any, value)):
            yield from _seen_in(attribute, seen)


def _attributes_of(value: Any) -> list[Any]:
    slots = (name for kind in type(value).__mro__ for name in _names(getattr(kind, "__slots__", ())))
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots
