"""Fresh: what makes a loader in, the same that is read in a process of its own out.

Guarantees: the process ends with ``close``, with everything that it started, or when this one is gone; what the loader
prints goes to stderr; ranks of one loader read at the same time.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torchstage.comparison.reading import Settings, Side
from torchstage.probe.measured import NotFound, named
from torchstage.probe.process_tree import pids_of_tree

END_SECONDS = 5.0  # for a process to end by itself


class CannotCompare(Exception):  # noqa: N818  # it is told in a line
    """There is nothing to compare: a loader cannot be found or made."""


@dataclass(frozen=True, slots=True)
class Named:
    """Makes a loader by a name, "module:function" or "path/to/file.py:function", where it is called."""

    spec: str

    def __call__(self) -> Any:
        return named(self.spec)()


@dataclass(frozen=True, slots=True)
class Rank:
    """``group``: a file that the ranks of one loader meet at for torch.distributed; None: they do not."""

    number: int
    num_ranks: int
    group: str | None = None


class FreshSide:
    """As a ``Side``, in another process. ``make``: what makes the loader, pickled. Each call is begun with
    ``ask`` and ended with ``answer``."""

    def __init__(self, make: bytes, settings: Settings, name: str, rank: Rank | None) -> None:
        self.name, self._settings = name, settings
        spawn = multiprocessing.get_context("spawn")
        self._ours, theirs = spawn.Pipe()
        method = multiprocessing.get_start_method(allow_none=True)
        self._process = spawn.Process(target=_serve, args=(theirs, make, settings, name, rank, method))
        try:
            self._process.start()
        except Exception as error:
            self._ours.close()
            raise TypeError(
                f"torchstage.compare: the {name} cannot be made in another process ({error}). Give a function of a "
                "module, without arguments."
            ) from error
        finally:
            theirs.close()

    @property
    def is_factory(self) -> bool:
        return True

    def ask(self, name: str, *arguments: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._ours.send((name, arguments))

    def answer(self) -> Any:
        try:
            is_right, value = self._ours.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(END_SECONDS)
            code = self._process.exitcode
            raise CannotCompare(f"the process of the {self.name} ended with exit status {code}") from None
        if not is_right:
            raise CannotCompare(f"the {self.name} failed: {value}")
        return value

    def close(self) -> None:
        pids = pids_of_tree(self._process.pid) if self._process.is_alive() else []
        self._ours.close()
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            for pid in reversed(pids):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGTERM)
            self._process.join(1.0)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._process.close()


def _serve(
    pipe: Connection, pickled: bytes, settings: Settings, name: str, rank: Rank | None, method: str | None
) -> None:
    """In the other process: what is asked for is done, until nobody can ask any more."""
    os.dup2(2, 1)  # what the user's code prints is not our output
    if method is not None:
        multiprocessing.set_start_method(method, force=True)  # else the loader's own workers would be spawned, too
    if rank is not None:
        _be(rank)
    if settings.store is not None and rank is not None:
        name = f"{name}-{rank.number}"
    make = pickle.loads(pickled)  # now, so that its module finds the rank
    side = Side(make, settings, name, is_factory=True)
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            asked, arguments = pipe.recv()
            try:
                answer = True, getattr(side, asked)(*arguments)
            except NotFound as error:
                answer = False, str(error)
            except Exception as error:
                traceback.print_exc()
                answer = False, f"{type(error).__name__}: {error}"
            pipe.send(answer)
    side.close()
    if rank is not None and rank.group is not None:
        _distributed().destroy_process_group()
    if side.is_dead:  # a thread of it hangs
        os._exit(0)


def _be(rank: Rank) -> None:
    known = {"RANK": rank.number, "WORLD_SIZE": rank.num_ranks, "LOCAL_RANK": rank.number}
    os.environ.update({name: str(value) for name, value in known.items()})
    if rank.group is not None:
        _distributed().init_process_group(
            "gloo", init_method=f"file://{rank.group}", rank=rank.number, world_size=rank.num_ranks
        )


def _distributed() -> Any:
    import torch

    return torch.distributed
