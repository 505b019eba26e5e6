"""Nursery: requests for processes in, processes made by fork and news of them out. It runs in a process of its own.

Guarantees: it has one thread, so that forking is safe; it and all that descends from it end when the parent does; what
a process of it leaves running is ended with the process; a process is born with what the parent had then: its
environment, folder, ``sys.path`` and ``sys.argv``.

Only the standard library is imported here: what is worth having before the fork is imported by name, once.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import select
import signal
import socket
import sys
import traceback
import warnings
from importlib import import_module
from multiprocessing import process
from pathlib import Path
from typing import Any

from torchstage.executors.seat import seated
from torchstage.executors.wire import close_all, read_file, receive, send

LINE_FD = 3  # where the parent's line is when the nursery begins
_SET_DEATH_SIGNAL, _SET_SUBREAPER = 1, 36  # prctl's


def serve(imports: list[str]) -> None:
    """Serve the parent at the line until it closes it."""
    line = socket.socket(fileno=LINE_FD)
    line.set_inheritable(False)
    try:
        for name in imports:
            if name in _NEEDED:
                import_module(name)
            else:  # what the parent has imported beside; a process tells of it if it needs it
                with contextlib.suppress(Exception):
                    import_module(name)
    except BaseException:
        send(line, traceback.format_exc().encode())
        os._exit(1)
    _prctl(_SET_SUBREAPER, 1)
    gc.collect()
    gc.freeze()  # the collector of a process need not touch, and so copy, what was there before
    nursery = _Nursery(line)
    nursery.run()
    os._exit(0)  # the kernel ends what descends from it


_NEEDED = ("torch", "numpy", "torchstage.executors.child")


class _Nursery:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._born: dict[int, socket.socket] = {}  # by process: where its end is told
        self._woken, self._wake = socket.socketpair()
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, _woken_up)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Fork and reap until the line is at its end."""
        poll = select.poll()
        for end in (self._line, self._woken):
            poll.register(end, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
            if self._line.fileno() in ready:
                packet = receive(self._line)
                if packet is None:
                    self._end_all()
                    return
                self._bear(*packet)

    def _bear(self, request: bytes, files: list[int]) -> None:
        """Fork a process that takes the seat. What goes wrong is told where its end would be."""
        number, num_processes, parent_pid = pickle.loads(request)
        news, conditions, *seat = files
        told = socket.socket(fileno=news)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a library's own threads: they are asleep and take care of forks
                pid = os.fork()
        except OSError as error:
            _tell(told, "refused", f"the system has no room for another process: {error}")
            close_all(files[1:])
            told.close()
            return
        if pid == 0:
            self._grow_up(told)
            os._exit(_live(number, num_processes, parent_pid, conditions, seat))
        close_all(files[1:])
        self._born[pid] = told
        _tell(told, "born", pid)

    def _grow_up(self, told: socket.socket) -> None:
        """In the new process: what is the nursery's alone is let go of."""
        nursery = os.getppid()
        _prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._line, self._woken, self._wake, told, *self._born.values()):
            end.close()
        self._born.clear()
        if os.getppid() != nursery:  # it ended before the kernel knew that this is to end with it
            os._exit(1)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if (told := self._born.pop(pid, None)) is not None:
                    self._end_strays()
                    _tell(told, "ended", os.waitstatus_to_exitcode(status))
                    told.close()

    def _end_strays(self) -> None:
        """What a process has left running came to the nursery when it ended."""
        for pid in _children():
            if pid not in self._born:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        """The parent is gone: nothing may go on, whatever it runs."""
        for pid, told in self._born.items():
            os.kill(pid, signal.SIGKILL)
            told.close()
        self._born.clear()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
                self._end_strays()


def _woken_up(number: int, frame: Any) -> None:
    """The nursery waits for the wake-up, not for this; but without it there is none."""


def _tell(told: socket.socket, kind: str, value: Any) -> None:
    with contextlib.suppress(OSError):  # nobody wants to know any more
        send(told, pickle.dumps((kind, value)), wait=False)


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return [pid for pid in _pids() if _parent_of(pid) == os.getpid()]


def _pids() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return []


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _prctl(what: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # without it, the line and the life of the seat say the same
        ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


class _Process(process.BaseProcess):
    """The process as multiprocessing knows it: a daemon of the parent, so that it may have no children of that kind."""

    _start_method = None  # of the processes that it may start: none

    def __init__(self, name: str, parent_pid: int, run: Any) -> None:
        super().__init__(name=name, daemon=True)
        own: Any = self
        own._parent_pid, own._parent_name = parent_pid, "MainProcess"
        self._run = run

    def run(self) -> None:
        self._run()


def _live(number: int, num_processes: int, parent_pid: int, conditions: int, files: list[int]) -> int:
    """The whole life of a process. Returns its exit code."""
    try:
        _take_over(pickle.loads(read_file(conditions)))
        os.close(conditions)
        child = import_module("torchstage.executors.child")
        seat = seated(number, num_processes, files)
        own: Any = _Process(f"torchstage-{number}", parent_pid, lambda: child.run(seat))
        life = os.dup(seat.life.descriptor)  # multiprocessing.parent_process() waits for its end
        return own._bootstrap(parent_sentinel=life)
    except BaseException:
        traceback.print_exc()
        return 1


def _take_over(conditions: dict[str, Any]) -> None:
    """Be where the parent was, with the same arguments, search path and environment."""
    environment: dict[bytes, bytes] = conditions["environment"]
    if os.environb != environment:
        os.environb.clear()
        os.environb.update(environment)
    sys.path[:], sys.argv[:] = conditions["path"], conditions["arguments"]
    with contextlib.suppress(OSError):  # it is gone; the parent is there in name only, too
        os.chdir(conditions["folder"])
    cast_process: Any = process
    cast_process.ORIGINAL_DIR = conditions["original_folder"]
    process.current_process().authkey = conditions["key"]
