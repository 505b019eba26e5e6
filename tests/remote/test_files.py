"""Files of this machine: by path and by file URL, without blocking an event loop."""

import asyncio
import os
from pathlib import Path

import pytest

from torchstage.remote import RemoteError, fetch_bytes, read_bytes

from .ways import WAYS, Read

CONTENT = bytes(range(256))


@pytest.fixture(params=list(WAYS))
def read(request: pytest.FixtureRequest) -> Read:
    return WAYS[request.param]()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a b%20ü.bin"  # a path is taken literally
    path.write_bytes(CONTENT)
    return path


def test_a_path_and_a_file_url_name_the_same_file(read: Read, path: Path) -> None:
    assert read(path) == read(str(path)) == read(path.as_uri()) == CONTENT
    assert read(path.as_uri().replace("file:///", "file://localhost/")) == CONTENT


@pytest.mark.parametrize("byte_range", [(0, 10), (5, 100), (250, 256), (255, None), (0, None), (3, 3)])
def test_a_range_is_a_slice(read: Read, path: Path, byte_range: tuple[int, int | None]) -> None:
    assert read(path, byte_range) == CONTENT[slice(*byte_range)]


@pytest.mark.parametrize("byte_range", [(250, 257), (256, None), (300, 301)])
def test_a_range_that_leaves_the_file_is_an_error_as_from_a_server(
    read: Read, path: Path, byte_range: tuple[int, int | None]
) -> None:
    with pytest.raises(RemoteError, match="the byte range"):
        read(path, byte_range)


def test_errors_are_those_of_open(read: Read, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        read(tmp_path / "none.bin")
    with pytest.raises((IsADirectoryError, PermissionError)):
        read(tmp_path)


def test_a_file_url_of_another_machine_is_refused(read: Read) -> None:
    with pytest.raises(ValueError, match="names a path of this machine, got host 'other'"):
        read("file://other/some/file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_file_that_does_not_answer_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    """Opening a pipe to read waits for a writer: here the same event loop, which must be free to be it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def read_and_write() -> list[object]:
        writing = asyncio.to_thread(pipe.write_bytes, CONTENT)
        return await asyncio.gather(fetch_bytes(pipe), writing, return_exceptions=True)

    end, _ = asyncio.run(read_and_write())  # the writer may find that the reader has gone
    assert isinstance(end, OSError)  # a pipe has no places to seek; the loop lived to hear of it


def test_files_need_neither_obstore_nor_fsspec(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("obstore", "fsspec"):
        monkeypatch.setitem(sys.modules, name, None)
    assert read_bytes(path) == CONTENT


@pytest.mark.parametrize(
    ("url", "library"), [("http://127.0.0.1:1/x", "obstore"), ("s3://bucket/x", "obstore"), ("memory://x", "fsspec")]
)
def test_without_the_extra_the_error_names_it(url: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == library] + [
        f"{library}.store",
        f"{library}.core",
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{library}.*pip install 'torchstage\[remote\]'"):
        read_bytes(url)
