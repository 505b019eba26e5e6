"""Nursing: seats in, processes born in the nursery out. This process's end of the nursery.

Guarantees: one nursery for the whole program, started at the first need; it ends with the program or by
``end_nursery``; nothing of multiprocessing's own state changes; a process made by fork from the user's
program cannot use or end it.
"""

import atexit
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import process, spawn
from typing import Any, Protocol, cast

from torchstage.executors.nursery import LINE_FD
from torchstage.executors.seat import Seat
from torchstage.executors.wire import Full, pair, receive, send

END_SECONDS = 1.0  # a nursery that was told to end is waited for that long

# What the nursery runs first. Until SIGINT is ignored it is blocked: Ctrl-C goes to all in the terminal.
_BEGIN = """
import os, pickle, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
os.closerange({first}, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") > 0 else 1 << 20)
try:
    import socket
    line = socket.socket(fileno={line})
    text = line.recv(1 << 16)
    size = int.from_bytes(text, "little")
    text = b""
    while len(text) < size:
        text += line.recv(1 << 16)
    sys.path[:], imports = pickle.loads(text)
    line.detach()
    from torchstage.executors.nursery import serve
except BaseException:
    import traceback
    line.send(b"\\0" + traceback.format_exc().encode()[-30000:])
    os._exit(1)
serve(imports)
"""


class Birth(Protocol):
    """A process that was asked for."""

    pid: int | None
    news: int  # a file that is readable when there is something to ``look`` at

    def look(self) -> "Ended | None":
        """What became of it; None: it lives, as far as one knows."""
        ...

    def kill(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        ...

    def close(self) -> None:
        """Let go of what tells about it."""
        ...


class Ended:
    """The end of a process: its exit code (negative: a signal), or why there never was one."""

    def __init__(self, exit_code: int | None, refusal: str | None = None) -> None:
        self.exit_code, self.refusal = exit_code, refusal


def conditions() -> bytes:
    """What a process of the nursery takes over from this one, pickled."""
    folder = getattr(process, "ORIGINAL_DIR", None)
    path = [folder if entry == "" and folder is not None else entry for entry in sys.path]
    try:
        current = os.getcwd()  # noqa: PTH109  # Path.cwd() says the same
    except OSError:
        current = "/"
    taken: dict[str, Any] = {
        "environment": dict(os.environb),
        "path": path,
        "arguments": list(sys.argv),
        "folder": current,
        "original_folder": folder,
        "key": bytes(process.current_process().authkey),
    }
    return pickle.dumps(taken)


class NurseryBirth:
    """A process of the nursery."""

    def __init__(self, nursery: "Nursery", news: socket.socket) -> None:
        self._nursery, self._news = nursery, news
        self.news = news.fileno()
        self.pid: int | None = None
        self._ended: Ended | None = None

    def look(self) -> Ended | None:
        """What became of it; None: it lives, as far as one knows."""
        while self._ended is None:
            try:
                packet = receive(self._news, wait=False)
            except Full:
                return None
            if packet is None:  # the nursery is gone, and with it the process
                self._ended = Ended(None, self._nursery.last_words() if self.pid is None else None)
                break
            kind, value = pickle.loads(packet[0])
            if kind == "born":
                self.pid = value
            else:
                self._ended = Ended(value) if kind == "ended" else Ended(None, value)
        return self._ended

    def kill(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.look() is None and self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of what tells about it."""
        self._news.close()


class Nursery:
    """This process's end of its nursery."""

    def __init__(self) -> None:
        self._line, theirs = pair()
        self._lock = threading.Lock()
        self._words: str | None = None
        try:
            self.pid = _start(theirs)
        finally:
            theirs.close()
        text = pickle.dumps((_path(), _imports()))
        self._line.send(len(text).to_bytes(8, "little"))
        for begin in range(0, len(text), 1 << 15):
            self._line.send(text[begin : begin + (1 << 15)])

    def bear(self, seat: Seat, conditions_file: int) -> NurseryBirth:
        """Ask for a process. Raises OSError where the nursery is gone."""
        news, theirs = pair()
        try:
            request = pickle.dumps((seat.number, seat.num_processes, os.getpid()))
            send(self._line, request, [theirs.fileno(), conditions_file, *seat.files])
        except BaseException:
            news.close()
            raise
        finally:
            theirs.close()
        return NurseryBirth(self, news)

    def last_words(self) -> str | None:
        """Why it could not start; None: it has not said."""
        with self._lock:
            if self._words is None:
                said = ""
                with contextlib.suppress(Full, OSError):
                    packet = receive(self._line, wait=False)
                    said = "" if packet is None else packet[0].decode(errors="replace")
                self._words = f"the process that makes them could not start:\n{said}" if said else ""
        return self._words or None

    def end(self, seconds: float = END_SECONDS) -> None:
        """End it and all that it bore."""
        self._line.close()
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    return
                time.sleep(0.002)

    def forget(self) -> None:
        """In a process made by fork: it is the parent's."""
        self._line.close()

    @property
    def fileno(self) -> int:
        """The file that leads to it."""
        return self._line.fileno()


def _start(line: socket.socket) -> int:
    """Start the nursery with the other end of its line. Returns its process."""
    args: list[str] = cast(Any, subprocess)._args_from_interpreter_flags()
    executable = os.fsdecode(spawn.get_executable() or sys.executable)
    code = _BEGIN.format(first=LINE_FD + 1, line=LINE_FD)
    high = os.dup(line.fileno())
    while high <= LINE_FD:  # dup2 of a file onto itself would leave it closed on exec
        high, low = os.dup(high), high
        os.close(low)
    # The BLAS of numpy starts threads as it is loaded, and what is to fork has one.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    try:
        return os.posix_spawn(
            executable,
            [executable, *args, "-c", code, "torchstage-nursery"],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, high, LINE_FD),
            ],
            setsigmask=[signal.SIGINT],
        )
    finally:
        os.close(high)


def _path() -> list[str]:
    folder = getattr(process, "ORIGINAL_DIR", None) or os.curdir
    return [entry or folder for entry in sys.path]


def _imports() -> list[str]:
    """What the nursery imports before it bears: what every process needs, and what this one has."""
    beside = [name for name in ("PIL.Image", "torchvision.transforms", "torchvision.io") if name in sys.modules]
    return ["torch", "numpy", "torchstage.executors.child", *beside]


class _Nurseries:
    """The nursery of this program, if there is one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now: Nursery | None = None

    def bear(self, seat: Seat, conditions_file: int) -> NurseryBirth:
        with self.lock:
            if self.now is not None:
                try:
                    return self.now.bear(seat, conditions_file)
                except OSError:  # it is gone
                    self.now.end(0)
                    self.now = None
            self.now = Nursery()
            return self.now.bear(seat, conditions_file)


nurseries = _Nurseries()


@atexit.register
def end_nursery() -> None:
    """End the nursery, and whatever it bore. The next process that is asked for starts another one."""
    with nurseries.lock:
        nursery, nurseries.now = nurseries.now, None
    if nursery is not None:
        nursery.end()


def nursery_belongings() -> tuple[int, int] | None:
    """The process and the file of the nursery, which stay between loaders by design; None: there is none."""
    nursery = nurseries.now
    return None if nursery is None else (nursery.pid, nursery.fileno)


def _forget() -> None:
    nurseries.lock = threading.Lock()
    if (nursery := nurseries.now) is not None:
        nursery.forget()
    nurseries.now = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
