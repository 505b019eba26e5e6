"""Parcel: a value in, a few numbers and a pickle out, and the same value again in another process.

The structure travels as a pickle (protocol 5). The memory of tensors and arrays does not: it lies in blocks, which are
in memory that both processes see (a slot), or are carried along. Memory that several tensors of a value share is one
block, so they share it afterwards too; of a storage only the part is sent that the value's tensors span.

Guarantees: a value comes out with the types, dtypes, shapes, strides and bytes that went in; nothing is written into
the memory of a parcel after it was packed.
"""

import pickle
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

import numpy as np
import torch

from torchstage.executors.blocks import FIRST_FILE, IN_SLOT, Block, Ground, Layout, Thing
from torchstage.executors.contents import BUFFER, DENSE, NOTHING, SHOWN, TENSOR, Refuse, gathered, refuse
from torchstage.executors.files import File, Files, mapped

_torch_utils: dict[str, Any] = vars(import_module("torch._utils"))


@dataclass(frozen=True, slots=True)
class Parcel:
    """What travels of a value. Small, unless it carries its blocks itself."""

    structure: bytes  # the pickle; nothing: it is the last block
    things: tuple[Thing, ...]  # what the pickle refers to, in its order
    blocks: tuple[Block, ...]
    carried: tuple[bytearray, ...]
    num_slot_bytes: int = 0  # how much of the slot it needs; 0: nothing lies there
    is_kept: bool = False  # whether the process that made it still refers to the slot: it must not be used again
    files: tuple[File, ...] = ()  # those that blocks lie in

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.structure, self.things, self.blocks, self.carried, self.num_slot_bytes, self.is_kept)
        return Parcel, (*fields, self.files) if self.files else fields

    @property
    def num_bytes(self) -> int:
        """Of the pickle and all memory: what crosses from one process to the other."""
        return len(self.structure) + sum(num_bytes for place, _, num_bytes in self.blocks if place > FIRST_FILE)


@dataclass(frozen=True, slots=True)
class Bound:
    """How much memory a value may take: once for what lies in memory, and for the pickle, which in each of
    ``num_processes`` becomes objects, once more for each."""

    max_bytes: int
    num_processes: int = 0


def pack(
    value: Any,
    ground: Ground | None = None,
    refuse: Refuse = refuse,
    files: Files | None = None,
    bound: Bound | None = None,
) -> Parcel:
    """The value as a parcel, its large blocks in ``ground``; without it the parcel carries everything. Memory that
    shows one of ``files`` is to be mapped again, and not copied.

    Raises what pickle and the value's own functions raise; TypeError: a tensor is on a device, as ``refuse`` words it;
    RuntimeError: a tensor requires grad and was computed from others; MemoryError: the ground cannot be had; TooLarge,
    before any memory is taken: it would be more than ``bound`` says.
    """
    if bound is None:
        pickled, found = gathered(value, refuse, files)
        max_bytes = None
    else:
        times = 1 + bound.num_processes
        pickled, found = gathered(value, refuse, files, bound.max_bytes // times)
        max_bytes = bound.max_bytes - times * len(pickled)
    with found:
        layout = Layout(ground, files=files)
        things = layout.lay_all(found.pieces, max_bytes)
        structure = b""
        if ground is not None and len(pickled) >= ground.min_bytes:
            layout.lay(np.frombuffer(pickled, np.uint8).ctypes.data, len(pickled))
        else:
            structure = bytes(pickled)
    lies_there = any(place == IN_SLOT for place, _, _ in layout.blocks)
    num_slot_bytes = ground.num_bytes if ground is not None and lies_there else 0
    shown = () if files is None else tuple(files.used)
    return Parcel(structure, things, tuple(layout.blocks), tuple(layout.carried), num_slot_bytes, files=shown)


def unpack(parcel: Parcel) -> Any:
    """The value of a parcel that carries everything. Its tensors lie in the parcel's memory: unpack it once."""
    if parcel.num_slot_bytes:
        raise ValueError("Memory of this parcel lies in a slot: open it with Slot.open.")
    return opened(parcel, None)


def opened(parcel: Parcel, slot: memoryview | None, *, copies: bool = False) -> Any:
    """The value. What lies in the slot is a view of ``slot``, or a copy if ``copies``.

    Of what is made here only torch's storages refer to ``slot``, and the garbage collector does not look through them.
    So it is freed when the last of them is, and a circle of garbage cannot free it while a ``__del__`` may still read.
    """
    blocks = _Blocks(parcel, slot, copies)
    made = [_made(thing, blocks) for thing in parcel.things]
    structure: Any = parcel.structure or blocks.memory(len(parcel.blocks) - 1).numpy()
    value = pickle.loads(structure, buffers=made)
    # torch keeps each sparse tensor that is unpickled, for the next torch.load to look at: they would never go.
    if kept := _torch_utils.get("_sparse_tensors_to_validate"):
        kept.clear()
    return value


class _Blocks:
    """The blocks of a parcel, where they lie or copied."""

    def __init__(self, parcel: Parcel, slot: memoryview | None, copies: bool) -> None:
        self._parcel = parcel
        self._slot = slot
        self._copies = copies
        self._memory: dict[int, Any] = {}
        self._maps: dict[int, tuple[Any, int]] = {}  # by place: of a file, and the offset that it begins at

    def memory(self, number: int) -> Any:
        """A block's bytes, in a storage that all who ask for it share."""
        if (memory := self._memory.get(number)) is None:
            memory = self._memory[number] = self.dense(number, torch.uint8)
        return memory

    def dense(self, number: int, dtype: torch.dtype) -> Any:
        """A block as one row of elements, for somebody who shares it with nobody."""
        place, offset, num_bytes = self._parcel.blocks[number]
        if place <= FIRST_FILE:
            shown, begin = self._map_of(place)
            with warnings.catch_warnings():  # torch warns of memory that cannot be written to, as it did the user
                warnings.simplefilter("ignore")
                return _from(shown, dtype, offset - begin, num_bytes)
        if place != IN_SLOT:
            return _from(self._parcel.carried[place], dtype, offset, num_bytes)
        if not self._copies:
            return _from(self._slot, dtype, offset, num_bytes)
        copy = _from(self._slot, torch.uint8, offset, num_bytes).clone()  # bytes: some dtypes cannot be copied
        return _with_memory(copy, dtype, 0, (num_bytes // dtype.itemsize,), (1,))

    def buffer(self, number: int) -> tuple[Any, int]:
        """A block's bytes as a buffer that can be written to where the block can, and where in it they begin."""
        place, offset, _ = self._parcel.blocks[number]
        if place > FIRST_FILE:
            return self.memory(number).numpy(), 0
        shown, begin = self._map_of(place)
        return shown, offset - begin

    def _map_of(self, place: int) -> tuple[Any, int]:
        """The only map of a file: a process may not have as many as there are arrays."""
        if place not in self._maps:
            parts = [(offset, num_bytes) for at, offset, num_bytes in self._parcel.blocks if at == place]
            self._maps[place] = mapped(self._parcel.files[FIRST_FILE - place], parts)
        return self._maps[place]


def _from(memory: Any, dtype: torch.dtype, offset: int, num_bytes: int) -> Any:
    return cast(Any, torch).frombuffer(memory, dtype=dtype, count=num_bytes // dtype.itemsize, offset=offset)


def _with_memory(
    memory: Any, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """A tensor in the storage of another, no view of it. Offset and strides in elements."""
    made = torch.empty((0,), dtype=dtype, device="cpu")
    return made.set_(memory.untyped_storage(), offset, shape, strides)


def _made(thing: Thing, blocks: _Blocks) -> Any:
    """What the pickle refers to: the tensor, storage or buffer."""
    if thing[0] == DENSE:
        _, block, _, name, shape = thing
        row = blocks.dense(block, getattr(torch, name))
        return row if len(shape) == 1 else row.resize_(shape)  # a view would show the row as its base
    if thing[0] == TENSOR:
        _, block, offset, name, shape, strides = thing
        dtype: torch.dtype = getattr(torch, name)
        memory = blocks.memory(block)
        if offset % dtype.itemsize:  # it shares memory with others that are not whole elements away
            memory, offset = _from(memory.numpy(), torch.uint8, offset, len(memory) - offset), 0
        return _with_memory(memory, dtype, offset // dtype.itemsize, shape, strides)
    kind, block, offset, *about = thing
    if kind == NOTHING:
        name, shape, strides = about
        return torch.empty_strided(shape, strides, dtype=getattr(torch, name), device="cpu")
    if kind in (BUFFER, SHOWN):
        (num_bytes,) = about
        buffer, begin = blocks.buffer(block)
        if kind == SHOWN:
            return buffer, begin + offset
        return memoryview(buffer)[begin + offset : begin + offset + num_bytes]
    num_bytes, name = about
    return _storage(blocks.memory(block) if block >= 0 else torch.empty(0, dtype=torch.uint8), offset, num_bytes, name)


def _storage(memory: Any, offset: int, num_bytes: int, name: str) -> Any:
    untyped = memory.untyped_storage()
    if (offset, num_bytes) != (0, untyped.nbytes()):  # others that share its memory begin before or end after it
        untyped = _from(memory.numpy(), torch.uint8, offset, num_bytes).untyped_storage()
    if not name:
        return untyped
    typed: Any = torch.TypedStorage
    return typed(wrap_storage=untyped, dtype=getattr(torch, name), _internal=True)
