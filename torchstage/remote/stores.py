"""Stores: an address and options in, obstore's or fsspec's object with its open connections out.

Guarantees: equal addresses and options share one store, in every thread and event loop of a process, so connections
are reused; at most NUM_STORES are kept. A process that was forked after its parent fetched is told so: it would hang.
"""

from __future__ import annotations

import base64
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote
from urllib.request import getproxies_environment

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from torchstage.remote.address import Address
    from torchstage.remote.fetching import Remote

NUM_STORES = 256  # a store is a client of a server or bucket; making one takes 6 ms: it reads the root certificates
MISSING = "{} needs {}. Install it with: pip install 'torchstage[remote]'"

_stores: OrderedDict[Any, Store] = OrderedDict()  # the one used last stands last
_lock = threading.Lock()  # held for a look-up only
_process_id: int | None = None  # where obstore's threads run; they begin with the first request


@dataclass(slots=True)
class Store:
    """obstore's client, and whether a whole file may be asked for as a range: not of a server that was seen to ignore
    ranges, and not through a proxy, which may keep whole files only."""

    client: ObjectStore
    takes_ranges: bool


def store_of(address: Address, remote: Remote) -> Store:
    """The store of this address, made if it is new. Raises ImportError, RuntimeError in a forked process, and
    ValueError for options that obstore does not know."""
    _refuse_after_fork()
    key = (address.root, address.user_info, remote.key)
    with _lock:
        if key in _stores:
            _stores.move_to_end(key)
            return _stores[key]
    takes_ranges = remote.whole_as_range and not _has_proxy(address, remote)
    made = Store(
        _make_client(address, remote), takes_ranges
    )  # outside the lock: two threads may make the same one, and one is dropped
    with _lock:
        store = _stores.setdefault(key, made)
        while len(_stores) > NUM_STORES:
            _stores.popitem(last=False)
    return store


class Library(NamedTuple):
    """What of obstore a request needs."""

    get: Any
    get_async: Any
    get_range_async: Any
    errors: tuple[type[Exception], ...]  # all that a request raises
    NotSupportedError: type[Exception]


@cache
def the_library() -> Library:
    """Looked up once: an import statement in a function costs a microsecond each time."""
    from obstore import get, get_async, get_range_async
    from obstore.exceptions import BaseError, NotSupportedError

    return Library(get, get_async, get_range_async, (BaseError, OSError), NotSupportedError)


def close_connections() -> None:
    """Let go of every idle connection of this process to web servers and object stores. What is under way goes on; the
    next request opens new ones. fsspec keeps its own."""
    with _lock:
        _stores.clear()


def filesystem_of(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """fsspec's filesystem for this URL, and the path in it. May read, a zip's directory say: not for event loops."""
    try:
        from fsspec.core import url_to_fs  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError as error:
        raise ImportError(MISSING.format(f"{url.partition('://')[0]}://", "fsspec")) from error
    return cast("tuple[Any, str]", url_to_fs(url, **options))


def _make_client(address: Address, remote: Remote) -> ObjectStore:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import HTTPStore, from_url
    except ImportError as error:
        raise ImportError(MISSING.format(f"{address.root.partition('://')[0]}://", "obstore")) from error
    options: Any = {
        # obstore's own limit covers the whole answer: 30 s, too short for a large file and too long for silence
        "timeout": timedelta(seconds=remote.total_seconds),
        "read_timeout": timedelta(seconds=remote.timeout_seconds),
        "connect_timeout": timedelta(seconds=min(remote.timeout_seconds, remote.total_seconds)),
        "allow_http": _is_plain(address, remote),
        **remote.client_options,
    }
    retries: Any = {
        "max_retries": remote.num_retries,
        "retry_timeout": timedelta(seconds=remote.total_seconds),
        "backoff": {
            "init_backoff": timedelta(seconds=remote.backoff_seconds),
            "max_backoff": timedelta(seconds=remote.max_backoff_seconds),
            "base": 2,
        },
    }
    if address.root.startswith(("http://", "https://")):
        if address.user_info:  # obstore sends none of it
            token = base64.b64encode(unquote(address.user_info).encode()).decode()
            headers = {"Authorization": f"Basic {token}", **options.get("default_headers", {})}
            options["default_headers"] = headers
        return HTTPStore(address.root, client_options=options, retry_config=retries)
    try:
        return from_url(address.root, client_options=options, retry_config=retries, **remote.storage_options)
    except BaseError as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{address.root}: obstore does not take these storage_options: {reason}") from None


def _is_plain(address: Address, remote: Remote) -> bool:
    """Whether it is unencrypted HTTP: by the URL, or by the endpoint of an object store, as in a test or a cluster."""
    if address.root.startswith("http"):
        return address.root.startswith("http://")
    environment = [value for name, value in os.environ.items() if name.startswith("AWS_ENDPOINT")]
    return any(str(value).startswith("http://") for value in (*remote.storage_options.values(), *environment))


def _has_proxy(address: Address, remote: Remote) -> bool:
    """Whether a proxy that can look into the answers may stand between."""
    if not address.root.startswith("http://"):
        return False
    return bool({"http", "all"} & getproxies_environment().keys()) or "proxy_url" in remote.client_options


def frozen(value: Any) -> Any:
    """Hashable, and equal for equal plain settings, also in a copy. Anything else (a credential provider) is equal to
    itself; its store keeps it alive."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return frozenset((name, frozen(item)) for name, item in items)
    if isinstance(value, list | tuple):
        return tuple(map(frozen, cast("Sequence[Any]", value)))
    return value if isinstance(value, Hashable) else id(value)


def _refuse_after_fork() -> None:
    """obstore's threads end with a fork and a request in the child would wait for them for ever."""
    global _process_id
    if _process_id is None:
        _process_id = os.getpid()
    elif _process_id != os.getpid():
        raise RuntimeError(
            f"this process ({os.getpid()}) was forked from one ({_process_id}) that had fetched by URL, and obstore's "
            "threads do not survive a fork. Start workers with multiprocessing_context='forkserver' or 'spawn', or "
            "fetch nothing before the fork."
        )
