"""Files: memory of this process in, which part of which file it shows out; and that part mapped in another process.

Guarantees: memory is only said to show a file if whoever opens the file's path now maps the same file, and if nobody's
changes would be lost: those in a private map (copy on write) are in no file. Who maps it elsewhere gets that file, or
an OSError.
"""

import bisect
import contextlib
import mmap
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from torchstage.executors.memory import NO_FD

_MAPS = "/proc/self/maps"
_OCTAL = re.compile(rb"\\([0-7]{3})")  # how a newline in a path is written there


class File(NamedTuple):
    """A file to be mapped again, and as what it was known when it was found."""

    path: str
    device: int
    inode: int
    is_writable: bool  # what is written there, is written into the file


class _Map(NamedTuple):
    """A line of the system's table: a part of a file that this process shows, and shares with all who show it."""

    start: int
    end: int
    is_writable: bool
    offset: int
    known_as: tuple[int, int]  # device and inode: not always those that stat tells
    path: str


class Files:
    """Which memory shows which file, as of the moment of the first question. ``used``: those that answers named."""

    def __init__(self) -> None:
        self.used: list[File] = []
        self._maps: list[_Map] | None = None
        self._numbers: dict[tuple[str, bool, tuple[int, int]], int | None] = {}

    def look(self) -> None:
        """See anew what is mapped."""
        self._maps = list(_maps())

    def seem_to_have(self, address: int, num_bytes: int) -> bool:
        """Whether that memory showed a file at the last look."""
        return self._map_of(address, num_bytes) is not None

    def place_of(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        """Which one of ``used`` that memory shows, and from where on, in bytes; None: none that can be mapped again.

        Right for what is held since before the last look.
        """
        found = self._map_of(address, num_bytes)
        if found is None:
            return None
        key = (found.path, found.is_writable, found.known_as)
        if key not in self._numbers:
            file = _opened_again(found)
            self._numbers[key] = None if file is None else len(self.used)
            self.used += [] if file is None else [file]
        number = self._numbers[key]
        return None if number is None else (number, found.offset + address - found.start)

    def _map_of(self, address: int, num_bytes: int) -> _Map | None:
        if self._maps is None:
            self.look()
        maps = self._maps or []
        at = bisect.bisect_right(maps, address, key=lambda one: one.start) - 1
        return maps[at] if at >= 0 and address + num_bytes <= maps[at].end else None


def _maps() -> Iterator[_Map]:
    """Files that this process shows and shares, by address. Nothing where the system keeps no such table."""
    try:
        with open(_MAPS, "rb") as table:  # noqa: PTH123  # nothing but a name
            lines = table.readlines()
    except OSError:
        return
    for line in lines:
        fields = line.rstrip(b"\n").split(None, 5)
        if len(fields) < 6 or not fields[1].startswith(b"r") or not fields[1].endswith(b"s") or fields[4] == b"0":
            continue
        start, _, end = fields[0].partition(b"-")
        major, _, minor = fields[3].partition(b":")
        if fields[5].endswith(b" (deleted)"):  # or it is called that: then it is copied
            continue
        path = os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), fields[5]))
        known_as = os.makedev(int(major, 16), int(minor, 16)), int(fields[4])
        yield _Map(int(start, 16), int(end, 16), fields[1][1:2] == b"w", int(fields[2], 16), known_as, path)


def _opened_again(found: _Map) -> File | None:
    """The file at that path, if it is the one that is mapped; None: it was deleted or replaced, or is no plain file."""
    try:
        descriptor = _open(found.path, is_writable=found.is_writable)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        identity = status.st_dev, status.st_ino
        if identity == found.known_as or _known_as(descriptor) == found.known_as:
            return File(found.path, *identity, found.is_writable)
    finally:
        os.close(descriptor)
    return None


def _known_as(descriptor: int) -> tuple[int, int] | None:
    """What the table calls an open file: on some file systems (btrfs, overlays) other than stat does."""
    with contextlib.suppress(OSError, ValueError):
        trial = mmap.mmap(descriptor, 1, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, **NO_FD)
        array = np.frombuffer(trial, np.uint8)
        address = array.ctypes.data
        return next((one.known_as for one in _maps() if one.start <= address < one.end), None)
    return None


def _open(path: str, *, is_writable: bool) -> int:
    access = os.O_RDWR if is_writable else os.O_RDONLY
    return os.open(path, access | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)  # whatever it is: nothing is waited for


def mapped(file: File, parts: Iterable[tuple[int, int]]) -> tuple[mmap.mmap, int]:
    """One map that shows all these parts (offset and bytes) of the file, and the offset that it begins at.

    Raises OSError: the file is another one by now, or shorter, or cannot be opened or mapped.
    """
    begin, end = min(offset for offset, _ in parts), max(offset + num_bytes for offset, num_bytes in parts)
    begin -= begin % mmap.ALLOCATIONGRANULARITY
    descriptor = _open(file.path, is_writable=file.is_writable)
    try:
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != (file.device, file.inode) or status.st_size < end:
            raise OSError(
                f"{file.path} was replaced or cut since the dataset mapped it: a process cannot map it any more. Leave "
                "it as it is while the loader is in use, or open it in the process, at its first use."
            )
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if file.is_writable else 0)
        return mmap.mmap(descriptor, end - begin, flags=mmap.MAP_SHARED, prot=prot, offset=begin, **NO_FD), begin
    finally:
        os.close(descriptor)
