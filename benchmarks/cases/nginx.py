"""Nginx: a number of files and a latency in, their URLs on loopback out; the server ends with its `with` block.

The binary alone is started, with a configuration and a folder of its own. Its module `echo` lets a request sleep, which
costs next to nothing (a timer; 1 ms steps). Debian: `apt-get install nginx-light libnginx-mod-http-echo`.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

import psutil

MODULES = (Path("/usr/lib/nginx/modules"), Path("/usr/lib64/nginx/modules"))
ECHO = "ngx_http_echo_module.so"
READY_SECONDS = 10
NUM_PROBES = 50


class Nginx:
    """Serves `num_files` files of `num_bytes` each; the first eight bytes of a file are its number."""

    def __init__(self, num_files: int, num_bytes: int, latency_seconds: float) -> None:
        binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
        module = next((folder / ECHO for folder in MODULES if (folder / ECHO).exists()), None)
        if binary is None or module is None:
            raise SystemExit("needs nginx with its echo module: apt-get install nginx-light libnginx-mod-http-echo")
        self._folder = tempfile.TemporaryDirectory(prefix="nginx-")
        folder = Path(self._folder.name)
        (folder / "files").mkdir()
        for number in range(num_files):
            (folder / "files" / str(number)).write_bytes(number.to_bytes(8, "big") + bytes(num_bytes - 8))
        self.port = _free_port()
        self.urls = [f"http://127.0.0.1:{self.port}/late/{number}" for number in range(num_files)]
        (folder / "nginx.conf").write_text(_configuration(folder, module, self.port, latency_seconds))
        self._process = psutil.Popen(
            [binary, "-p", str(folder), "-e", str(folder / "errors.log"), "-c", str(folder / "nginx.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._wait_until_ready(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def cpu_seconds(self) -> float:
        """What the server has used so far: it is a child of the process that is measured."""
        times = self._process.cpu_times()
        return times.user + times.system

    def latency_seconds(self) -> float:
        """The median time of one request by a client that does nothing else, on a connection that is open."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        seconds: list[float] = []
        for _ in range(NUM_PROBES):
            start = time.perf_counter()
            connection.request("GET", "/late/0")
            connection.getresponse().read()
            seconds.append(time.perf_counter() - start)
        connection.close()
        return median(seconds)

    def _wait_until_ready(self, folder: Path) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise SystemExit(f"nginx did not start:\n{(folder / 'errors.log').read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _configuration(folder: Path, module: Path, port: int, latency_seconds: float) -> str:
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
load_module {module};
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
    {temporary}
    access_log off;
    sendfile on;
    keepalive_requests 1000000;
    server {{
        listen 127.0.0.1:{port};
        location /late/ {{ echo_sleep {latency_seconds}; echo_exec /files$uri; }}
        location /files/late/ {{ internal; alias {folder}/files/; }}
    }}
}}
"""
