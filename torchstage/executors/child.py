"""Child: jobs and programs in, results out. It is what a process does all its life.

Guarantees: the process answers each job that it takes, with a result or with what went wrong; it ends when the parent
closes its line, and is killed by the kernel when the parent is gone, whatever code runs; Ctrl-C is the parent's to
answer.
"""

import contextlib
import fcntl
import os
import pickle
import runpy
import select
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

from torchstage.engine.executors import Made, MadeBatch
from torchstage.executors import light
from torchstage.executors.failures import packed
from torchstage.executors.mains import importing
from torchstage.executors.page import Page
from torchstage.executors.seat import Seat
from torchstage.executors.slots import Desk, Shared
from torchstage.executors.unpicklable import NotPicklable, explain
from torchstage.executors.wire import Full, close_all, receive, send

HOLD_SECONDS = 0.001  # at most that long a result waits for others, of short jobs that came in one message
_SET_SIGNAL = getattr(fcntl, "F_SETSIG", 10)

# What a process says: these and what belongs to each.
UP, UNREADY, DONE = "up", "unready", "done"
# What it is told.
PROGRAM, FORGET = "program", "forget"

VALUE, ERROR, SKIPPED = 0, 1, 2  # skipped: nobody waits for it, or its program could not start
Answer = tuple[int, int, Any, float]  # which job of the message, one of these, the parcel or packed error, seconds


def run(seat: Seat) -> None:
    """Work until the parent closes the line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(seat.life.descriptor)
    torch.set_num_threads(1)  # as torch's own workers do: the processes share the cores
    worker = _Worker(seat)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone, or has let go of this one
        worker.work()
    worker.close()


def _end_with(life: int) -> None:
    """Have the kernel kill this process at the end of ``life``, even inside a C function that holds the GIL."""
    try:
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, _SET_SIGNAL, signal.SIGKILL)
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):  # not Linux
        threading.Thread(target=_watch, args=(life,), name="torchstage-life", daemon=True).start()
    if select.select([life], [], [], 0)[0]:  # it has ended already
        os._exit(1)


def _watch(life: int) -> None:
    os.read(life, 1)
    os._exit(1)


class _Worker:
    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._page = Page(seat.page.descriptor)
        self._line = socket.socket(fileno=seat.line.descriptor)
        self._jobs = socket.socket(fileno=seat.jobs.descriptor)
        self._desk = Desk()
        self._desk.marks = self._marks
        self._ready: dict[int, Any] = {}  # by version: what runs its jobs; None: it could not start
        self._newest = 0  # of the versions that were heard of
        self._tells_stack = False

    def _marks(self) -> Callable[[int], None]:
        """For a program whose stages are looked at: what tells that it enters one, or leaves it (0)."""
        if not self._tells_stack:
            self._tells_stack = True
            self._page.tell_stack()
        return self._page.enter

    def work(self) -> None:
        """Take jobs and programs as they come."""
        if self._seat.inherited is not None:
            version, program = self._seat.inherited
            self._start(version, lambda: program)
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(self._jobs, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll()]
            if self._line.fileno() in ready:
                if not self._hear():
                    return
                continue
            self._page.reach()
            try:
                packet = receive(self._jobs, wait=False)
            except Full:  # another process was quicker
                self._page.take(0)
                continue
            if packet is None:
                poll.unregister(self._jobs)
            else:
                self._do(*packet)

    def close(self) -> None:
        """Let go of the parent."""
        self._line.close()
        self._jobs.close()

    def _hear(self) -> bool:
        """What the parent tells this process alone. False: there is nothing more to do."""
        packet = receive(self._line)
        if packet is None:
            return False
        text, files = packet
        kind, version, *told = pickle.loads(text)
        if kind == FORGET:
            self._ready.pop(version, None)
        elif kind == PROGRAM:
            parcel, main = told

            def opened() -> Any:
                if main is not None:
                    _import_main(*main)
                return Shared.open(files[0] if files else None, parcel)

            self._start(version, opened)
        return True

    def _start(self, version: int, opened: Any) -> None:
        """Have the program ready, or tell why not."""
        seat = self._seat
        self._newest, self._ready[version] = version, None
        try:
            self._ready[version] = opened().start(self._desk, seat.number, seat.num_processes, self._page.at)
        except BaseException as error:
            self._say(UNREADY, version, packed(error))
        else:
            self._say(UP, version)

    def _do(self, text: bytes, files: list[int]) -> None:
        message, version, jobs = pickle.loads(text)
        self._page.take(message)
        while version > self._newest:  # it was sent before the job was
            if not self._hear():
                os._exit(0)
        ready = self._ready.get(version)  # one that is forgotten has no job that somebody waits for
        descriptors = iter(files)
        answers: list[Answer] = []
        held_since = perf_counter()
        for index, (slot, body) in enumerate(jobs):
            if index:
                self._page.begin(index)
            descriptor = None if slot is None else next(descriptors)
            if ready is None:
                close_all([] if descriptor is None else [descriptor])
                answers.append((index, SKIPPED, None, 0.0))
                continue
            begin = perf_counter()
            kind, result = self._made(ready, body, slot, descriptor)
            end = perf_counter()
            answers.append((index, kind, result, end - begin))
            if end - held_since > HOLD_SECONDS:
                self._say(DONE, message, answers)
                answers = []
                held_since = end
        if answers:
            self._say(DONE, message, answers)
        self._page.rest()

    def _made(self, ready: Any, body: Any, slot: int | None, descriptor: int | None) -> tuple[int, Any]:
        try:
            self._desk.take(-1 if slot is None else slot, descriptor)
            result = ready(light.opened(body))
        except BaseException as error:
            return ERROR, packed(error)
        try:
            if light.is_light(result):
                return VALUE, pickle.dumps(result, 5)
            parcel = self._desk.pack(result)
        except BaseException as error:
            return ERROR, packed(_not_packed(result, error))
        del result
        return VALUE, self._desk.sealed(parcel)

    def _say(self, kind: str, *told: Any) -> None:
        send(self._line, pickle.dumps((kind, *told), 5))


def _not_packed(result: Any, error: BaseException) -> BaseException:
    """Why a result cannot be sent to the parent."""
    if isinstance(error, MemoryError | OSError):
        return error
    roots = {"result": result}
    if isinstance(result, MadeBatch | Made):  # what a user knows of it
        roots = {"batch" if isinstance(result, MadeBatch) else "value": result.value}
    said = explain(result, roots, error, "What a process made")
    return said if isinstance(said, NotPicklable) else error


def _import_main(name: str | None, path: str | None) -> None:
    """Import the parent's main module under another name than ``__main__``, so that its guarded part does not run."""
    if (name, path) == getattr(sys.modules["__main__"], "__torchstage_main__", None):
        return
    main = types.ModuleType("__mp_main__")
    with importing(path or name or ""):
        if name is not None:
            content = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
        else:
            assert path is not None
            content = runpy.run_path(path, run_name="__mp_main__")
    main.__dict__.update(content, __torchstage_main__=(name, path))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
