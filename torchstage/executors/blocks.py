"""Blocks: pieces of memory in, blocks that another process sees out, each byte once.

Pieces that overlap become one block, so that what shared memory shares it there, too.

Guarantees: memory that lies where the other process sees it is not copied; the others are copied once, to a multiple of
64 bytes.
"""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from torchstage.executors.contents import DENSE, TENSOR, Piece, TooLarge
from torchstage.executors.files import Files

ALIGNMENT = 64  # of torch's own memory: a cache line, and the widest vector registers
ELEMENT_ALIGNMENT = 16  # of the widest dtype, complex128
MAX_BLOB_BYTES = 64 << 10  # a small tensor that the user keeps keeps no more than this
MIN_ALONE_BYTES = 16 << 10  # a carried block of this size has memory of its own

IN_SLOT = -1  # the place of a block that is not carried
FIRST_FILE = -2  # of one that lies in the first file, -3 in the second, and so on
Block: TypeAlias = tuple[int, int, int]  # which one of the carried, IN_SLOT or a file; bytes from there; bytes
# The kind of a piece, its block or -1 for no bytes, bytes from there, then the rest of what Piece.about says.
Thing: TypeAlias = tuple[Any, ...]


class Ground(Protocol):
    """Memory that the other process sees."""

    @property
    def min_bytes(self) -> int:
        """Smaller blocks are carried."""
        ...

    @property
    def num_bytes(self) -> int:
        """How much of it is used."""
        ...

    def offset_of(self, address: int, num_bytes: int) -> int | None:
        """Where that memory lies in it, in bytes; None: elsewhere."""
        ...

    def room_for(self, num_bytes: int) -> tuple[int, int] | None:
        """Room that nobody uses: its offset, a multiple of 64, and its address. None: it cannot be had."""
        ...


class Layout:
    """Blocks that are laid one after another: on the ground, or to be carried, beside others that are carried."""

    def __init__(self, ground: Ground | None, carried: Sequence[bytearray] = (), files: Files | None = None) -> None:
        self._ground = ground
        self._files = files
        self.blocks: list[Block] = []
        self.carried = list(carried)

    def lay_all(self, pieces: Sequence[Piece], max_bytes: int | None = None) -> tuple[Thing, ...]:
        """Lay the memory of all pieces. Where each of them is, in their order.

        Raises TooLarge before anything is laid: they have more than ``max_bytes`` that are in no file.
        """
        things: list[Thing] = [()] * len(pieces)
        if self._files is not None and pieces:
            self._files.look()  # all that is asked about is held from here on
        spans = list(_spans(pieces))
        if max_bytes is not None:
            num_bytes = sum(end - start for start, end, _ in spans if self._place_in_file(start, end - start) is None)
            if num_bytes > max_bytes:
                raise TooLarge(num_bytes)
        for start, end, members in spans:
            if start == end:
                for member in members:
                    about = pieces[member].about
                    things[member] = (about[0], -1, 0, *about[1:])
                continue
            # What is not whole elements away from the first byte needs the last bits of its address as they are.
            lead = 0
            if len(members) > 1 and any((pieces[member].address - start) % pieces[member].size for member in members):
                lead = start % ELEMENT_ALIGNMENT
            if not self._is_in_file(start - lead, end - start + lead):
                self.lay(start, end - start, lead)
            if len(members) == 1 and pieces[members[0]].about[0] == TENSOR:
                _, name, shape, strides = pieces[members[0]].about
                if strides == _dense_strides(shape):
                    things[members[0]] = (DENSE, len(self.blocks) - 1, 0, name, shape)
                    continue
            for member in members:
                about = pieces[member].about
                place = (len(self.blocks) - 1, lead + pieces[member].address - start)
                things[member] = (about[0], *place, *about[1:])
        return tuple(things)

    def _is_in_file(self, address: int, num_bytes: int) -> bool:
        """Whether that memory shows a file: then its block is a part of that. Maps begin at whole pages."""
        place = self._place_in_file(address, num_bytes)
        if place is None:
            return False
        number, offset = place
        self.blocks.append((FIRST_FILE - number, offset, num_bytes))
        return True

    def _place_in_file(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        return None if self._files is None else self._files.place_of(address, num_bytes)

    def lay(self, address: int, num_bytes: int, lead: int = 0) -> None:
        """Lay that memory, after ``lead`` bytes of no meaning."""
        ground = self._ground
        if ground is not None:
            if (offset := ground.offset_of(address, num_bytes)) is not None:
                self.blocks.append((IN_SLOT, offset - lead, lead + num_bytes))
                return
            if num_bytes >= ground.min_bytes and (room := ground.room_for(lead + num_bytes)) is not None:
                offset, there = room
                ctypes.memmove(there + lead, address, num_bytes)
                self.blocks.append((IN_SLOT, offset, lead + num_bytes))
                return
        self._carry(address, num_bytes, lead)

    def _carry(self, address: int, num_bytes: int, lead: int) -> None:
        total = lead + num_bytes
        if total >= MIN_ALONE_BYTES:
            alone = bytearray(total)
            array = (ctypes.c_char * total).from_buffer(alone)
            ctypes.memmove(ctypes.addressof(array) + lead, address, num_bytes)
            self.carried.append(alone)
            self.blocks.append((len(self.carried) - 1, 0, total))
            return
        if not self.carried or len(self.carried[-1]) + total > MAX_BLOB_BYTES:
            self.carried.append(bytearray())
        blob = self.carried[-1]
        blob += bytes(-len(blob) % ALIGNMENT + lead)
        offset = len(blob) - lead
        blob += ctypes.string_at(address, num_bytes)
        self.blocks.append((len(self.carried) - 1, offset, total))


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a tensor that resize_ or empty makes. Its size has no zero."""
    if len(shape) == 1:
        return (1,)
    strides: list[int] = []
    stride = 1
    for length in reversed(shape):
        strides.append(stride)
        stride *= length
    return tuple(reversed(strides))


def _spans(pieces: Sequence[Piece]) -> Iterator[tuple[int, int, list[int]]]:
    """From where to where pieces overlap, and which pieces those are. What lies side by side stays apart."""
    order = sorted(range(len(pieces)), key=lambda member: pieces[member].address)
    start, end, members = 0, 0, list[int]()
    for member in order:
        piece = pieces[member]
        if (members and piece.address < end) or piece.address == start == end:
            members.append(member)
            end = max(end, piece.address + piece.num_bytes)
        else:
            if members:
                yield start, end, members
            start, end, members = piece.address, piece.address + piece.num_bytes, [member]
    if members:
        yield start, end, members
