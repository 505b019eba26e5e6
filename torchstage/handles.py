"""Handles: an open file, archive, database, video or generator in, another of its own for one thread out.

Guarantees: the copy stands where the original stands and reads the same bytes, or ``CannotCopy`` says why there is
none; the original is read, never changed.
"""

import copy
import gzip
import io
import os
import random
import sqlite3
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

from torchstage.looking import is_a, packages

MAX_BYTES_SEARCHED = 16 * 1024 * 1024  # of a text file, for carriage returns


class CannotCopy(Exception):  # noqa: N818  # never leaves the package
    """Something that would have to be copied for each thread cannot be: why, and how to reach it."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"{path}: {why}" if path else why)
        self.why = why
        self.path = path

    def at(self, path: str) -> "CannotCopy":
        """The same with the path, unless it has one."""
        return self if self.path else CannotCopy(self.why, path)


def copied_generator(value: Any) -> Any:
    """A random generator in the same state."""
    if isinstance(value, torch.Generator):
        twin = torch.Generator(value.device)
        twin.set_state(value.get_state())
        return twin
    if type(value) is random.Random:
        own = random.Random()
        own.setstate(value.getstate())
        return own
    if isinstance(value, random.SystemRandom):  # it has no state
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise CannotCopy(f"it cannot be copied ({error!r})") from error


def copied_handle(value: Any, memo: dict[Any, Any]) -> Any:
    """A handle of the same kind on the same file, in the same place. ``memo`` holds what was copied for this thread."""
    if id(value) in memo:
        return memo[id(value)]
    try:
        twin = _copy_of(value, memo)
    except CannotCopy:
        raise
    except Exception as error:  # a closed file, a connection of another thread, a file that is gone
        raise CannotCopy(f"it cannot be opened again ({error!r})") from error
    memo[id(value)] = twin
    return twin


def _copy_of(value: Any, memo: dict[Any, Any]) -> Any:
    kind = cast(Any, type(value))
    known: dict[type, Callable[[Any, dict[Any, Any]], Any]] = {
        io.BufferedReader: _binary_file,
        io.FileIO: _binary_file,
        io.TextIOWrapper: _text_file,
        io.BytesIO: _bytes_io,
        io.StringIO: _string_io,
        gzip.GzipFile: _gzip_file,
        tarfile.TarFile: _tar,
        zipfile.ZipFile: _zip,
        sqlite3.Connection: _connection,
        sqlite3.Cursor: _cursor,
    }
    if kind in known:
        return known[kind](value, memo)
    found = packages(kind)
    name = kind.__name__
    if "h5py" in found and name in ("File", "Group", "Dataset"):
        return _hdf5(value, memo)
    if kind is _class("lmdb", "Environment") or kind is _class("lmdb", "_Database"):
        return value  # threads may share it; what they must not share are its transactions and cursors
    if "av" in found and name == "InputContainer":
        return _container(value)
    if "av" in found and name.endswith("Stream") and hasattr(value, "container"):
        return copied_handle(value.container, memo).streams[value.index]
    if "PIL" in found:
        return _image(value, memo)
    raise CannotCopy("there is no way to open it a second time")


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


# Files ------------------------------------------------------------------------------------------------------


def _binary_file(value: Any, memo: dict[Any, Any]) -> Any:
    if value.writable():
        raise CannotCopy("it is open for writing")
    if type(value) is io.BufferedReader and type(value.raw) is not io.FileIO:
        raise CannotCopy("it reads from another file object")
    name: Any = value.name
    if not isinstance(name, str | bytes | os.PathLike):
        raise CannotCopy("it has no name to open it by")
    file = io.FileIO(cast(str, name))
    twin: Any = file if is_a(value, io.FileIO) else io.BufferedReader(file)
    if not os.path.samestat(os.fstat(value.fileno()), os.fstat(twin.fileno())):
        twin.close()
        raise CannotCopy(f"{name!r} is another file by now")
    twin.seek(value.tell())
    return twin


def _text_file(value: Any, memo: dict[Any, Any]) -> Any:
    if value.writable():
        raise CannotCopy("it is open for writing")
    if type(value.buffer) is not io.BufferedReader:
        raise CannotCopy("it reads from another file object")
    buffer = _binary_file(value.buffer, memo)
    size = os.fstat(buffer.fileno()).st_size
    buffer.seek(0)
    if size > MAX_BYTES_SEARCHED or b"\r" in buffer.read():  # nothing tells with which ``newline`` it was opened
        buffer.close()
        raise CannotCopy("whether it translates line ends cannot be known; open it in binary mode")
    buffer.seek(0)
    twin = io.TextIOWrapper(buffer, encoding=value.encoding, errors=value.errors)
    twin.seek(value.tell())
    return twin


def _bytes_io(value: Any, memo: dict[Any, Any]) -> Any:
    twin = io.BytesIO(value.getvalue())
    twin.seek(value.tell())
    return twin


def _string_io(value: Any, memo: dict[Any, Any]) -> Any:
    text = value.getvalue()
    if "\r" in text:
        raise CannotCopy("whether it translates line ends cannot be known")
    twin = io.StringIO(text)
    twin.seek(value.tell())
    return twin


def _gzip_file(value: Any, memo: dict[Any, Any]) -> Any:
    if value.mode not in (1, "rb"):  # gzip.READ; a string in later releases
        raise CannotCopy("it is open for writing")
    if value.myfileobj is None:
        raise CannotCopy("it reads from a file object that it was given")
    twin = gzip.GzipFile(value.name, "rb")
    twin.seek(value.tell())
    return twin


# Archives ---------------------------------------------------------------------------------------------------


def _tar(value: Any, memo: dict[Any, Any]) -> Any:
    if value.mode != "r":
        raise CannotCopy("it is open for writing")
    twin: Any = object.__new__(tarfile.TarFile)
    file = copied_handle(value.fileobj, memo)
    twin.__dict__.update(value.__dict__, fileobj=file, members=list(value.members), _extfileobj=False)
    return twin


def _zip(value: Any, memo: dict[Any, Any]) -> Any:
    if value.mode != "r":
        raise CannotCopy("it is open for writing")
    if not {"fp", "_lock", "_fileRefCnt", "_filePassed"} <= value.__dict__.keys():  # another release's insides
        if not isinstance(value.filename, str):
            raise CannotCopy("it has no name to open it by")
        return zipfile.ZipFile(value.filename)
    twin: Any = object.__new__(zipfile.ZipFile)  # the directory is not read again: it may have a million entries
    file = copied_handle(value.fp, memo)
    twin.__dict__.update(value.__dict__, fp=file, _lock=threading.RLock(), _fileRefCnt=1, _filePassed=0)
    return twin


# Databases --------------------------------------------------------------------------------------------------


def _connection(value: Any, memo: dict[Any, Any]) -> Any:
    if value.in_transaction:
        raise CannotCopy("it has a transaction that is not committed")
    if sqlite3.converters.keys() - {"DATE", "TIMESTAMP"}:  # nothing tells whether it uses them
        raise CannotCopy("whether it converts by declared types cannot be known")
    databases: list[Any] = [row for row in value.execute("PRAGMA database_list").fetchall() if row[1] != "temp"]
    if databases[0][2]:
        twin = sqlite3.connect(databases[0][2], isolation_level=value.isolation_level, check_same_thread=False)
        for _, name, file in databases[1:]:
            if not file:
                twin.close()
                raise CannotCopy(f"its attached database {name!r} is in memory")
            twin.execute("ATTACH DATABASE ? AS " + '"' + name.replace('"', '""') + '"', (file,))
    elif len(databases) > 1:
        raise CannotCopy("it is in memory and has other databases attached")
    else:
        twin = sqlite3.connect(":memory:", isolation_level=value.isolation_level, check_same_thread=False)
        value.backup(twin)
    twin.row_factory, twin.text_factory = value.row_factory, value.text_factory
    return twin


def _cursor(value: Any, memo: dict[Any, Any]) -> Any:
    twin = copied_handle(value.connection, memo).cursor()
    twin.row_factory, twin.arraysize = value.row_factory, value.arraysize
    return twin


def _hdf5(value: Any, memo: dict[Any, Any]) -> Any:
    file: Any = value.file
    if file.mode != "r" or file.driver != "sec2":
        raise CannotCopy(f"it is open in mode {file.mode!r} with driver {file.driver!r}")
    key = ("h5py", file.filename)
    if key not in memo:
        memo[key] = _class("h5py", "File")(file.filename, "r")
    if type(value) is _class("h5py", "File"):
        return memo[key]
    if value.name is None:
        raise CannotCopy("it has no name in its file")
    return memo[key][value.name]


# Pictures and videos ----------------------------------------------------------------------------------------


def _container(value: Any) -> Any:
    if value.file is not None:
        raise CannotCopy("it reads from a file object that it was given")
    twin = _class("av", "open")(value.name, options=dict(value.options))
    for old, new in zip(value.streams, twin.streams, strict=True):
        if getattr(old, "codec_context", None) is not None:
            new.thread_type = old.thread_type
            new.codec_context.thread_count = old.codec_context.thread_count
    return twin


def _image(value: Any, memo: dict[Any, Any]) -> Any:
    """The picture, read whole: it may be handed to the user, who must not find its file closed."""
    name: Any = getattr(value, "filename", "")
    source: Any = name if isinstance(name, str) and name else _bytes_io(value.fp, memo)
    if not (isinstance(source, str) or is_a(value.fp, io.BytesIO)):
        raise CannotCopy("it reads from a file object that it was given")
    if not isinstance(source, str):
        source.seek(0)
    twin = _class("PIL.Image", "open")(source)
    if (twin.format, twin.size, twin.mode) != (value.format, value.size, value.mode):
        twin.close()
        raise CannotCopy("it was set up to be read in another way")
    if getattr(value, "n_frames", 1) > 1:
        raise CannotCopy("it has several frames")
    twin.load()
    return twin


def close(value: Any) -> None:
    """Close a handle that was opened for one thread."""
    if isinstance(value, np.random.Generator) or "PIL" in packages(cast(Any, type(value))):
        return
    end = getattr(value, "close", None)
    if end is not None:
        end()
