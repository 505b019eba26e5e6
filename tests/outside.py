"""Scripts in processes of their own: how a process ends is what their tests look at.

Importing torch takes seconds. So one server process imports torch and torchstage once, starts no thread, and
forks for each script, which then is ``__main__`` of the fork: its end is the end of a whole interpreter.

Test modules ask for it with ``pytest_plugins = "outside"`` and the fixture ``outside``.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[1]
MAX_SECONDS = 20.0  # of a script that takes 0.2 s. A busy machine takes 6 s; what waits for something waits for good

PRELUDE = """\
import gc, multiprocessing, os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset
from torchstage import StageLoader

class Numbers(Dataset):
    def __init__(self, length=1000, seconds=0.0):
        self.length, self.seconds = length, seconds
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index

"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a script ended: exit status (minus the signal, if one ended it), what it wrote, how long it ran."""

    status: int
    out: str
    err: str
    seconds: float
    left_processes: bool  # whether processes that it started outlived it

    def assert_quiet(self) -> None:
        """It ended as a script ends that nothing is wrong with. A stuck thread would have been named."""
        assert (self.status, self.err) == (0, "")
        self.assert_in_time()
        assert not self.left_processes

    def assert_in_time(self) -> None:
        """It did not hang."""
        assert self.seconds < MAX_SECONDS


class Script:
    """A script that was started."""

    def __init__(self, server: "Server", pid: int, begin: float, out: Path, err: Path) -> None:
        self.pid = pid
        self._server = server
        self._begin = begin
        self._out = out
        self._err = err

    def wait(self, max_seconds: float = 30.0) -> Ended:
        """Wait for its end. Kills it and fails the test if that takes too long."""
        status, end = self._server.ask(order="wait", pid=self.pid, max_seconds=max_seconds)
        if status is None:
            self.kill()
            pytest.fail(f"it ran for over {max_seconds:g} s and wrote:\n{self.said()}\n{self._err.read_text()}")
        return Ended(status, self.said(), self._err.read_text(), end - self._begin, self._kill_group())

    def said(self) -> str:
        """What it wrote to its standard output so far."""
        return self._out.read_text()

    def wait_until_it_said(self, words: str, max_seconds: float = 20.0) -> None:
        deadline = time.monotonic() + max_seconds
        while words not in self.said():
            assert time.monotonic() < deadline, f"it said {self.said()!r} and {self._err.read_text()!r}"
            time.sleep(0.002)

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it now, and every process that it started."""
        self._kill_group()
        self._server.ask(order="wait", pid=self.pid, max_seconds=10.0)

    def _kill_group(self) -> bool:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


class Server:
    """The process that forks for each script, and the orders it takes: one JSON object a line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_scripts = 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1"},
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def start(self, source: str) -> Script:
        self._num_scripts += 1
        name = self._folder / f"script_{self._num_scripts}"
        script, out, err = (name.with_suffix(suffix) for suffix in (".py", ".out", ".err"))
        script.write_text(PRELUDE + textwrap.dedent(source))
        out.touch()
        err.touch()
        pid, begin = self.ask(order="start", script=str(script), out=str(out), err=str(err))
        return Script(self, pid, begin, out, err)

    def close(self) -> None:
        with self._process:  # closes the pipes: the end of its orders
            pass


class Outside:
    """What a test sees: scripts are run, or started and looked after."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._started: list[Script] = []

    def start(self, source: str) -> Script:
        """Start a script; the names of PRELUDE are there."""
        script = self._server.start(source)
        self._started.append(script)
        return script

    def run(self, source: str, max_seconds: float = 30.0) -> Ended:
        """Run a script to its end."""
        return self.start(source).wait(max_seconds)

    def close(self) -> None:
        for script in self._started:
            script.kill()


@pytest.fixture(scope="session")
def outside_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not hasattr(os, "fork"):
        pytest.skip("scripts are run in forks of one process that has imported torch")
    server = Server(tmp_path_factory.mktemp("outside"))
    yield server
    server.close()


@pytest.fixture
def outside(outside_server: Server) -> Iterator[Outside]:
    """Runs scripts in processes of their own."""
    outside = Outside(outside_server)
    yield outside
    outside.close()


# The server's side --------------------------------------------------------------------------------------


def serve() -> str | None:
    """Take orders. Returns in the server at their end; in each fork, with the path of the script to run."""
    print("ready", flush=True)
    statuses: dict[int, tuple[int, float]] = {}
    while line := sys.stdin.readline():
        order = json.loads(line)
        if order["order"] == "start":
            begin = time.monotonic()
            pid = os.fork()
            if pid == 0:
                move_in(order["out"], order["err"])
                return order["script"]
            with suppress(OSError):
                os.setpgid(pid, pid)
            answer: Any = (pid, begin)
        else:
            answer = wait_for(order["pid"], time.monotonic() + order["max_seconds"], statuses)
        print(json.dumps(answer), flush=True)
    return None


def move_in(out: str, err: str) -> None:
    """In the fork: a process group, and standard streams, of its own."""
    os.setpgid(0, 0)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, None), (2, err, None)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND if flags is None else flags)
        os.dup2(file, number)
        os.close(file)


def wait_for(pid: int, deadline: float, statuses: dict[int, tuple[int, float]]) -> tuple[int | None, float]:
    while pid not in statuses:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found == pid:
            statuses[pid] = os.waitstatus_to_exitcode(status), time.monotonic()
        elif time.monotonic() > deadline:
            return None, time.monotonic()
        else:
            time.sleep(0.002)
    return statuses[pid]


if __name__ == "__main__":
    import torch.utils.data  # noqa: F401

    import torchstage  # noqa: F401

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started without it
    gc.freeze()  # what is imported stays: collecting it at the end of each fork would take most of the time
    script = serve()
    if script is not None:
        main = types.ModuleType("__main__")
        main.__file__ = script
        sys.modules["__main__"] = main
        exec(compile(Path(script).read_text(), script, "exec"), main.__dict__)
