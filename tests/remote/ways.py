"""The two ways to read a URL, under one name: each test of what comes back runs on both."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from torchstage.remote import Remote

Read = Callable[..., bytes]

# Quick to give up: a test of an error waits for all its attempts.
PATIENT = Remote(num_retries=2, backoff_seconds=0.01, max_backoff_seconds=0.02, timeout_seconds=10, total_seconds=30)
IMPATIENT = Remote(num_retries=1, backoff_seconds=0.01, max_backoff_seconds=0.02, timeout_seconds=0.2, total_seconds=30)


def awaited(remote: Remote = PATIENT) -> Read:
    return lambda *arguments: asyncio.run(remote.fetch_bytes(*arguments))


def waited_for(remote: Remote = PATIENT) -> Read:
    return remote.read_bytes


WAYS = {"fetch_bytes": awaited, "read_bytes": waited_for}


def loops() -> list[Any]:
    """Functions that run a coroutine: asyncio's own loop, and uvloop's if it is installed."""
    runners: list[Callable[[Coroutine[Any, Any, Any]], Any]] = [asyncio.run]
    if sys.platform != "win32":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            runners.append(uvloop.run)
    return runners
