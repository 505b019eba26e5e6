"""Many requests at once, on any loop and thread; connections that are reused; cancelling, copying and forking."""

import asyncio
import copy
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from torchstage.remote import Remote, RemoteError, close_connections, fetch_bytes, read_bytes
from torchstage.remote.errors import RemoteNotFoundError, RemotePermissionError, RemoteTimeoutError

from .servers import Client, Nginx, ScriptedServer
from .ways import PATIENT, loops

NUM_IN_FLIGHT = 64
WAIT_SECONDS = 30  # for what has to happen: a test that waits this long fails


class Gathering:
    """An answer that comes when ``size`` requests are there: at once, or never."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)

    def __call__(self, client: Client, _: int) -> None:
        self._barrier.wait(WAIT_SECONDS)
        client.send("200 OK", client.path.encode())


@pytest.mark.parametrize("run", loops(), ids=lambda run: run.__module__)
def test_64_requests_are_in_flight_at_once(run: Any, script: ScriptedServer) -> None:
    gathering = Gathering(NUM_IN_FLIGHT)
    names = [f"/{number}" for number in range(3 * NUM_IN_FLIGHT)]
    for name in names:
        script.answers[name[1:]] = gathering

    async def fetch_all() -> list[bytes]:
        waiting = iter(names)
        bodies: dict[str, bytes] = {}

        async def fetch_some() -> None:
            for name in waiting:
                bodies[name] = await fetch_bytes(script.url + name)

        await asyncio.gather(*(fetch_some() for _ in range(NUM_IN_FLIGHT)))
        return [bodies[name] for name in names]

    assert run(fetch_all()) == [name.encode() for name in names]
    # Three rounds on the same ones; an answer may be here a moment before its connection is free again.
    assert NUM_IN_FLIGHT <= script.num_connections <= 2 * NUM_IN_FLIGHT


def test_connections_are_used_again_on_every_loop_and_thread(script: ScriptedServer) -> None:
    script.answers["x"] = lambda client, _: client.send("200 OK", b"x")
    url = f"{script.url}/x"
    bodies = [run(fetch_bytes(url)) for run in loops() for _ in range(10)]
    bodies += [read_bytes(url) for _ in range(10)]
    with ThreadPoolExecutor(1) as thread:
        bodies += [thread.submit(read_bytes, url).result(), thread.submit(asyncio.run, fetch_bytes(url)).result()]
    assert set(bodies) == {b"x"}
    # One, but that an answer may be here a moment before its connection is free again.
    assert script.num_connections <= len(bodies) / 2


def test_a_loop_in_a_background_thread_serves_other_threads(nginx: Nginx, data: bytes) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        ranges = [(number, number + 1000) for number in range(NUM_IN_FLIGHT)]
        url = f"{nginx.url}/files/some.bin"
        futures = [asyncio.run_coroutine_threadsafe(fetch_bytes(url, each), loop) for each in ranges]
        assert [future.result() for future in futures] == [data[slice(*each)] for each in ranges]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_equal_settings_share_connections_and_others_do_not(script: ScriptedServer) -> None:
    from torchstage.remote import stores

    script.answers["x"] = lambda client, _: client.send("200 OK", b"x")
    first = Remote(client_options={"default_headers": {"a": "1"}})
    for each in (first, copy.deepcopy(first), pickle.loads(pickle.dumps(first)), copy.copy(first)):
        assert each == first
        assert hash(each) == hash(first)
        each.read_bytes(f"{script.url}/x")
    assert len(stores._stores) == 1
    Remote(client_options={"default_headers": {"a": "2"}}).read_bytes(f"{script.url}/x")
    assert len(stores._stores) == 2
    assert ["a: 2" in head for head in script.heads] == [False] * 4 + [True]


def test_closed_connections_are_made_anew(script: ScriptedServer) -> None:
    gone = threading.Event()

    def answer(client: Client, num_before: int) -> None:
        client.send("200 OK", b"x")
        if num_before == 0:
            client.wait_until_it_hangs_up()
            gone.set()

    script.answers["x"] = answer
    assert read_bytes(f"{script.url}/x") == b"x"
    close_connections()
    assert gone.wait(WAIT_SECONDS)
    assert read_bytes(f"{script.url}/x") == b"x"
    assert script.num_connections == 2


def test_a_connection_that_the_server_closed_meanwhile_costs_no_error(script: ScriptedServer) -> None:
    def answer(client: Client, _: int) -> None:
        client.send("200 OK", b"x")
        client.hang_up()

    script.answers["x"] = answer
    for _ in range(20):
        assert PATIENT.read_bytes(f"{script.url}/x") == b"x"


def test_the_stores_used_last_are_kept(script: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchstage.remote import stores

    made: list[str] = []
    make = stores._make_client
    monkeypatch.setattr(stores, "NUM_STORES", 2)
    monkeypatch.setattr(
        stores, "_make_client", lambda address, remote: made.append(address.root) or make(address, remote)
    )
    for name in ("a", "b", "a", "c", "a", "b"):
        script.answers[name] = lambda client, _: client.send("200 OK", b"x")
        read_bytes(f"{script.url}/{name}/")  # the slash at the end: a store of its own
    assert made == [f"{script.url}/{name}/" for name in ("a", "b", "c", "b")]  # b was let go for c, and a was not
    assert len(stores._stores) == 2


@pytest.mark.parametrize("run", loops(), ids=lambda run: run.__module__)
@pytest.mark.parametrize("half", [False, True], ids=["before the answer", "in the body"])
def test_a_cancelled_fetch_drops_its_connection_and_leaves_nothing(
    run: Any, half: bool, script: ScriptedServer
) -> None:
    arrived, gone = threading.Semaphore(0), threading.Semaphore(0)

    def say_nothing_more(client: Client, _: int) -> None:
        if half:
            client.send("200 OK", b"half", content_length="8")
        arrived.release()
        client.wait_until_it_hangs_up()
        gone.release()

    for number in range(NUM_IN_FLIGHT):
        script.answers[str(number)] = say_nothing_more

    async def begin_and_cancel() -> list[Any]:
        tasks = [asyncio.create_task(fetch_bytes(f"{script.url}/{number}")) for number in range(NUM_IN_FLIGHT)]
        for _ in tasks:
            assert await asyncio.to_thread(arrived.acquire, timeout=WAIT_SECONDS)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return ends

    assert {type(end) for end in run(begin_and_cancel())} == {asyncio.CancelledError}
    for _ in range(NUM_IN_FLIGHT):
        assert gone.acquire(timeout=WAIT_SECONDS)
    assert sum(script.num_requests.values()) == NUM_IN_FLIGHT  # what was cancelled is not tried again


def test_a_fetch_that_waits_for_its_next_attempt_is_cancelled_at_once(script: ScriptedServer) -> None:
    arrived = threading.Event()

    def answer(client: Client, _: int) -> None:
        client.send("200 OK", b"half", content_length="8")
        client.hang_up()
        arrived.set()

    script.answers["cut"] = answer
    slow = Remote(backoff_seconds=1e6, max_backoff_seconds=1e6, total_seconds=1e9)

    async def begin_and_cancel() -> None:
        task = asyncio.create_task(slow.fetch_bytes(f"{script.url}/cut"))
        assert await asyncio.to_thread(arrived.wait, WAIT_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(begin_and_cancel())
    assert script.num_requests == {"cut": 1}


def test_a_loop_may_be_closed_while_a_fetch_is_under_way(script: ScriptedServer) -> None:
    """As when a program ends: nothing is printed, nothing hangs, and the next loop fetches."""
    gone = threading.Event()

    def say_nothing(client: Client, _: int) -> None:
        client.wait_until_it_hangs_up()
        gone.set()

    script.answers["silent"] = say_nothing
    script.answers["x"] = lambda client, _: client.send("200 OK", b"x")

    async def begin() -> asyncio.Task[bytes]:
        task = asyncio.create_task(fetch_bytes(f"{script.url}/silent"))
        while not script.num_requests:
            await asyncio.sleep(0)
        return task

    assert asyncio.run(begin()).cancelled()  # asyncio.run cancels what is left
    assert gone.wait(WAIT_SECONDS)
    assert asyncio.run(fetch_bytes(f"{script.url}/x")) == b"x"


@pytest.mark.parametrize("kind", [RemoteError, RemoteNotFoundError, RemotePermissionError, RemoteTimeoutError])
def test_errors_keep_what_they_say_in_a_pickle(kind: type[RemoteError]) -> None:
    copied = pickle.loads(pickle.dumps(kind("https://host/x: no", "https://host/x", 503, 3)))
    assert type(copied) is kind
    assert str(copied) == "https://host/x: no"
    assert (copied.url, copied.status, copied.num_attempts) == ("https://host/x", 503, 3)


@pytest.mark.parametrize("name", ["num_retries", "backoff_seconds", "timeout_seconds", "total_seconds"])
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be .*, got -1"):
        Remote(**{name: -1})


class Urls(Dataset[bytes]):
    def __init__(self, urls: list[str]) -> None:
        self.urls, self.remote = urls, Remote()

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, index: int) -> bytes:
        return self.remote.read_bytes(self.urls[index])


FORKS = """
import os, signal, sys
from torchstage.remote import read_bytes

def in_a_fork():
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)  # an end for the child, should it wait for ever
        try:
            print(len(read_bytes(sys.argv[1])), flush=True)
        except RuntimeError as error:
            print(error, flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

in_a_fork()
print(len(read_bytes(sys.argv[1])), flush=True)
in_a_fork()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_fetches_unless_its_parent_has_fetched(nginx: Nginx, data: bytes) -> None:
    """obstore's threads do not survive a fork; the child would wait for them for ever."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, f"{nginx.url}/files/some.bin"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines[:2] == [str(len(data))] * 2
    assert re.search(r"was forked from one .* that had fetched by URL.*'forkserver' or 'spawn'", lines[2])


def test_a_spawned_worker_fetches_and_its_errors_come_back(nginx: Nginx, data: bytes) -> None:
    dataset = Urls([f"{nginx.url}/files/some.bin", f"{nginx.url}/files/none.bin"])
    assert dataset[0] == data
    loader = iter(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    assert next(loader) == data
    with pytest.raises(FileNotFoundError, match=r"none\.bin: HTTP status 404") as found:
        next(loader)
    assert isinstance(found.value, RemoteNotFoundError)
    assert next(loader, None) is None  # to its end, so that torch ends the worker at once
