"""Contents: a value in, its pickle and the pieces of memory that it refers to out.

Tensors are taken apart here, not by torch: a plain one is its memory and a few numbers. Others (subclasses, parameters,
sparse, quantized, conjugated ...) are reduced by their own functions, and what they consist of is looked at in turn,
down to their storages. Arrays and whatever else offers its memory to pickle (protocol 5) are pieces if they are large.

Guarantees: nothing is copied here; nothing refers to the value any more after ``with found`` was left.
"""

import mmap
import pickle
from collections.abc import Callable, Sequence
from copyreg import dispatch_table
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch

from torchstage.executors.files import Files

MIN_BUFFER_BYTES = 4 << 10  # the memory of smaller arrays stays in the pickle: it is copied sooner than looked after

# Kinds of pieces, and what is needed to make them again, beside the memory.
TENSOR = 0  # name of its dtype, shape, strides in elements
NOTHING = 1  # the same, of a tensor without elements
STORAGE = 2  # bytes, name of its dtype or "" for an untyped one
BUFFER = 3  # bytes
DENSE = (
    4  # name of its dtype, shape: a tensor that has its block to itself, without a gap, in the order of its elements
)
SHOWN = 5  # bytes, of an array that shows a file: what is made of it is the memory and an offset

Refuse: TypeAlias = Callable[[torch.device], TypeError]  # the error for a tensor on that device


class Piece(NamedTuple):
    """Memory that the value refers to."""

    address: int
    num_bytes: int
    size: int  # of an element, in bytes
    about: tuple[Any, ...]  # its kind, then as listed above
    owner: Any  # keeps the memory alive


class Found:
    """What pickling a value met, in the order of the pickle. It refers to the value until it is left."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._coming: Piece | None = None

    def will_be(self, piece: Piece) -> None:
        """The pickler meets the mark next; that piece stands there."""
        assert self._coming is None
        self._coming = piece

    def met(self, buffer: pickle.PickleBuffer) -> bool:
        """Pickle has come to a buffer, or to a mark. Whether its bytes are to be in the pickle."""
        if buffer is _MARK:
            piece, self._coming = self._coming, None
            assert piece is not None
            self.pieces.append(piece)
            return False
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous: pickle says so
            return True
        if raw.nbytes < MIN_BUFFER_BYTES:
            return True
        array = np.frombuffer(raw, np.uint8)
        self.pieces.append(Piece(array.ctypes.data, raw.nbytes, 1, (BUFFER, raw.nbytes), array))
        return False

    def __enter__(self) -> "Found":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.pieces.clear()


class TooLarge(MemoryError):  # noqa: N818  # it says what is wrong
    """A value has more bytes than it may have. ``num_bytes``: so many at least."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"A value of {num_bytes:,} bytes is larger than it may be.")
        self.num_bytes = num_bytes


class _Stream:
    """What a pickler writes to. It says at once when it becomes too long. It is no io.BytesIO: the garbage collector
    closes these, which fails while somebody looks at their memory, and Python 3.13 tells the user so."""

    def __init__(self, max_bytes: int | None) -> None:
        self.written = bytearray()
        self._max_bytes = max_bytes

    def write(self, data: Any, /) -> int:
        if self._max_bytes is not None and (num_bytes := len(self.written) + len(data)) > self._max_bytes:
            raise TooLarge(num_bytes)
        self.written += data
        return len(data)


def gathered(
    value: Any, refuse: Refuse, files: Files | None = None, max_bytes: int | None = None
) -> tuple[memoryview, Found]:
    """The pickle, and what it refers to. ``files``: arrays that show one of these are pieces, whatever their type, size
    and strides. Raises TooLarge: the pickle alone is larger than ``max_bytes``; and what pickle and the value's own
    functions raise."""
    stream = _Stream(max_bytes)
    found = Found()
    pickler = _Pickler(stream, found, refuse, files)
    pickler.dump(value)
    pickler.clear_memo()
    return memoryview(stream.written), found


# A pickle refers to a piece by a buffer that is not in it. This one stands for pieces that are no buffers: unpickling
# gets the tensor or storage itself in its place. Writable, else unpickling would ask for a read-only view of it.
_MARK = pickle.PickleBuffer(bytearray(1))


def itself(thing: Any) -> Any:
    """What pickle calls to make what is made already."""
    return thing


def requiring_grad(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, a leaf that requires grad."""
    return tensor.requires_grad_()


def showing(
    memory: tuple[Any, int],
    kind: type[np.ndarray[Any, Any]],
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    is_writeable: bool,
    attributes: dict[str, Any],
) -> Any:
    """An array in that memory (a buffer, and where in it its piece begins). Strides and offset in bytes."""
    buffer, begin = memory
    array = np.ndarray.__new__(kind, shape, dtype, buffer, begin + offset, strides)
    if attributes:
        vars(array).update(attributes)
    if isinstance(array, np.memmap) and isinstance(buffer, mmap.mmap):
        cast(Any, array)._mmap = buffer
    if not is_writeable:
        array.flags.writeable = False
    return array


def refuse(device: torch.device) -> TypeError:
    """The error for a tensor on a device in what a process is given."""
    return TypeError(
        f"a tensor on {device} cannot be sent to a process: its memory is on the device. Keep it on the CPU, or use "
        "worker_method='thread'."
    )


class _Pickler(pickle.Pickler):
    def __init__(self, stream: _Stream, found: Found, refuse: Refuse, files: Files | None) -> None:
        super().__init__(stream, 5, buffer_callback=found.met)
        self._found = found
        self._files = files
        self._refuse = refuse
        # What multiprocessing can send beside what pickle can, and what users have told it to.
        extra: dict[Any, Any] = getattr(ForkingPickler, "_extra_reducers", {})
        self.dispatch_table = {**dispatch_table, **extra}

    def reducer_override(self, obj: Any) -> Any:
        kind = cast(type[object], type(obj))
        if kind is torch.Tensor:
            return self._plain(obj)
        if issubclass(kind, torch.Tensor):
            return self._other(obj)
        if issubclass(kind, (torch.UntypedStorage, torch.TypedStorage)):
            return self._storage(obj)
        if self._files is not None and issubclass(kind, np.ndarray):
            return self._array(obj, self._files)
        return NotImplemented

    def _array(self, array: Any, files: Files) -> Any:
        """An array that seems to show a file. Others are pickled as ever."""
        kind = cast(type[Any], type(array))
        is_plain = all(getattr(kind, name) is getattr(np.ndarray, name) for name in _REDUCTIONS)
        if not (is_plain and array.nbytes and not array.dtype.hasobject and _is_in_map(array)):
            return NotImplemented
        reach = [(length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)]
        before = -sum(part for part in reach if part < 0)
        num_bytes = before + sum(part for part in reach if part > 0) + array.itemsize
        start = array.ctypes.data - before
        if not files.seem_to_have(start, num_bytes):
            return NotImplemented
        self._found.will_be(Piece(start, num_bytes, 1, (SHOWN, num_bytes), array))
        about = (kind, array.dtype, array.shape, array.strides, before, array.flags.writeable, _attributes(array))
        return showing, (_MARK, *about)

    def _plain(self, tensor: torch.Tensor) -> Any:
        if not (
            tensor.is_cpu
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and not tensor.is_quantized
            and not tensor.is_conj()
            and not tensor.is_neg()
            and not tensor.__dict__
        ) or (_has_names is not None and _has_names(tensor)):
            return self._other(tensor)
        if tensor.requires_grad:
            _check_leaf(tensor)
            return (requiring_grad, (tensor.detach(),)) if not _hooks(tensor) else self._other(tensor)
        storage = tensor.untyped_storage()
        return self._strided(storage, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor)

    def _strided(
        self,
        storage: torch.UntypedStorage,
        dtype: torch.dtype,
        offset: Any,
        shape: Sequence[int],
        strides: Sequence[int],
        owner: Any,
    ) -> Any:
        """A tensor: the part of the storage that its elements span. Offset and strides in elements."""
        size = dtype.itemsize
        about = (str(dtype)[6:], tuple(shape), tuple(strides))  # "torch.float32"
        if 0 in shape:
            piece = Piece(0, 0, 1, (NOTHING, *about), None)
        else:
            last = sum([(length - 1) * stride for length, stride in zip(shape, strides, strict=True)])
            num_bytes = (last + 1) * size
            if offset * size + num_bytes > storage.nbytes():
                raise RuntimeError(
                    f"A tensor of shape {tuple(shape)} and strides {tuple(strides)} ends after its storage, which was "
                    f"resized to {storage.nbytes()} bytes: it cannot be sent to another process."
                )
            piece = Piece(storage.data_ptr() + offset * size, num_bytes, size, (TENSOR, *about), owner)
        self._found.will_be(piece)
        return itself, (_MARK,)  # a new tuple each time: pickle would refer to one that it knows

    def _other(self, tensor: torch.Tensor) -> Any:
        if tensor.device.type not in ("cpu", "meta"):
            raise self._refuse(tensor.device)
        _check_leaf(tensor)
        rebuild, args, *more = cast(tuple[Any, ...], cast(Any, tensor).__reduce_ex__(5))
        if rebuild is _from_type and len(args) == 4:  # of a subclass, or with attributes
            function, kind, parts, state = cast(tuple[Any, ...], args)
            function, parts = self._without_rest(function, parts, tensor)
            return (rebuild, (function, kind, parts, state), *more)
        return (*self._without_rest(rebuild, args, tensor), *more)

    def _without_rest(self, function: Any, args: tuple[Any, ...], tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        """The same tensor, without the part of its storage that it does not cover."""
        if function is not _from_storage or len(args) != 6 or args[4] or args[5]:
            return function, args
        storage, offset, shape, strides = args[:4]
        return self._strided(_untyped(storage), storage.dtype, offset, shape, strides, tensor)

    def _storage(self, storage: Any) -> Any:
        untyped = _untyped(storage)
        if untyped.device.type == "meta":
            return NotImplemented
        if untyped.device.type != "cpu":
            raise self._refuse(untyped.device)
        name = "" if storage is untyped else str(storage.dtype)[6:]
        num_bytes = untyped.nbytes()
        address = untyped.data_ptr() if num_bytes else 0
        self._found.will_be(Piece(address, num_bytes, 1, (STORAGE, num_bytes, name), storage))
        return itself, (_MARK,)


_REDUCTIONS = ("__reduce_ex__", "__reduce__", "__setstate__")  # of arrays; a subclass may have its own


def _is_in_map(array: Any) -> bool:
    """Whether an array is a view of a mmap object."""
    while isinstance(array, np.ndarray | memoryview):
        array = cast(Any, array.base if isinstance(array, np.ndarray) else array.obj)
    return isinstance(array, mmap.mmap)


def _attributes(array: Any) -> dict[str, Any]:
    """What a memmap says of its file."""
    known: dict[str, Any] = vars(array) if isinstance(array, np.memmap) else {}
    return {name: known[name] for name in ("filename", "offset", "mode") if name in known}


# What torch's own reductions of strided tensors begin with. Where they are others, whole storages are sent.
_from_type = getattr(cast(Any, torch)._tensor, "_rebuild_from_type_v2", None)
_from_storage = getattr(cast(Any, torch)._utils, "_rebuild_tensor_v2", None)
_has_names: Callable[[torch.Tensor], bool] | None = getattr(torch.Tensor, "has_names", None)


def _untyped(storage: Any) -> torch.UntypedStorage:
    return storage if isinstance(storage, torch.UntypedStorage) else storage._untyped_storage


def _hooks(tensor: torch.Tensor) -> Any:
    return getattr(tensor, "_backward_hooks", None)


def _check_leaf(tensor: torch.Tensor) -> None:
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError(
            f"A tensor of shape {tuple(tensor.shape)} requires grad and was computed from others: its graph cannot be "
            "sent to another process. Send tensor.detach()."
        )
