"""Timeouts: a loader's stages and places in, what its consumer looks at while it waits out.

Guarantees: nothing is looked at where no stage has a time-out; no thread is made for it. ``docs/timeouts.md`` says what
happens to a sample that is too late, and where nothing can be done about it.
"""

import faulthandler
import linecache
import math
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torchstage.engine import stuck
from torchstage.engine.deadlines import Deadlines, Lanes, Looked, StageTimeout, Stuck, Threads, Where, timed_out
from torchstage.engine.deadlines_elsewhere import LOOK_SECONDS, Coroutines, Futures
from torchstage.engine.event_loop import EventLoop
from torchstage.engine.executors import InExecutor, say_stage
from torchstage.engine.pipeline import Pool, Run
from torchstage.engine.segment import Worker
from torchstage.engine.stuck import Running
from torchstage.engine.ticket import Batch
from torchstage.errors import place, stack_of, warn_user
from torchstage.isolation import Guard
from torchstage.limits import Limits, seconds_of
from torchstage.line import Line, Station
from torchstage.processes import Hired, LoaderProcesses
from torchstage.programs import say_sample
from torchstage.sites import Sites
from torchstage.stage import Stage

INLINE = (
    "with num_workers=0 the caller's own thread is in the stage, and nobody looks at it meanwhile. Use num_workers=1, "
    "or more"
)
TORCHS = (
    "the batches of this loader are made by torch's own worker processes, which do not tell in which stage they are. "
    "timeout= bounds the wait for a batch"
)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """What one iterator does in an epoch about what is late. ``limits``: how the functions of its threads are looked
    at; ``seconds``: by the name of a stage."""

    running: Running
    limits: Limits | None
    seconds: dict[str, float]

    @classmethod
    def of(cls, line: Line, running: Running, *, is_batched: bool, covers_all: bool) -> "Timeouts":
        """``covers_all``: the consumer may give up what is late though its stage has no time-out."""
        seconds = seconds_of(line.in_order if is_batched else line.by_sample)
        is_needed = bool(seconds) or covers_all
        return cls(running, Limits(running.limited, covers_all, running.waits) if is_needed else None, seconds)

    @property
    def least_seconds(self) -> float:
        """The shortest time that a stage has."""
        return min(self.seconds.values(), default=math.inf)

    def deadlines(
        self,
        sites: Sites,
        hired: Hired,
        dataset: Any,
        given_up: Stuck,
        replace: Callable[[Pool, Worker], None],
        why_not: Callable[[Batch], str | None],
    ) -> Deadlines | None:
        """What the consumer of threads, and of all that their samples go through, looks at; None: nothing."""
        if self.limits is None:
            return None
        where = _where_in(dataset)
        loop: Callable[[], EventLoop | None] = lambda: sites.loop  # noqa: E731  # it may be there later
        places: Sequence[Looked] = (
            Processes(sites, hired, self.running, dataset, self.seconds),  # first: a thread may wait for one of them
            Threads(self.running, lambda: sites.pools, where, stack_in_stage, given_up, replace, why_not),
            Coroutines(loop, where, stack_of),
            Futures(lambda: [one for one in sites.executors if not _is_ours(one)], where, given_up),
        )
        return Deadlines(self.least_seconds, places)

    def deadlines_of_lanes(self, run: Run, workers: Callable[[], Sequence[Worker]]) -> Deadlines | None:
        """The same of lanes."""
        if not self.seconds:
            return None
        turn: Callable[[], Batch | None] = lambda: next(iter(run.in_flight), None)  # noqa: E731
        return Deadlines(self.least_seconds, [Lanes(self.running, turn, workers, stack_in_stage)])


_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


def stack_in_stage(worker: Worker) -> str:
    """The Python stack of a thread at this moment, from the stage inwards, innermost call last; "" if it has ended.

    The thread may come back while it is looked at. Walking its frames from Python would meet some that are gone (seen
    with CPython 3.11: f_back was an int); faulthandler writes them down in one go, while no other thread can run.
    """
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        lines = file.read().decode(errors="replace").splitlines()
    begin = f"Thread 0x{worker.thread.ident or 0:016x}"
    at = next((number for number, line in enumerate(lines) if line.startswith(begin)), len(lines))
    found: list[str] = []
    for line in lines[at + 1 :]:
        frame = _FRAME.match(line)
        if frame is None or frame["file"] == stuck.__file__:
            break
        source = linecache.getline(frame["file"], int(frame["line"])).strip()
        found.append(f'  File "{frame["file"]}", line {frame["line"]}, in {frame["name"]}\n    {source}\n')
    return "".join(reversed(found))


def _where_in(dataset: Any) -> Where:
    return lambda batch, slot, stage: place(batch, stage, slot, dataset)


def _is_ours(executor: InExecutor) -> bool:
    return isinstance(executor.executor, LoaderProcesses)


class Processes:
    """The loader's processes, for single stages or for whole batches. The one that has the sample is ended, and another
    one has its place; the job is not tried again. Of a whole batch, the error says which sample the process was at."""

    def __init__(self, sites: Sites, hired: Hired, running: Running, dataset: Any, seconds: dict[str, float]) -> None:
        self._sites, self._hired, self._running, self._dataset = sites, hired, running, dataset
        self._stages: list[tuple[str, float]] = [
            ("", math.inf),
            *seconds.items(),
        ]  # by the numbers that the processes tell
        self._asked: set[tuple[int, float]] = set()

    def look(self, now: float) -> float:
        """As Looked.look."""
        due, asked, self._asked = math.inf, self._asked, set()
        for ours in self._hired.found():
            for inside in ours.processes.inside():
                number: int = inside.stage
                stage, seconds = self._stages[number] if number < len(self._stages) else ("", math.inf)
                left: float = inside.since + seconds - time.monotonic()
                key = inside.pid, inside.since
                if left > 0:
                    due = min(due, now + left)
                elif key in asked or self._give_up(ours, inside, stage, seconds):
                    self._asked.add(key)
                    due = min(due, now + LOOK_SECONDS)
        return due

    def give_up(self, batch: Batch, slot: int, seconds: float) -> bool:
        """As Looked.give_up."""
        for ours in self._hired.found():
            for inside in ours.processes.inside():
                if self._sample_of(inside.future) == (batch, slot):
                    number: int = inside.stage
                    stage = self._stages[number][0] if number else batch.stage_before(slot)
                    return self._give_up(ours, inside, stage, seconds)
        return False

    def _give_up(self, ours: LoaderProcesses, inside: Any, stage: str, seconds: float) -> bool:
        found = self._sample_of(inside.future)
        if found is None:  # of an epoch that is over: nobody waits for it
            return False
        batch, slot = found
        sample = inside.position if batch.chain.is_counted else None
        where = place(batch, stage, slot, self._dataset, sample)
        error = partial(_of_process, where, inside.pid, batch, slot, stage, seconds, sample)
        ours.processes.give_up(inside, error)
        return True

    def _sample_of(self, future: Any) -> tuple[Batch, int] | None:
        """Whose the future is: a place's, or a thread's that waits for it since its stages run together."""
        for at in self._sites.executors:
            for given, part, slot in at.given:
                if given is future:
                    return part.batch, slot
        thread = self._running.waits.get(future)
        for pool in self._sites.pools:
            for worker in list(pool.workers):
                batch = worker.batch
                if thread is not None and worker.thread.ident == thread and batch is not None:
                    return batch, worker.slot
        return None


def _of_process(
    where: str, pid: int, batch: Batch, slot: int, stage: str, seconds: float, sample: int | None, stack: str
) -> StageTimeout:
    error = timed_out(where, f"in process {pid}", stack, batch, slot, stage, seconds)
    if sample is not None:
        indices = batch.indices[slot]
        error.index = indices[sample] if isinstance(indices, list) else indices
        say_sample(error, sample)
    say_stage(error, stage)
    return error


def after_reading(limits: Limits | None, stages: Sequence[Stage], run_coroutine: Callable[[Any], Any]) -> list[Stage]:
    """The stages as a lane's thread calls them, looked at if they have a time-out."""
    found: list[Stage] = []
    for stage in stages:
        fn, seconds = stage.fn, stage.timeout_seconds
        if limits is not None and seconds is not None:
            whole = partial(_awaited, run_coroutine, fn) if stage.is_async else fn
            stage = Stage(limits.around(whole, stage.label, seconds), stage.label)
        found.append(stage)
    return found


def _awaited(run_coroutine: Callable[[Any], Any], fn: Callable[[Any], Any], value: Any) -> Any:
    return run_coroutine(fn(value))


def warn_unlooked(guard: Guard, stages: Sequence[Stage | Station], why: str) -> None:
    """Say once for a loader that the time-outs of these stages are of no effect, if any has one. ``guard``: its own."""
    names = [stage.label for stage in stages if stage.timeout_seconds is not None]
    if names and not guard.has_said_unlooked:
        guard.has_said_unlooked = True
        warn_user(f"StageLoader: timeout_seconds of {', '.join(map(repr, names))} has no effect: {why}.")
