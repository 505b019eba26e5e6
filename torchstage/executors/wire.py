"""Wire: a packet and open files in at one end of a pair of sockets, the same out at the other.

Guarantees: a packet arrives whole or not at all, at one reader; one that is too long for a socket travels in a memory
file; nothing has a name that others could find; a file that arrived closes when the program is replaced (exec).
"""

import array
import os
import socket
import sys
import tempfile

MAX_PACKET_BYTES = 32 * 1024  # several fit into a socket's buffer, of 208 KiB by default
MAX_FILES = 200  # the kernel's bound is 253
NUM_WHOLE_BYTES = 1  # of a packet: whether its text is in the first file

HAS_PACKETS = sys.platform == "linux"  # elsewhere a socketpair that keeps packets whole is one of datagrams
_KIND = socket.SOCK_SEQPACKET if HAS_PACKETS else socket.SOCK_DGRAM
_CLOSE_ON_EXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_HERE, _IN_FILE = b"\0", b"\1"
_MAX_SOCKET_BYTES = MAX_PACKET_BYTES if HAS_PACKETS else 1024
_ROOM_FOR_FILES = socket.CMSG_SPACE((MAX_FILES + 1) * array.array("i").itemsize) if hasattr(socket, "CMSG_SPACE") else 0


class Full(Exception):  # noqa: N818  # never leaves the package
    """The socket's buffer has no room now."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep packets whole."""
    return socket.socketpair(socket.AF_UNIX, _KIND)


def memory_file(name: str) -> int:
    """A file in memory without a name in any folder."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # its name is gone already
        return os.dup(file.fileno())


def file_of(text: bytes | memoryview) -> int:
    """A memory file that holds the bytes."""
    descriptor = memory_file("torchstage-packet")
    try:
        rest = memoryview(text)
        while len(rest):
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(descriptor: int, begin: int = 0, num_bytes: int | None = None) -> bytes:
    """What a memory file holds, all or so many bytes from ``begin`` on, whoever has read it before."""
    end, at = os.fstat(descriptor).st_size if num_bytes is None else begin + num_bytes, begin
    parts: list[bytes] = []
    while at < end:  # one read gives at most 2 GiB
        part = os.pread(descriptor, end - at, at)
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def send(line: socket.socket, text: bytes, files: "tuple[int, ...] | list[int]" = (), *, wait: bool = True) -> None:
    """Send one packet. The files stay the caller's. Raises ``Full`` with ``wait=False`` where there is no room, and
    OSError where nobody is left at the other end."""
    spilled = file_of(text) if len(text) > _MAX_SOCKET_BYTES else None
    flags = (0 if wait else socket.MSG_DONTWAIT) | getattr(socket, "MSG_NOSIGNAL", 0)
    head, rest, carried = (_HERE, text, list(files)) if spilled is None else (_IN_FILE, b"", [spilled, *files])
    try:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", carried))] if carried else []
        line.sendmsg([head, rest], ancillary, flags)
    except BlockingIOError:
        raise Full from None
    finally:
        if spilled is not None:
            os.close(spilled)


def receive(line: socket.socket, *, wait: bool = True) -> tuple[bytes, list[int]] | None:
    """The next packet and its files, which are the caller's from now on; None at the end: nobody could send any more.
    Raises ``Full`` with ``wait=False`` where there is none now."""
    flags = (0 if wait else socket.MSG_DONTWAIT) | _CLOSE_ON_EXEC
    try:
        packet, ancillary, _, _ = line.recvmsg(_MAX_SOCKET_BYTES + NUM_WHOLE_BYTES, _ROOM_FOR_FILES, flags)
    except BlockingIOError:
        raise Full from None
    except ConnectionResetError:
        return None
    files = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    if not packet:
        return None
    carried = list(files)
    if packet[:NUM_WHOLE_BYTES] == _HERE:
        return packet[NUM_WHOLE_BYTES:], carried
    spilled = carried.pop(0)
    try:
        return read_file(spilled), carried
    finally:
        os.close(spilled)


def close_all(files: list[int]) -> None:
    """Close files that arrived and are not needed."""
    for descriptor in files:
        os.close(descriptor)
