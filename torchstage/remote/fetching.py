"""Fetching: a URL and a byte range in, bytes out.

Web servers and object stores are read by obstore, files by Python, everything else by fsspec. obstore tries again
what fails before an answer has come (5xx, 429, 408, a refused, reset or silent connection) and resumes a body that
was cut if the server sent an ETag. What is left is done here: bodies without one, and fsspec.

Guarantees: all bytes or an exception; no attempt begins later than ``total_seconds`` after the first and none lasts
longer; a cancelled ``fetch_bytes`` drops its connection and leaves nothing running, except that a file or an fsspec
filesystem without ``async`` is read to the end in its thread.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from torchstage.remote.address import Address, address_of
from torchstage.remote.errors import (
    AttemptError,
    from_fsspec,
    from_obstore,
    from_obstore_in_one_go,
    out_of_range,
    short_body,
)
from torchstage.remote.stores import Store, filesystem_of, frozen, store_of, the_library

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult

ANY_END = 2**53  # of a file whose size is not known: servers end a range where the file ends. 9 PB, exact everywhere
URL = str | os.PathLike[str]
ByteRange = tuple[int, int | None]  # first, and one past the last; None is the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """How to read URLs. Plain values: it can be pickled, copied and shared by threads; connections are not in it.

    ``storage_options`` go to the object store or to fsspec (``{"endpoint": ..., "skip_signature": True}``), not to web
    servers; ``client_options`` are obstore's, for web servers and object stores (``{"default_headers": {...}}``).
    Neither is shown by ``repr``; change neither once it is passed. Raises ValueError for numbers that cannot be meant.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    client_options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False, hash=False)
    num_retries: int = 5
    """After the first attempt."""
    backoff_seconds: float = 0.1
    """Before the first retry; doubles, and is drawn at random below that."""
    max_backoff_seconds: float = 15.0
    """It doubles up to that."""
    timeout_seconds: float = 30.0
    """A server's longest silence."""
    total_seconds: float = 180.0
    """No attempt begins later than that after the first."""
    whole_as_range: bool = True
    """Ask for a whole file as ``bytes=0-``: a third less CPU time where servers take it."""
    key: Hashable = field(init=False, repr=False, compare=False)  # of the stores made for it; valid in this process

    def __post_init__(self) -> None:
        if self.num_retries < 0:
            raise ValueError(f"num_retries must be 0 or more, got {self.num_retries}")
        for name in ("backoff_seconds", "max_backoff_seconds", "timeout_seconds", "total_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        object.__setattr__(self, "key", frozen(self._settings()))

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], Remote], tuple[dict[str, Any]]]:
        return _remote_of, (self._settings(),)

    def _settings(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    async def fetch_bytes(self, url: URL, byte_range: ByteRange | None = None) -> bytes:
        """All bytes at ``url``, or those of ``byte_range`` (its end is exclusive; None is the end of the file).

        Runs on any event loop, in any thread. Raises RemoteError, or one of its kinds that are FileNotFoundError,
        PermissionError and TimeoutError too; for a file what ``open`` raises; ValueError for a malformed URL or range;
        ImportError if the extra is missing.
        """
        if _is_empty(byte_range):
            return b""
        address = address_of(url)
        if address.reader == "file":
            return await asyncio.to_thread(_read_file, address, byte_range)
        attempts = _Attempts(self, address)
        while True:
            try:
                if address.reader == "obstore":
                    return await self._fetch_from_store(address, byte_range, attempts.num_retries == 0)
                return await self._fetch_by_fsspec(address, byte_range)
            except AttemptError as failed:
                seconds = attempts.seconds_to_wait_after(failed)
            await asyncio.sleep(seconds)

    def read_bytes(self, url: URL, byte_range: ByteRange | None = None) -> bytes:
        """As ``fetch_bytes``, in this thread, which waits without the GIL."""
        if _is_empty(byte_range):
            return b""
        address = address_of(url)
        if address.reader == "file":
            return _read_file(address, byte_range)
        attempts = _Attempts(self, address)
        while True:
            try:
                if address.reader == "obstore":
                    return self._read_from_store(address, byte_range)
                return self._read_by_fsspec(address, byte_range)
            except AttemptError as failed:
                seconds = attempts.seconds_to_wait_after(failed)
            time.sleep(seconds)

    async def _fetch_from_store(self, address: Address, byte_range: ByteRange | None, is_first: bool) -> bytes:
        store, obstore = store_of(address, self), the_library()
        if is_first and store.takes_ranges:
            body = await self._fetch_in_one_go(store, address, byte_range)
            if body is not None:
                return body
        result = None
        try:
            result = await obstore.get_async(store.client, address.path, options=_options(byte_range))
            body = await result.bytes_async()
        except obstore.errors as error:
            # obstore's threads let go of the future that holds this error late; without its traceback, that holds
            # neither this frame nor the store and its connections.
            raise from_obstore(error.with_traceback(None), in_body=result is not None) from None
        return _whole(body.to_bytes(), result, byte_range)

    async def _fetch_in_one_go(self, store: Store, address: Address, byte_range: ByteRange | None) -> bytes | None:
        """A range comes from obstore with one answer to wait for; anything else with two, head and body, which costs
        a third more. None where the answer leaves a doubt: the slower way then says what is the matter."""
        obstore = the_library()
        start, end = byte_range or (0, None)
        try:
            body = await obstore.get_range_async(store.client, address.path, start=start, end=end or ANY_END)
        except obstore.errors as error:
            failed = from_obstore_in_one_go(error.with_traceback(None))
            if failed is not None:
                raise failed from None
            if isinstance(error, obstore.NotSupportedError):
                store.takes_ranges = False
            return None
        return body.to_bytes() if end is None or len(body) == end - start else None

    def _read_from_store(self, address: Address, byte_range: ByteRange | None) -> bytes:
        store, obstore = store_of(address, self), the_library()
        result = None
        try:
            result = obstore.get(store.client, address.path, options=_options(byte_range))
            body = result.bytes()
        except obstore.errors as error:
            raise from_obstore(error, in_body=result is not None) from None
        return _whole(body.to_bytes(), result, byte_range)

    async def _fetch_by_fsspec(self, address: Address, byte_range: ByteRange | None) -> bytes:
        filesystem, path = await asyncio.to_thread(self._filesystem_of, address)
        if not filesystem.async_impl:
            return await asyncio.to_thread(_cat, filesystem, path, byte_range)
        start, end = byte_range or (None, None)
        reading = filesystem._cat_file(path, start=start, end=end)
        try:  # fsspec's coroutines belong to its own event loop, in its own thread
            future = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, filesystem.loop))
            async with asyncio.timeout(self.total_seconds):
                body = await future
        except Exception as error:
            raise from_fsspec(error) from None
        return _of_range(body, byte_range)

    def _read_by_fsspec(self, address: Address, byte_range: ByteRange | None) -> bytes:
        filesystem, path = self._filesystem_of(address)
        return _cat(filesystem, path, byte_range)

    def _filesystem_of(self, address: Address) -> tuple[Any, str]:
        try:
            return filesystem_of(address.path, self.storage_options)
        except ImportError:
            raise
        except Exception as error:
            raise from_fsspec(error) from None


def _remote_of(settings: dict[str, Any]) -> Remote:
    return Remote(**settings)


class _Attempts:
    """Counts the attempts of one fetch and says how long to wait before the next, or raises what the last one met."""

    def __init__(self, remote: Remote, address: Address) -> None:
        self._remote, self._address = remote, address
        self._start = time.monotonic()
        self.num_retries = self._num_requests = 0

    def seconds_to_wait_after(self, failed: AttemptError) -> float:
        remote, passed = self._remote, time.monotonic() - self._start
        self._num_requests += failed.num_attempts
        longest = min(remote.max_backoff_seconds, remote.backoff_seconds * 2.0**self.num_retries)
        seconds = random.Random().uniform(0, longest)  # its own generator: the caller's draws are not ours to use
        is_last = self.num_retries >= remote.num_retries or passed + seconds > remote.total_seconds
        if is_last or not failed.is_transient:
            raise failed.error(self._address.shown, self._num_requests, passed) from None
        self.num_retries += 1
        return seconds


def _is_empty(byte_range: ByteRange | None) -> bool:
    """Whether there is nothing to ask for. Raises ValueError for a range that is none."""
    if byte_range is None:
        return False
    start, end = byte_range
    if start < 0 or (end is not None and end < start):
        raise ValueError(f"byte_range is (first, one past the last), with 0 <= first <= last, got {byte_range}")
    return start == end


def _options(byte_range: ByteRange | None) -> GetOptions | None:
    if byte_range is None:
        return None
    start, end = byte_range
    if end is not None:
        return {"range": (start, end)}
    return {"range": {"offset": start}} if start else None  # an empty file has no byte 0 to begin with


def _whole(body: bytes, result: GetResult, byte_range: ByteRange | None) -> bytes:
    """The body, if it is as long as the answer's header said, and as the caller did."""
    first, last = result.range
    if len(body) != last - first:
        raise short_body(len(body), last - first)
    return _of_range(body, byte_range)


def _of_range(body: bytes, byte_range: ByteRange | None) -> bytes:
    """The body, if it is what the caller asked for: a range that leaves the file is an error, not short data."""
    start, end = byte_range or (0, None)
    wanted = min(start, 1) if end is None else end - start  # an open range that begins in the file has a byte
    if len(body) < wanted or (end is not None and len(body) > wanted):
        raise out_of_range(len(body), wanted)
    return body


def _read_file(address: Address, byte_range: ByteRange | None) -> bytes:
    start, end = byte_range or (0, None)
    with open(address.path, "rb") as file:  # noqa: PTH123 - 5 µs less than Path.open
        file.seek(start)
        body = file.read() if end is None else file.read(end - start)
    try:
        return _of_range(body, byte_range)
    except AttemptError as failed:
        raise failed.error(address.shown, 1, 0.0) from None


def _cat(filesystem: Any, path: str, byte_range: ByteRange | None) -> bytes:
    start, end = byte_range or (None, None)
    try:
        body = filesystem.cat_file(path, start=start, end=end)
    except Exception as error:
        raise from_fsspec(error) from None
    return _of_range(body, byte_range)


DEFAULT = Remote()


async def fetch_bytes(url: URL, byte_range: ByteRange | None = None) -> bytes:
    """``Remote().fetch_bytes``: five retries, 30 s of silence, 180 s in all; credentials from the environment.

    Args:
        url: ``https://``, ``s3://``, ``file://`` and others, or a path.
        byte_range: the first byte, and one past the last; None for that: to the end. Without a range: all.
    """
    return await DEFAULT.fetch_bytes(url, byte_range)


def read_bytes(url: URL, byte_range: ByteRange | None = None) -> bytes:
    """``Remote().read_bytes``: as ``fetch_bytes``, ``url`` and ``byte_range`` too, in this thread."""
    return DEFAULT.read_bytes(url, byte_range)
