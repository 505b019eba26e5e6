"""Servers on loopback: nginx as it is installed, and one that answers by a script, right or wrong.

Both take a free port. nginx is the binary alone, with a configuration and a folder of its own: never the system's
service.
"""

import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin")
READY_SECONDS = 10
NUM_PORTS_TO_TRY = 5  # another program may take a free port before nginx does

Answer = Callable[["Client", int], None]  # the client, and how many requests for this path came before


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nginx:
    """One process. ``files`` is served under /files/, slowly under /slow/, and /script/ is passed on to ``script``."""

    def __init__(self, folder: Path, script_url: str) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        for _ in range(NUM_PORTS_TO_TRY):
            port = free_port()
            self.url = f"http://127.0.0.1:{port}"
            (folder / "nginx.conf").write_text(configuration(folder, port, script_url))
            self._process = subprocess.Popen(
                [str(NGINX), "-p", str(folder), "-e", str(folder / "errors.log"), "-c", str(folder / "nginx.conf")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            if self._is_ready(port):
                return
            self.close()
        raise RuntimeError(f"nginx did not start:\n{(folder / 'errors.log').read_text()}")

    def _is_ready(self, port: int) -> bool:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return True
            time.sleep(0.01)
        return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def configuration(folder: Path, port: int, script_url: str) -> str:
    temporary = "\n".join(
        f"    {name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""
daemon off;
master_process off;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
{temporary}
    access_log off;
    default_type application/octet-stream;
    server {{
        listen 127.0.0.1:{port};
        location /files/ {{ root {folder}; }}
        location /closed/ {{ return 403; }}
        location /moved/ {{ rewrite ^/moved/(.*)$ /files/$1 redirect; }}
        location /slow/ {{ alias {folder}/files/; limit_rate 20k; }}
        location /echo {{ return 200 "$request_uri"; }}
        location /no-ranges/ {{ alias {folder}/files/; max_ranges 0; }}
        location /script/ {{
            proxy_pass {script_url}/;
            proxy_http_version 1.1;
            proxy_buffering off;
            proxy_set_header Connection "";
        }}
        location /s3/ {{ rewrite ^/s3/(.*)$ {script_url}/$1 redirect; }}
    }}
}}
"""


class Client:
    """One request as it came, and the means to answer it."""

    def __init__(self, connection: socket.socket, head: str) -> None:
        self.connection, self.head = connection, head
        self.path = head.split(" ")[1]
        found = re.search(r"^range: bytes=(\d+)-(\d*)", head, re.IGNORECASE | re.MULTILINE)
        self.first, self.last = (int(found[1]), int(found[2] or 2**60)) if found else (None, None)

    def send(self, status: str, body: bytes = b"", **headers: str) -> None:
        """The answer: the range that is asked for, if it is. ``content_length`` may say that more is to come."""
        length = int(headers.get("content_length", len(body)))
        if status.startswith("200") and self.first is not None and self.last is not None and self.first < length:
            end = min(self.last + 1, length)
            headers |= {"content_range": f"bytes {self.first}-{end - 1}/{length}"}
            status, body, length = "206 Partial Content", body[self.first : end], end - self.first
        headers["content_length"] = str(length)
        self.send_exactly(status, body, **headers)

    def send_exactly(self, status: str, body: bytes = b"", **headers: str) -> None:
        """The answer, whatever is asked for, right or wrong."""
        headers.setdefault("content_length", str(len(body)))
        lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

    def hang_up(self) -> None:
        """An orderly end (FIN)."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """A disorderly end (RST)."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def wait_until_it_hangs_up(self) -> None:
        """Say nothing until the client has gone."""
        while self.connection.recv(65536):
            pass


class ScriptedServer:
    """Answers ``/name`` as ``answers["name"]`` says; a thread a connection."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.num_requests: dict[str, int] = {}
        self.num_connections = 0
        self.heads: list[str] = []
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="scripted-server", daemon=True)
        self._thread.start()

    def forget(self) -> None:
        with self._lock:
            self.answers, self.num_requests, self.num_connections, self.heads = {}, {}, 0, []

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with self._lock:
                self.num_connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            received = b""
            while True:
                while b"\r\n\r\n" not in received:
                    try:
                        data = connection.recv(65536)
                    except OSError:
                        return
                    if not data:
                        return
                    received += data
                head, _, received = received.partition(b"\r\n\r\n")
                client = Client(connection, head.decode())
                name = client.path.strip("/").partition("?")[0]
                with self._lock:
                    num_before = self.num_requests.get(name, 0)
                    self.num_requests[name] = num_before + 1
                    self.heads.append(client.head)
                    answer = self.answers.get(name, not_found)
                try:
                    answer(client, num_before)
                except OSError:  # the client has gone, or the answer closed the connection
                    return


def not_found(client: Client, _: int) -> None:
    client.send("404 Not Found")
