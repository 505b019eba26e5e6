"""Programs for processes: what they do with a job, as functions that a process can import."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Here:
    """What a program is given in its process."""

    desk: Any
    number: int
    num_processes: int
    at: Callable[[int], None]
    data: Any


@dataclass(frozen=True)
class Running:
    """A program that calls a function with Here and the job."""

    function: Callable[[Here, Any], Any]
    data: Any = None

    def start(self, desk: Any, number: int, num_processes: int, at: Callable[[int], None]) -> Callable[[Any], Any]:
        return partial(self.function, Here(desk, number, num_processes, at, self.data))


@dataclass(frozen=True)
class Failing:
    """A program that cannot start: it calls a function there."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def start(self, desk: Any, number: int, num_processes: int, at: Callable[[int], None]) -> Any:
        return self.function(*self.arguments)


def double(here: Here, job: Any) -> Any:
    return job * 2


def gate(here: Here, job: Any) -> Any:
    """Waits until the file is there."""
    while not here.data.exists():
        time.sleep(0.001)
    return job


def scaled(here: Here, job: Any) -> Any:
    return here.data * job


def who(here: Here, job: Any) -> tuple[int, int, int]:
    return os.getpid(), here.number, here.num_processes


def zeros(here: Here, job: tuple[int, ...]) -> torch.Tensor:
    return here.desk.empty(job, torch.float32).fill_(len(job))


def conditions(here: Here, job: Any) -> dict[str, Any]:
    process = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    assert parent is not None
    return {
        "argv": sys.argv,
        "path": sys.path,
        "folder": str(Path.cwd()),
        "environment": os.environ.get("TORCHSTAGE_TEST"),
        "interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "terminate": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
        "is_daemon": process.daemon,
        "parent": parent.pid,
        "is_parent_alive": parent.is_alive(),
        "name": process.name,
        "stdin": sys.stdin.read(),
        "num_threads": torch.get_num_threads(),
        "has_main": hasattr(sys.modules["__main__"], "__file__"),
        "optimize": sys.flags.optimize,
    }


def born_child(here: Here, job: Any) -> None:
    multiprocessing.Process(target=print).start()


def call(here: Here, job: tuple[Any, ...]) -> Any:
    """The job is a function and its arguments."""
    function, *arguments = job
    return function(*arguments)


def wait_for(path: Path) -> str:
    """Until there is such a file: a test says when."""
    while not path.exists():
        time.sleep(0.002)
    return str(path)


def touch(path: Path, then: Any = None, *arguments: Any) -> Any:
    path.touch()
    return None if then is None else then(*arguments)


def touch_own(folder: Path, then: Any, *arguments: Any) -> Any:
    """Say that this process is there, and go on."""
    (folder / str(os.getpid())).touch()
    return then(*arguments)


def spin() -> None:
    while True:
        pass


def hold_gil() -> None:
    """Sleep in C without letting go of the GIL."""
    ctypes.PyDLL(None).sleep(1000)


def stray(path: Path) -> int:
    """Start a program that outlives the process, and die."""
    child = subprocess.Popen(["sleep", "1000"])
    path.write_text(str(child.pid))
    os._exit(3)


def die_at(here: Here, job: int) -> int:
    """Where the job says so, the process is killed."""
    for position in range(4):
        here.at(position)
        if job == position:
            os.kill(os.getpid(), signal.SIGKILL)
    return job


def die_once(here: Here, job: tuple[int, Path]) -> int:
    """The first process in each job dies."""
    number, folder = job
    mark = folder / str(number)
    if not mark.exists():
        mark.touch()
        os._exit(7)
    return number


def short_or_killed(here: Here, job: tuple[int, float]) -> int:
    number, seconds = job
    here.at(number % 7)
    time.sleep(seconds)
    return number
