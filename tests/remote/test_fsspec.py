"""Other schemes: fsspec's filesystems, those with coroutines and those without, and which of their errors pass."""

import asyncio
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchstage.remote import Remote, RemoteError

from .servers import Nginx
from .ways import PATIENT, WAYS, Read

fsspec: Any = pytest.importorskip("fsspec", reason="needs fsspec (the extra 'remote')")
asyn: Any = pytest.importorskip("fsspec.asyn")

CONTENT = bytes(range(256))


class StatusError(Exception):
    """As the clients of web services raise it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"https://host/path?signature=hidden said {status}")
        self.status = status


class Trouble:
    """What happens, one thing a call; then the content."""

    happens: list[BaseException | bytes] = []  # noqa: RUF012 - of all, since fsspec makes the filesystems
    num_calls = 0

    @classmethod
    def next(cls, start: int | None, end: int | None) -> bytes:
        cls.num_calls += 1
        what = cls.happens.pop(0) if cls.happens else CONTENT[slice(start, end)]
        if isinstance(what, BaseException):
            raise what
        return what


class Plain(fsspec.AbstractFileSystem):
    protocol = "plain"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return Trouble.next(start, end)


class Asynchronous(asyn.AsyncFileSystem):
    protocol = "asynchronous"

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return Trouble.next(start, end)


@pytest.fixture(autouse=True, scope="module")
def filesystems() -> Iterator[None]:
    for kind in (Plain, Asynchronous):  # fsspec has no way to forget them
        fsspec.register_implementation(kind.protocol, kind, clobber=True)
    asyn.get_loop()  # its thread and its pipe live as long as the process
    yield
    for kind in (Plain, Asynchronous):
        kind.clear_instance_cache()


@pytest.fixture(autouse=True)
def no_trouble() -> None:
    Trouble.happens, Trouble.num_calls = [], 0


@pytest.fixture(params=list(WAYS))
def read(request: pytest.FixtureRequest) -> Read:
    return WAYS[request.param]()


@pytest.fixture(params=["plain", "asynchronous"])
def url(request: pytest.FixtureRequest) -> str:
    return f"{request.param}://some/file.bin"


def test_what_fsspec_reads_comes_whole_and_in_ranges(read: Read, url: str) -> None:
    assert read(url) == CONTENT
    assert read(url, (4, 9)) == CONTENT[4:9]
    assert read(url, (4, None)) == CONTENT[4:]


def test_a_real_filesystem_of_fsspec(read: Read) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/some/file.bin", CONTENT)
    try:
        assert read("memory://some/file.bin", (250, 256)) == CONTENT[250:]
        with pytest.raises(FileNotFoundError, match=r"^memory://some/none.bin: FileNotFoundError: "):
            read("memory://some/none.bin")
    finally:
        memory.rm("/some/file.bin")


def test_a_member_of_an_archive(read: Read, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("inside/b.bin", CONTENT)
    assert read(f"zip://inside/b.bin::file://{tmp_path}/a.zip", (1, 3)) == CONTENT[1:3]
    fsspec.get_filesystem_class("zip").clear_instance_cache()  # it keeps the archive open


@pytest.mark.parametrize("byte_range", [(250, 257), (256, None)])
def test_a_range_that_leaves_the_file_is_an_error(read: Read, url: str, byte_range: tuple[int, int | None]) -> None:
    with pytest.raises(RemoteError, match="the byte range"):
        read(url, byte_range)


def test_a_filesystem_that_ignores_ranges_is_an_error_and_not_other_bytes(read: Read, url: str) -> None:
    Trouble.happens = [CONTENT]
    with pytest.raises(RemoteError, match="256 bytes came instead of 4"):
        read(url, (2, 6))


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError("reset"), TimeoutError("late"), EOFError(), StatusError(503), StatusError(429)],
    ids=repr,
)
def test_what_passes_is_tried_again(read: Read, url: str, error: Exception) -> None:
    Trouble.happens = [error, error]
    assert read(url) == CONTENT
    assert Trouble.num_calls == 3


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("none"), FileNotFoundError),
        (StatusError(404), FileNotFoundError),
        (PermissionError("no"), PermissionError),
        (StatusError(403), PermissionError),
        (StatusError(400), RemoteError),
        (ValueError("what is this"), RemoteError),
        (OSError(5, "broken disk"), RemoteError),
    ],
    ids=repr,
)
def test_what_stays_is_tried_once_and_names_the_url(read: Read, url: str, error: Exception, kind: Any) -> None:
    Trouble.happens = [error]
    with pytest.raises(kind, match=rf"^{url}: .* \(1 attempt in") as found:
        read(url)
    assert Trouble.num_calls == 1
    assert isinstance(found.value, RemoteError)
    assert "hidden" not in str(found.value)


def test_what_keeps_happening_is_an_error_that_counts_the_attempts(read: Read, url: str) -> None:
    Trouble.happens = [ConnectionResetError("reset") for _ in range(9)]
    with pytest.raises(RemoteError, match=r"ConnectionResetError: reset \(3 attempts in"):
        read(url)
    assert Trouble.num_calls == 3


def test_a_broken_body_of_aiohttp_is_tried_again(read: Read, url: str) -> None:
    aiohttp: Any = pytest.importorskip("aiohttp")
    Trouble.happens = [aiohttp.ClientPayloadError("cut"), aiohttp.ServerDisconnectedError()]
    assert read(url) == CONTENT


def test_options_reach_the_filesystem() -> None:
    listed = Remote(storage_options={"some_option": 7})
    assert listed.read_bytes("plain://x") == CONTENT
    assert any(each.storage_options == {"some_option": 7} for each in Plain._cache.values())


def test_a_scheme_that_nobody_knows_is_an_error(read: Read) -> None:
    with pytest.raises(RemoteError, match=r"^nobody://a: .*Protocol not known"):
        read("nobody://a")


def test_a_cancelled_fetch_ends_the_filesystems_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def cancel_it() -> None:
        loop = asyncio.get_running_loop()

        async def wait_for_ever(*_: Any, **__: Any) -> bytes:
            loop.call_soon_threadsafe(began.set)
            try:
                return await asyncio.Future()
            finally:
                loop.call_soon_threadsafe(ended.set)

        monkeypatch.setattr(Asynchronous, "_cat_file", wait_for_ever)
        fetching = asyncio.create_task(PATIENT.fetch_bytes("asynchronous://x"))
        await began.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await asyncio.wait_for(ended.wait(), 10)

    asyncio.run(cancel_it())


def test_an_archive_behind_a_web_server(read: Read, nginx: Nginx) -> None:
    pytest.importorskip("aiohttp")
    with zipfile.ZipFile(nginx.files / "a.zip", "w") as archive:
        archive.writestr("b.bin", CONTENT)
    try:
        assert read(f"zip://b.bin::{nginx.url}/files/a.zip") == CONTENT
    finally:
        fsspec.get_filesystem_class("zip").clear_instance_cache()
        http = fsspec.get_filesystem_class("http")
        for each in list(http._cache.values()):
            if each._session is not None:
                asyncio.run_coroutine_threadsafe(each._session.close(), each.loop).result()
        http.clear_instance_cache()
