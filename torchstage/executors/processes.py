"""Processes: a program and jobs in, futures of what processes of ours make of them out.

Guarantees: the program is packed at once, so that what cannot be sent is named before anything starts; processes live
until ``shutdown``, across programs; they and all that they started end with this process, however it ends.
"""

import atexit
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing.context import BaseContext
from typing import Any

from torchstage.executors import light
from torchstage.executors.failures import ProcessDied
from torchstage.executors.mains import NotImportable, Unguarded, main_of
from torchstage.executors.nursing import end_nursery, nursery_belongings
from torchstage.executors.overdue import Inside
from torchstage.executors.slots import Shared
from torchstage.executors.staff import Staff, end_all
from torchstage.executors.unpicklable import NotPicklable, explain
from torchstage.executors.wire import read_file

__all__ = [
    "NotImportable",
    "NotPicklable",
    "ProcessDied",
    "Processes",
    "Unguarded",
    "end_nursery",
    "nursery_belongings",
]

EXIT_SECONDS = 2.5  # for all processes at the end of the program, of which 1.5 are user code's


class Processes(Executor):
    """Processes that run jobs. They live from ``start`` until ``shutdown``; what they run can be sent anew.

    - ``context``: the user's, used as given. With "fork" the program is inherited and not pickled, and a new program
      means new processes. None: the nursery's (Linux), else spawned ones.
    - ``max_slots``: of shared memory for results, see ``slots``.
    """

    def __init__(
        self, num_processes: int, *, context: BaseContext | None = None, name: str = "torchstage", max_slots: int = 8
    ) -> None:
        if num_processes < 1:
            raise ValueError(f"Processes: num_processes must be at least 1, got {num_processes}.")
        self._num_processes, self._context, self._name, self._max_slots = num_processes, context, name, max_slots
        self._staff = self._hire()

    def _hire(self) -> Staff:
        staff = Staff(self._num_processes, self._context, self._name, self._max_slots)
        self._finalizer = weakref.finalize(self, staff.close, cancel=True)
        self._finalizer.atexit = False
        return staff

    def send(self, program: Any, roots: dict[str, Any]) -> None:
        """What runs the jobs submitted from now on: ``ready = program.start(desk, number, num_processes, at)`` once in
        each process, then ``ready(job)`` for each job. ``roots``: parts of the program by their names in errors.

        Raises NotPicklable, or its kinds NotImportable and Unguarded where the program refers to the main module.
        """
        if self._staff.inherits:
            if self._staff.has_program:  # its processes have the other program
                self._finalizer.detach()
                self._staff.close(cancel=False)
                self._staff = self._hire()
            self._staff.send(None, None, program)
            return
        try:
            shared = Shared.of(program)
        except (MemoryError, OSError):
            raise
        except Exception as error:
            raise explain(program, roots, error) from error
        try:
            self._staff.send(shared, main_of(_pickles_of(shared)))
        except BaseException:
            shared.close()
            raise

    def begin_epoch(self) -> None:
        """From here on, processes may die as often as they may at first."""
        self._staff.begin_epoch()

    def start(self) -> None:
        """Begin to launch all processes, in the background; only processes made by fork are there when it returns."""
        self._staff.start()

    @property
    def is_over(self) -> bool:
        """Whether they take no more jobs: they were shut down, or died so often that no others are started."""
        return self._staff.is_over

    @property
    def num_up(self) -> int:
        """Processes that have the newest program ready."""
        return self._staff.num_up()

    @property
    def failure(self) -> BaseException | None:
        """Why the newest program can be run by none of them; None: nothing is known against it."""
        return self._staff.failure()

    def when_up(self, call: Callable[[], None]) -> None:
        """Have ``call`` called, in any thread and once, when the first process has the newest program ready."""
        self._staff.when_up(call)

    def submit(self, job: Any, /) -> Future[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # a job is data
        """A job for the process that is free first, in order of submission. Starts the processes if need be.

        An error in it is the future's, of the same type, with how it came about as its cause. A job in which two
        processes died gives ProcessDied.
        """
        future = self._staff.submit(light.packed(job))
        self._staff.start()
        return future

    def where(self, future: Future[Any]) -> tuple[int, int | None] | None:
        """The process that has the job now, and where in it it is, if it has said; None: no process has it."""
        return self._staff.where(future)

    def inside(self) -> list[Inside]:
        """The jobs that processes are in at this moment, and in which of the stages that are looked at."""
        return self._staff.inside()

    def give_up(self, inside: Inside, error: Callable[[str], BaseException]) -> None:
        """End the process that is in this job, if it still is in the same stage of it, and fail the job, which is not
        tried again, with ``error(stack)``; soon, in another thread. Another process takes its seat."""
        self._staff.give_up(inside, error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, after all jobs or with ``cancel_futures`` at once. Code that is still running then has
        1.5 s; then its process is ended by SIGTERM and SIGKILL. Can be called again."""
        self._finalizer.detach()
        self._staff.close(cancel=cancel_futures)
        if wait:
            self._staff.join()


def _pickles_of(shared: Shared) -> list[bytes]:
    """The pickles in what was packed."""
    parcel = shared.parcel
    if parcel.structure or shared.fd is None:
        return [parcel.structure]
    _, offset, num_bytes = parcel.blocks[-1]
    return [read_file(shared.fd, offset, num_bytes)]


@atexit.register
def _end_all() -> None:
    end_all(EXIT_SECONDS)
    end_nursery()
