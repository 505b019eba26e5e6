"""Remote: bytes by URL, awaited (``fetch_bytes``) or waited for (``read_bytes``). ``docs/remote.md`` explains it.

Guarantees: what comes back is whole, or an exception that names the URL; connections belong to the process and are
reused by every thread and event loop in it.
"""

from torchstage.remote.errors import RemoteError, RemoteNotFoundError, RemotePermissionError, RemoteTimeoutError
from torchstage.remote.fetching import Remote, fetch_bytes, read_bytes
from torchstage.remote.stores import close_connections

__all__ = [
    "Remote",
    "RemoteError",
    "RemoteNotFoundError",
    "RemotePermissionError",
    "RemoteTimeoutError",
    "close_connections",
    "fetch_bytes",
    "read_bytes",
]
