"""Torch draws: torch's random operators in, the same operators with the calling thread's own generator out.

torch's draws come from one generator of the process unless a call names another. Here each random operator gets a
kernel on a dispatch key of torch that nothing else uses. torch looks at that key only in threads that turn it on:
other threads, and operators that draw nothing, run as without it. The kernel adds the thread's generator and calls
the operator again. It stands below Python, so dropout, TorchScript and C++ extensions come to it too.

Guarantees: a thread that is not diverted behaves and draws as before; a diverted one leaves the process's CPU generator
alone, unless it calls methods of ``torch.default_generator`` itself; draws on other devices are not touched.
"""

from collections.abc import Callable, Generator
from types import FunctionType
from typing import Any, Protocol, cast

import torch
from torch.library import Library, fallthrough_kernel

# Made for tests of the dispatcher: torch gives it no meaning, and of all keys that can be turned on for one thread it
# is the only one that nothing uses.
KEY = "TESTING_ONLY_GenericMode"

# All operators that draw from a generator themselves; the others call one of these. A test reads torch's own list.
RANDOM_OPERATORS = (
    "_fused_dropout",
    "_sample_dirichlet",
    "_standard_gamma",
    "bernoulli",
    "bernoulli_",
    "binomial",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal",
    "normal_",
    "poisson",
    "random_",
    "randperm",
    "rrelu_with_noise",
    "rrelu_with_noise_",
    "uniform_",
)

_C: Any = vars(torch)["_C"]  # private, and untyped where it is not
_default: int = cast(Any, torch.default_generator)._cdata  # its address: a kernel gets another object for the same
_key: Any = _C._parse_dispatch_key(KEY)
_set_included: Callable[[Any, bool], None] = _C._dispatch_tls_set_dispatch_key_included
_libraries: list[Library] = []  # the registrations last as long as these


class Source(Protocol):
    """Where a diverted thread's draws come from."""

    @property
    def torch(self) -> torch.Generator: ...
    @property
    def initial_seed(self) -> int: ...
    def seed_torch(self, seed: int | None) -> None: ...


Own = Callable[[], torch.Generator | None]  # None: the thread draws from the process's generator after all


def divert(is_on: bool) -> None:
    """From now on the calling thread's draws come from its own generator, or again from the process's."""
    _set_included(_key, is_on)


def install(current: Callable[[], Source | None], own: Own) -> None:
    """Make it possible to divert threads.

    Args:
        current: answers with the source of the calling thread, if it has one.
        own: the same source's generator, by the shortest way: it is asked for each draw.
    """
    fallback: Any = Library("_", "IMPL")
    fallback.fallback(fallthrough_kernel, KEY)
    kernels: Any = Library("aten", "IMPL", KEY)
    for name in RANDOM_OPERATORS:
        packet: Any = getattr(torch.ops.aten, name)
        for operator in (getattr(packet, overload) for overload in packet.overloads()):
            if _takes_generator(operator):
                kernels.impl(operator, _kernel(operator, name, own), KEY)
    _libraries.extend((fallback, kernels))
    _let_functions_follow(current)


def _takes_generator(operator: Any) -> bool:
    """And a tensor, which says on which device it draws: those that take none make one, and fill it by another call."""
    arguments = operator._schema.arguments
    return any(a.name == "generator" for a in arguments) and any(str(a.type) == "Tensor" for a in arguments)


# Operators --------------------------------------------------------------------------------------------------


def _kernel(operator: Any, name: str, own: Own) -> Callable[..., Any]:
    method = getattr(_C.TensorBase, name, None) if name.endswith("_") else None
    return _in_place(method, own) if method is not None else _general(operator, own)


def _in_place(draw: Callable[..., Any], own: Own) -> Callable[..., Any]:
    """Kernel of an operator that fills a tensor: nearly all draws end here, so it takes the shortest way, the method
    of Tensor that has just been called. A call by operator costs 2 us more, 30 us while its code is not in the cache.
    """

    def kernel(tensor: torch.Tensor, *arguments: Any, generator: torch.Generator | None = None) -> Any:
        _set_included(_key, False)  # or the call below would come here again
        try:
            if (generator is None or _is_default(generator)) and tensor.is_cpu:
                generator = own()
            return draw(tensor, *arguments, generator=generator)
        finally:
            _set_included(_key, True)

    return kernel


def _general(operator: Any, own: Own) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]
    place = names.index("generator")

    def kernel(*arguments: Any, **named: Any) -> Any:
        _set_included(_key, False)
        try:
            given: Any = arguments[place] if len(arguments) > place else named.get("generator")
            if (given is None or _is_default(given)) and _is_on_cpu((*arguments, *named.values())):
                arguments, named["generator"] = arguments[:place], own()
            return operator(*arguments, **named)
        finally:
            _set_included(_key, True)

    return kernel


def _is_default(generator: Any) -> bool:
    return generator._cdata == _default


def _is_on_cpu(arguments: tuple[Any, ...]) -> bool:
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return all(tensor.is_cpu for tensor in tensors)


# Functions of torch.random ----------------------------------------------------------------------------------


class _Functions:
    """What torch's functions do: the source's part in a thread that has one, torch's own elsewhere.

    In a thread with a source they leave accelerators alone: torch's own would seed them for the whole process.
    """

    def __init__(self, current: Callable[[], Source | None]) -> None:
        self._current = current
        self.elsewhere: dict[str, Callable[..., Any]] = {}

    def manual_seed(self, seed: Any) -> torch.Generator:
        source = self._current()
        if source is None:
            return self.elsewhere["manual_seed"](seed)
        source.seed_torch(int(seed))
        return source.torch

    def seed(self) -> int:
        source = self._current()
        if source is None:
            return self.elsewhere["seed"]()
        source.seed_torch(None)
        return source.torch.initial_seed()

    def initial_seed(self) -> int:
        source = self._current()
        return self.elsewhere["initial_seed"]() if source is None else source.initial_seed

    def get_rng_state(self) -> torch.Tensor:
        source = self._current()
        return self.elsewhere["get_rng_state"]() if source is None else source.torch.get_state()

    def set_rng_state(self, new_state: torch.Tensor) -> None:
        source = self._current()
        if source is None:
            self.elsewhere["set_rng_state"](new_state)
        else:
            source.torch.set_state(new_state)

    def fork_rng(self, devices: Any = None, *arguments: Any, **named: Any) -> Generator[None]:
        """torch's own saves and restores by the functions above: only its look at every device is left out."""
        if devices is None and self._current() is not None:
            devices = []
        yield from self.elsewhere["fork_rng"](devices, *arguments, **named)


# The code below runs as torch's functions: its globals are those of torch.random.


def _manual_seed(seed: Any) -> Any:
    return _torchstage.manual_seed(seed)  # type: ignore[name-defined]  # noqa: F821


def _seed() -> Any:
    return _torchstage.seed()  # type: ignore[name-defined]  # noqa: F821


def _initial_seed() -> Any:
    return _torchstage.initial_seed()  # type: ignore[name-defined]  # noqa: F821


def _get_rng_state() -> Any:
    return _torchstage.get_rng_state()  # type: ignore[name-defined]  # noqa: F821


def _set_rng_state(new_state: Any) -> Any:
    return _torchstage.set_rng_state(new_state)  # type: ignore[name-defined]  # noqa: F821


def _fork_rng(*arguments: Any, **named: Any) -> Any:
    yield from _torchstage.fork_rng(*arguments, **named)  # type: ignore[name-defined]  # noqa: F821


_CODE: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": _initial_seed,
    "get_rng_state": _get_rng_state,
    "set_rng_state": _set_rng_state,
    "fork_rng": _fork_rng,
}


def _let_functions_follow(current: Callable[[], Source | None]) -> None:
    """Replace the code of torch's functions, not their names: whoever imported them, and when, calls the new code."""
    torch.random.__dict__["_torchstage"] = functions = _Functions(current)
    for name, code in _CODE.items():
        function: Any = getattr(torch.random, name)
        function = getattr(function, "__wrapped__", function)  # fork_rng is a context manager around it
        as_it_was = FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
        functions.elsewhere[name] = as_it_was
        function.__code__ = cast(FunctionType, code).__code__
