"""The servers run for all tests of this folder; each test begins with none of the connections of the one before."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchstage import remote

from .servers import NGINX, Nginx, ScriptedServer
from .ways import loops


@pytest.fixture(scope="session")
def script_of_all_tests() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def nginx(script_of_all_tests: ScriptedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    if NGINX is None:
        pytest.skip("needs nginx (Debian: apt-get install nginx-light)")
    server = Nginx(tmp_path_factory.mktemp("nginx"), script_of_all_tests.url)
    yield server
    server.close()


@pytest.fixture(scope="session", autouse=True)
def obstore_has_begun(script_of_all_tests: ScriptedServer) -> None:
    """Its threads and what they wait on live as long as the process, and so does a pipe of uvloop's: they begin before
    a test counts open files."""
    pytest.importorskip("obstore", reason="needs obstore (the extra 'remote')")
    script_of_all_tests.answers["first"] = lambda client, _: client.send("200 OK", b"first")
    assert remote.read_bytes(f"{script_of_all_tests.url}/first") == b"first"
    remote.close_connections()
    for run in loops():
        run(asyncio.sleep(0))


@pytest.fixture
def script(script_of_all_tests: ScriptedServer) -> ScriptedServer:
    script_of_all_tests.forget()
    return script_of_all_tests


@pytest.fixture(autouse=True)
def no_connections_left() -> Iterator[None]:
    yield
    remote.close_connections()


@pytest.fixture
def data(nginx: Nginx) -> Iterator[bytes]:
    """What nginx serves as ``some.bin``, 100,000 bytes of every kind, none at the place of another."""
    content = b"".join(number.to_bytes(4, "big") for number in range(25_000))
    path: Path = nginx.files / "some.bin"
    path.write_bytes(content)
    yield content
    path.unlink()
