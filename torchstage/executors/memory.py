"""Memory: a memfd in, maps of it out, larger ones when more is asked for.

Guarantees: the file never shrinks, and only bytes are handed out whose pages exist: touching them cannot raise SIGBUS,
and a lack of memory is a MemoryError beforehand. The file descriptor is closed when the Memory is closed or dropped;
maps live on until nobody refers to them.
"""

import contextlib
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

MIN_CAPACITY = 1 << 20  # of addresses, which cost nothing
PAGES_BYTES = 256 << 10  # pages are asked for in steps of this
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2  # of Linux; not every Python names them

_make: Callable[[str, int], int] | None = getattr(os, "memfd_create", None)
_reserve: Callable[[int, int, int], None] | None = getattr(os, "posix_fallocate", None)
HAS_MEMFD = _make is not None and _reserve is not None and hasattr(mmap, "MAP_SHARED")

# A map keeps a file descriptor of its own unless told not to (from Python 3.13 on).
NO_FD: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def make_memfd(name: str) -> int | None:
    """An empty memfd that can only grow, not inherited by programs that are started; None: there are none here.

    OSError: no file descriptors are left.
    """
    if _make is None or not HAS_MEMFD:
        return None
    import fcntl  # not on every system

    flags = cast(Any, os)
    fd = _make(name, flags.MFD_CLOEXEC | flags.MFD_ALLOW_SEALING)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
    return fd


def identity(fd: int) -> tuple[int, int]:
    """What two file descriptors of one file have in common and those of two files have not, while both exist."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def available_bytes() -> int | None:
    """What the system, and the control group of this process, have left for it; None: they do not say."""
    told = [found for found in (_left_of_system(), _left_of_group()) if found is not None]
    return min(told, default=None)


def _left_of_system() -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return sum(int(fields[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
    return None


def _left_of_group() -> int | None:
    with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        group = Path("/sys/fs/cgroup") / next(line for line in lines if line.startswith("0::"))[4:]
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            pages_of_files = int(fields["active_file"]) + int(fields["inactive_file"])  # given up when memory is short
            return max(0, int(most) - int((group / "memory.current").read_text()) + pages_of_files)
    return None


class Memory:
    """A memfd of one process, which owns the file descriptor. One thread at a time; closing is safe in a finalizer."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None
        self._num_there = 0  # bytes from the start whose pages exist
        self._close = weakref.finalize(self, os.close, fd)
        self._close.atexit = False

    def close(self) -> None:
        """Close the file descriptor and let go of the map. A second call does nothing."""
        self._close()
        self._map = None

    def unmap(self) -> None:
        """Let go of the map: what follows makes another."""
        self._map = None

    def mapped(self, num_bytes: int) -> mmap.mmap:
        """A map that shows that many bytes, which exist. OSError: there are no addresses or file descriptors left."""
        if self._map is None or len(self._map) < num_bytes:
            size = os.fstat(self.fd).st_size
            self._map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED, **NO_FD)
        return self._map

    def grown(self, num_bytes: int) -> mmap.mmap | None:
        """A map that shows that many bytes, made to exist; None: a limit of the process or the system forbids it.

        Raises MemoryError: there is not that much memory.
        """
        try:
            if num_bytes > self._num_there:
                self._reserve(num_bytes)
            return self.mapped(num_bytes)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.ENOSPC):
                raise MemoryError(
                    f"There is no memory for the {num_bytes:,} bytes that a process shares with this loader "
                    f"({error.strerror}). Use a smaller batch_size, prefetch_factor or num_workers."
                ) from error
            return None  # a limit on the size of files, on addresses or on open files: ordinary memory may do

    def _reserve(self, num_bytes: int) -> None:
        status = os.fstat(self.fd)
        if num_bytes > status.st_size:
            # Twice as much as needed and more, so that maps are seldom made anew. It costs no memory.
            os.ftruncate(self.fd, max(MIN_CAPACITY, 1 << (2 * num_bytes - 1).bit_length()))
        wanted = -(-num_bytes // PAGES_BYTES) * PAGES_BYTES
        self._num_there = max(self._num_there, status.st_blocks * 512)  # by another process, always from the start
        if wanted > self._num_there:
            assert _reserve is not None
            _reserve(self.fd, self._num_there, wanted - self._num_there)
            self._num_there = wanted
