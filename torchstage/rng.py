"""Rng: a sample's place in the order of an epoch in, its random generators out.

Randomness belongs to the sample. A loader thread has one scope, which it tells what sample comes next; what the code of
that sample draws from torch, ``random`` and ``numpy.random`` then comes from generators that were seeded for it alone.
So the number of threads, their timing and the order cannot change a sample.

Guarantees: nothing is seeded before the first draw; the process's generators stay as they are; a thread without a scope
draws from them as before.
"""

import hashlib
import os
import random
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.random import RandomState
from torch import Generator as TorchGenerator

from torchstage import redirect, torch_draws
from torchstage.seeds import (
    DIGEST_BYTES,
    FOR_NUMPY,
    FOR_NUMPY_LEGACY,
    FOR_PYTHON,
    FOR_TORCH,
    AnyGenerator,
    Seeds,
    digest_of,
    is_stable,
    reseed,
)

__all__ = [
    "SampleRng", "Scope", "Seeds", "current", "digest_of", "drawing_from", "enter_thread", "install", "is_stable",
    "leave_thread", "reseed", "sample_rng", "uncontrolled",
]  # fmt: skip

uncontrolled = redirect.uncontrolled

# Scopes -----------------------------------------------------------------------------------------------------

_BEFORE_ANY: tuple[Seeds, str, Any, int] = (Seeds(0, 0), "thread", None, 0)


class Scope:
    """The random generators of one thread. Each is seeded when it is used for the first time after ``begin``."""

    __slots__ = (
        "_digest", "_digest_at", "_legacy", "_legacy_at", "_numpy", "_numpy_at", "_python", "_python_at", "_sample",
        "_seeded_by_user_at", "_torch", "_torch_at", "_worker_seed", "rng",
    )  # fmt: skip

    def __init__(self) -> None:
        # Which sample it is. Each generator remembers for which of these objects it was seeded.
        self._sample = _BEFORE_ANY
        self._torch, self._python = TorchGenerator(), Random(0)
        self._legacy: RandomState | None = None  # 130 us to make
        self._numpy: np.random.Generator | None = None
        self._digest = b""
        self._digest_at: object = None
        self._torch_at: object = None
        self._python_at: object = None
        self._legacy_at: object = None
        self._numpy_at: object = None
        self._seeded_by_user_at: object = None
        self._worker_seed: int | None = None
        self.rng = SampleRng(self)

    @classmethod
    def of_worker(cls, base_seed: int, number: int, numpy_seed: Sequence[int]) -> "Scope":
        """Generators as they are in torch's worker process of this number, until the first ``begin``, if any.

        Args:
            numpy_seed: what torch seeds numpy with in that worker.
        """
        scope = cls()
        scope._worker_seed = base_seed + number
        scope._torch.manual_seed(scope._worker_seed)
        scope._python.seed(scope._worker_seed)
        scope._legacy = RandomState()
        scope._legacy.seed(numpy_seed)
        scope._numpy = np.random.default_rng(numpy_seed)
        scope._torch_at = scope._python_at = scope._legacy_at = scope._numpy_at = scope._sample
        return scope

    def begin(
        self, seeds: Seeds, kind: str, index: Any, salt: int = 0, held: Sequence[tuple[AnyGenerator, bytes]] = ()
    ) -> None:
        """From now on the draws are those of this sample, or batch.

        Args:
            held: generators that the dataset keeps, each with the digest of the state that it was in at first. They are
                seeded at once: nothing says when they are used.
        """
        self._sample = (seeds, kind, index, salt)
        for generator, own in held:
            reseed(generator, hashlib.blake2b(self._bytes() + own, digest_size=DIGEST_BYTES).digest())

    def restart(self, kind: str, held: Sequence[tuple[AnyGenerator, bytes]] = ()) -> None:
        """From now on the draws are those of another stage of the same sample."""
        seeds, _, index, salt = self._sample
        self.begin(seeds, kind, index, salt, held)

    def _bytes(self) -> bytes:
        sample = self._sample
        if self._digest_at is not sample:
            seeds, kind, index, salt = self._digest_at = sample
            self._digest = seeds.digest(kind, index, salt)
        return self._digest

    @property
    def torch(self) -> TorchGenerator:
        """Of implicit draws and of ``sample_rng().torch``: both advance it."""
        if self._torch_at is not self._sample:
            self._torch_at = self._sample
            self._torch.manual_seed(int.from_bytes(self._bytes()[FOR_TORCH], "little"))
        return self._torch

    @property
    def python(self) -> Random:
        """Of the functions of ``random`` and of ``sample_rng().python``."""
        if self._python_at is not self._sample:
            self._python_at = self._sample
            self._python.seed(int.from_bytes(self._bytes()[FOR_PYTHON], "little"))
        return self._python

    @property
    def numpy_legacy(self) -> RandomState:
        """Of the functions of ``numpy.random``."""
        if self._legacy is None:
            self._legacy = RandomState(0)
        if self._legacy_at is not self._sample:
            self._legacy_at = self._sample
            self._legacy.seed(np.frombuffer(self._bytes()[FOR_NUMPY_LEGACY], "<u4"))
        return self._legacy

    @property
    def numpy(self) -> np.random.Generator:
        """A new one for each sample: one that was kept, or what it spawns, must not depend on the samples before."""
        if self._numpy is None or self._numpy_at is not self._sample:
            self._numpy_at = self._sample
            self._numpy = np.random.default_rng(int.from_bytes(self._bytes()[FOR_NUMPY], "little"))
        return self._numpy

    @property
    def initial_seed(self) -> int:
        """What ``torch.initial_seed()`` answers: the worker's seed, as in a worker process, until user code seeds."""
        if self._worker_seed is None or self._seeded_by_user_at is self._sample:
            return self.torch.initial_seed()
        return self._worker_seed

    def seed_torch(self, seed: int | None) -> None:
        """What ``torch.manual_seed(seed)`` does here, and for None what ``torch.seed()`` does."""
        self._torch_at = self._seeded_by_user_at = self._sample
        if seed is None:
            self._torch.seed()
        else:
            self._torch.manual_seed(seed)
        if self._sample is _BEFORE_ANY:  # worker_init_fn, or a lane: it lasts
            self._worker_seed = self._torch.initial_seed()


class SampleRng:
    """The random generators of the sample that is being made, in the thread that makes it."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    @property
    def torch(self) -> TorchGenerator:
        """The one that torch's functions draw from here when they are given none."""
        return self._scope.torch

    @property
    def python(self) -> Random:
        """The one that the functions of ``random`` draw from here."""
        return self._scope.python

    @property
    def numpy(self) -> np.random.Generator:
        """numpy's modern generator; the functions of ``numpy.random`` draw from another one."""
        return self._scope.numpy

    torch_generator, random_generator, numpy_generator = torch, python, numpy  # torch's names, in its WorkerInfo.rng


# Threads ----------------------------------------------------------------------------------------------------


class _ThisThread(threading.local):
    scope: Scope | None = None


_this_thread = _ThisThread()
_is_installed = False
_installing = threading.Lock()


def current() -> Scope | None:
    """The scope of the calling thread; None where the process's generators are drawn from."""
    return _this_thread.scope


def _own_torch() -> TorchGenerator | None:
    """``current().torch``, asked for each draw."""
    scope = _this_thread.scope
    if scope is None:
        return None
    return scope._torch if scope._torch_at is scope._sample else scope.torch  # pyright: ignore[reportPrivateUsage]


def install() -> None:
    """Let scopes take effect. Threads without one notice nothing."""
    global _is_installed
    if _is_installed:
        return
    with _installing:  # a thread that comes meanwhile must not go on before it is done
        if not _is_installed:
            torch_draws.install(current, _own_torch)
            redirect.install(current)
            _is_installed = True


def enter_thread(scope: Scope) -> None:
    """The calling thread draws from this scope until it leaves."""
    install()
    _this_thread.scope = scope
    torch_draws.divert(True)


def leave_thread() -> None:
    """The calling thread draws from the process's generators again."""
    _this_thread.scope = None
    torch_draws.divert(False)


class drawing_from:  # noqa: N801  # not contextlib's: that one sets attributes of errors, which some classes forbid
    """``with drawing_from(scope):`` draws from this scope inside the block, afterwards from what was drawn from before.

    Each use is an object of its own.
    """

    __slots__ = ("_before", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._before = _this_thread.scope
        enter_thread(self._scope)
        return self._scope

    def __exit__(self, *error: object) -> None:
        _this_thread.scope = before = self._before
        torch_draws.divert(before is not None)


def sample_rng() -> SampleRng:
    """The random generators of the sample that the calling thread makes.

    Returns:
        ``.torch``, a ``torch.Generator`` on the CPU; ``.numpy``, a ``numpy.random.Generator``; ``.python``, a
            ``random.Random``. They are seeded by the sample, and its alone: ask again for each sample.

    Raises:
        RuntimeError: no loader is making a sample in this thread.
    """
    scope = _this_thread.scope
    if scope is None:
        raise RuntimeError(
            "torchstage.sample_rng(): no loader makes a sample in this thread. Call it in a dataset, transform, stage "
            "or collate_fn of a StageLoader that has num_workers > 0 or a seed, and sample_rng=True."
        )
    return scope.rng


def _forget_this_thread() -> None:
    """In a child that a loader thread forked: it is nobody's loader thread, and draws from the process's generators."""
    if _this_thread.scope is not None:
        leave_thread()
        random.seed()  # as Python does in a forked child; what it did a moment ago went to the scope


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_this_thread)
