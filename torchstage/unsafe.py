"""Unsafe: an object or its class in, out whether threads must not share it: handles, and random generators.

Guarantees: calls no user code, but for the ``closed``, ``fp`` and ``tile`` of a handle; imports no library.
"""

import io
import random
import sqlite3
import sys
import tarfile
import weakref
import zipfile
from typing import Any

import numpy as np
import torch

from torchstage.looking import is_a, issubclass_of, package_of, packages, type_of

_IO_BASE: type = io.IOBase.__mro__[1]  # the C class below it: io's own classes are only registered with io.IOBase
HANDLES: tuple[type, ...] = (_IO_BASE, tarfile.TarFile, zipfile.ZipFile, sqlite3.Connection, sqlite3.Cursor)
HANDLE_PACKAGES = {"h5py", "lmdb", "av", "decord", "torchcodec"}  # any object whose class comes from there
HIDDEN_HANDLES = {  # classes that hide where they come from, or that are handles for a while
    "lmdb": ("Environment", "Transaction", "Cursor", "_Database"),
    "PIL.ImageFile": ("ImageFile",),  # opened and not read yet
    "pyarrow.lib": ("NativeFile",),
}
GENERATORS: tuple[type, ...] = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    torch.Generator,
)
PACKAGES_FOR_SHARING = {  # locks, queues, executors, and what is the same for everyone
    "pathlib",
    "threading",
    "_thread",
    "queue",
    "_queue",
    "multiprocessing",
    "concurrent",
    "asyncio",
    "weakref",
}


class Unsafe:
    """What threads must not share, by the libraries that are imported now."""

    def __init__(self) -> None:
        hidden = (
            getattr(sys.modules.get(module), name, None) for module in HIDDEN_HANDLES for name in HIDDEN_HANDLES[module]
        )
        self._kinds = (*HANDLES, *GENERATORS, *(kind for kind in hidden if isinstance(kind, type)))
        self._known: dict[int, bool] = {}

    def is_handle(self, value: Any) -> bool:
        """Whether it is such an object, and in use: a closed file and an image that was read are data."""
        kind = type_of(value)
        if not self.is_kind(kind):
            return False
        try:
            if is_a(value, zipfile.ZipFile):
                return value.fp is not None
            if "PIL" in packages(kind):
                return bool(getattr(value, "fp", None)) and bool(getattr(value, "tile", None))
            return not getattr(value, "closed", False)
        except Exception:  # it does not know itself
            return True

    def is_kind(self, kind: Any) -> bool:
        """Whether the objects of this class are handles or random generators."""
        known = self._known.get(id(kind))
        if known is None:
            known = issubclass_of(kind, self._kinds) or not packages(kind).isdisjoint(HANDLE_PACKAGES)
            self._known[id(kind)] = known
        return known


def is_for_sharing(value: Any) -> bool:
    """Whether it is a lock, queue, executor or the like: made to be used by several threads, useless when copied."""
    return package_of(type_of(value)) in PACKAGES_FOR_SHARING and type(value) is not weakref.ref
