"""Deaths: ends of processes in, whether the others may go on out, and the errors that say what died.

Guarantees: restarts are bounded in each epoch, by how much was done; one that dies as it starts is not tried for ever.
"""

from torchstage.executors.failures import NoProcessLeft, ProcessDied, why
from torchstage.executors.nursing import Ended

MAX_TRIES = 2  # of a job
MIN_RESTARTS = 8  # of all processes together; or
RESTARTS_OF_ONE = 4  # for each process, if these are more; and one more
JOBS_FOR_RESTART = 50  # for so many jobs done
FIRST_DEATHS = 2  # beside one for each process, before a program has started well anywhere


class Deaths:
    """How many there were. ``broken``: why the processes cannot go on; None: they can."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._num_deaths = self._num_first_deaths = 0
        self.num_done = 0  # jobs
        self.broken: str | None = None

    def begin_epoch(self) -> None:
        """A sample that kills in each epoch is bounded in each of them, and not by their number."""
        if self.broken is None:
            self._num_deaths = self.num_done = 0

    def start_went_well(self) -> None:
        """The newest program is ready somewhere."""
        self._num_first_deaths = 0

    def add(self, ended: Ended, *, is_first: bool) -> None:
        """One more. ``is_first``: as it started a program that has not started well anywhere."""
        self._num_deaths += 1
        self._num_first_deaths += is_first
        cause = why(ended.exit_code)
        most = max(MIN_RESTARTS, RESTARTS_OF_ONE * self._num_processes) + self.num_done // JOBS_FOR_RESTART
        if self.broken is not None:
            return
        if ended.refusal is not None:
            self.broken = f"a process could not be started: {ended.refusal}"
        elif is_first and self._num_first_deaths >= self._num_processes + FIRST_DEATHS:
            self.broken = (
                f"{self._num_first_deaths} processes died while they started, the last one by {cause}; they may have "
                "said why on stderr"
            )
        elif self._num_deaths > most:
            self.broken = f"{self._num_deaths} processes died in {self.num_done} jobs, the last one by {cause}"

    def error(self) -> NoProcessLeft:
        """What is said to every job when the processes cannot go on."""
        return NoProcessLeft(
            f"The loader's processes cannot go on: {self.broken}. Run what they run in this process to see what is "
            "wrong (num_workers=0), or load with threads: worker_method='thread'.",
            cause=str(self.broken),
        )


def death_in_job(ended: Ended, pid: int | None, at: int | None, at_before: int | None) -> ProcessDied:
    """What is said to a job in which processes died. ``at``, ``at_before``: where in it the last one was, and the one
    before it."""
    cause = why(ended.exit_code)
    where = "" if at is None else f" at sample {at} of its batch, counted from 0"
    return ProcessDied(
        f"A process of the loader died{where} ({cause}), and so did the one that tried the same before it.",
        at,
        pid,
        cause,
        was_twice_there=at is not None and at == at_before,
    )
