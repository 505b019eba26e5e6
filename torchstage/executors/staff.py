"""Staff: jobs and programs in, settled futures out; the processes are started, heard and replaced here.

Guarantees: one thread hears all processes and waits without polling; a process that dies is replaced, its job tried
once more, and no other job is lost or charged; when it cannot go on, every job fails and says why; when it is closed,
processes and thread end within some seconds, whatever user code does.
"""

import contextlib
import os
import pickle
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.context import BaseContext
from typing import Any

from torchstage.executors import light
from torchstage.executors.backlog import Backlog, Job
from torchstage.executors.child import DONE, ERROR, SKIPPED, UNREADY, UP
from torchstage.executors.deaths import MAX_TRIES, Deaths, death_in_job
from torchstage.executors.ending import Ending
from torchstage.executors.failures import Packed, unpacked
from torchstage.executors.mains import Main
from torchstage.executors.nursing import Ended
from torchstage.executors.overdue import Inside, Overdue, end, found, inside_of, stack_of
from torchstage.executors.ranks import Member, Ranks
from torchstage.executors.shared import Shared
from torchstage.executors.slots import Slot
from torchstage.executors.wire import Full, receive

FORKED = "These processes belong to the process that this one was forked from. Make a loader of your own in here."


class Staff:
    """Processes with one backlog. Belongs to whoever closes it; its thread refers to nobody else."""

    def __init__(self, num_processes: int, context: BaseContext | None, name: str, max_slots: int) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()  # for all below but what only the thread touches
        self._ranks = Ranks(num_processes, context)
        self._backlog = Backlog(num_processes, max_slots)
        self._deaths = Deaths(num_processes)
        self._ending = Ending()
        self._up_version = 0  # of the newest program that was ready anywhere
        self._waits: list[Callable[[], None]] = []  # for that
        self._overdue: deque[Overdue] = deque()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._ranks.selector.register(self._woken, selectors.EVENT_READ, self._hear_wake)
        self._thread: threading.Thread | None = None
        self._is_closed = self._has_ended = False
        _staffs.add(self)

    # What the parent's threads call -----------------------------------------------------------------------------------

    @property
    def inherits(self) -> bool:
        """Whether processes inherit the program."""
        return self._ranks.inherits

    @property
    def has_program(self) -> bool:
        return self._ranks.version > 0

    def send(self, shared: Shared | None, main: Main | None, inherited: Any = None) -> None:
        """Jobs that are submitted from now on are run by this program."""
        self._check()
        with self._lock:
            if self._is_closed or self._has_ended:
                raise RuntimeError("cannot send a program after shutdown")
            self._ranks.add(shared, main, inherited)
            self._ranks.forget_all_but(self._backlog.versions())

    def begin_epoch(self) -> None:
        """Deaths before this moment do not count any more."""
        with self._lock:
            self._deaths.begin_epoch()

    def start(self) -> None:
        """Begin to launch the processes."""
        self._check()
        with self._lock:
            if self._thread is not None or self._is_closed:
                return
            if self.inherits:  # forked by the caller's thread: what is the thread's own is inherited
                self._launch_all()
            self._thread = thread = threading.Thread(target=self._run, name=f"{self._name}-processes", daemon=True)
            try:
                thread.start()
            finally:
                if thread.ident is None:  # the system has no thread left to give
                    self._thread = None

    def submit(self, parcel: Any) -> Future[Any]:
        """A job for any free process."""
        self._check()
        future: Future[Any] = Future()
        with self._lock:
            if self._is_closed or (self._has_ended and self._deaths.broken is None):
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not self.has_program:
                raise RuntimeError(
                    "Processes: there is no program that could run a job. Call send(program, ...) first."
                )
            program = self._ranks.programs[self._ranks.version]
            if program.failure is None and self._deaths.broken is None:
                self._backlog.add(Job(future, program.version, parcel))
                return future
        future.set_running_or_notify_cancel()
        future.set_exception(self._deaths.error() if program.failure is None else unpacked(program.failure))
        return future

    @property
    def is_over(self) -> bool:
        """Whether it takes no more jobs."""
        return self._is_closed or self._has_ended or self._deaths.broken is not None

    def num_up(self) -> int:
        """Processes that have the newest program ready."""
        with self._lock:
            return self._ranks.num_ready

    def failure(self) -> BaseException | None:
        """Why the newest program can be run by none of them; None: nothing is known against it."""
        with self._lock:
            program = self._ranks.programs.get(self._ranks.version)
            failure = None if program is None else program.failure
            if failure is None:
                return None if self._deaths.broken is None else self._deaths.error()
        return unpacked(failure)

    def when_up(self, call: Callable[[], None]) -> None:
        """Have this called once the newest program is ready somewhere."""
        with self._lock:
            is_up = self._ranks.num_ready > 0
            if not is_up:
                self._waits.append(call)
        if is_up:
            call()

    def where(self, future: Future[Any]) -> tuple[int, int | None] | None:
        """The process that has the job now, and where in it it is."""
        with self._lock:
            for member in self._ranks.members.values():
                job = self._backlog.held(member.page.message, member.page.index)
                if job is not None and job.future is future and member.birth.pid is not None:
                    return member.birth.pid, member.page.position
        return None

    def inside(self) -> list[Inside]:
        """The jobs that processes are in at this moment."""
        with self._lock:
            inside = [inside_of(member, self._backlog) for member in self._ranks.members.values()]
        return [one for one in inside if one is not None]

    def give_up(self, inside: Inside, error: Callable[[str], BaseException]) -> None:
        """End the process if it is still in that job, and fail the job with the error, which is given the stack."""
        self._overdue.append((inside, error))
        self._wake_up()

    def close(self, *, cancel: bool) -> None:
        """End when all jobs are done, or with ``cancel`` soon: user code has a grace. Waits for nothing, and takes no
        lock once it has started, so a finalizer may call it: a garbage collection may come while the lock is held."""
        if os.getpid() != self._pid or self._has_ended:
            return
        self._is_closed = True
        if cancel:
            self._ending.is_hurried = True
        if self._thread is not None:
            self._wake_up()
        else:
            self._end()

    def join(self, seconds: float | None = None) -> None:
        """Wait until all processes and the thread have ended."""
        if self._thread is not None and self._thread is not threading.current_thread() and os.getpid() == self._pid:
            self._thread.join(seconds)

    def forget(self) -> None:
        """In a process made by fork: all is the parent's. Touches no lock: a thread of it may have held it."""
        self._is_closed = True
        self._woken.close()
        self._wake.close()
        self._ranks.forget()
        self._backlog.forget()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(FORKED)

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # it is awake, or has ended
            self._wake.send(b"\0")

    # What the thread does ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if not self.inherits:
                with self._lock:
                    self._launch_all()
            while not self._ending.is_over:
                for key, _ in self._ranks.selector.select(self._ending.seconds_left()):
                    key.data()
                while self._overdue:
                    self._end_overdue(*self._overdue.popleft())
                if self._deaths.broken is not None and not self._ending.has_begun:
                    self._break()
                self._look_at_end()
        except BaseException as error:  # a fault of ours: nobody may wait for ever
            self._deaths.broken = f"the thread that hears them failed: {error!r}"
            self._break()
            raise
        finally:
            self._end()

    def _launch_all(self) -> None:
        for seat in range(self._ranks.num_processes):
            self._launch(seat)

    def _launch(self, seat: int) -> None:
        if self._deaths.broken is not None:
            return
        try:
            self._ranks.launch(seat, self._backlog.takers.fileno(), self._hear, self._look)
        except Exception as error:
            self._deaths.broken = f"process {seat} could not be started: {error!r}"
            self._wake_up()

    def _end_overdue(self, inside: Inside, error: Callable[[str], BaseException]) -> None:
        with self._lock:
            late = found(inside, self._ranks, self._backlog)
        stack = "" if late is None else stack_of(late[0])
        with self._lock:
            late = found(inside, self._ranks, self._backlog)
            if late is None or not self._backlog.claim(late[1]):
                return
        end(late[0])
        _settle(late[1], error=error(stack))

    def _hear_wake(self) -> None:
        self._woken.recv(4096)

    def _hear(self, member: Member) -> None:
        """All that the process has said."""
        with self._lock:
            self._ranks.update(member)  # it may have had no room for what it was to be told
        while member.is_heard:
            try:
                packet = receive(member.line, wait=False)
            except Full:
                return
            if packet is None:
                self._ranks.stop_hearing(member)
                return
            kind, *told = pickle.loads(packet[0])
            if kind == DONE:
                self._take(*told)
            elif kind == UP:
                self._note_up(member, *told)
            elif kind == UNREADY:
                self._fail(*told)

    def _take(self, number: int, answers: list[tuple[int, int, Any, float]]) -> None:
        """A process has answered jobs of a message."""
        found: list[tuple[Job, Slot | None, int, Any, bool]] = []
        with self._lock:
            for index, kind, result, seconds in answers:
                answered = self._backlog.answered(number, index, None if kind == SKIPPED else seconds)
                if answered is not None:
                    job, slot = answered
                    found.append((job, slot, kind, result, kind != SKIPPED and self._backlog.claim(job)))
            self._deaths.num_done += len(found)
            self._backlog.send()
            self._ranks.forget_all_but(self._backlog.versions())
        for job, slot, kind, result, is_first in found:
            if not is_first or kind == ERROR:
                if slot is not None:
                    let_go = slot.give_back if kind == SKIPPED else slot.drop  # code of the job may refer to it
                    let_go()
                if is_first:
                    _settle(job, error=unpacked(result))
                continue
            try:
                value = self._opened(result, slot)
            except BaseException as error:  # user code: what makes the value again
                error.add_note("It was raised where the parent opens what a process of the loader has made.")
                _settle(job, error=error)
            else:
                _settle(job, value)

    def _opened(self, result: Any, slot: Slot | None) -> Any:
        if slot is None or type(result) is bytes:
            if slot is not None:
                slot.give_back()  # nothing lies there
            return light.opened(result)
        return slot.open(result)

    def _note_up(self, member: Member, version: int) -> None:
        calls: list[Callable[[], None]] = []
        with self._lock:
            member.ready_version = version
            self._up_version = max(self._up_version, version)
            self._deaths.start_went_well()
            if version == self._ranks.version:
                calls, self._waits = self._waits, []
        for call in calls:
            call()

    def _fail(self, version: int, failure: Packed) -> None:
        """A program could not start in a process."""
        with self._lock:
            program = self._ranks.programs.get(version)
            if program is None:
                return
            program.failure = failure
            jobs = [job for job in self._backlog.jobs() if job.version == version and self._backlog.claim(job)]
        for job in jobs:
            _settle(job, error=unpacked(failure))

    def _look(self, member: Member) -> None:
        """There is news of the process itself."""
        ended = member.birth.look()
        if ended is None:
            return
        self._hear(member)  # what it said before it ended counts
        with self._lock:
            self._ranks.leave(member)
            failed = self._bury(member, ended)
            if not self._ending.has_begun:
                self._launch(member.seat)
                self._backlog.send()
        if failed is not None:
            _settle(failed, error=death_in_job(ended, member.birth.pid, member.page.position, failed.died_at))
        member.page.close()

    def _bury(self, member: Member, ended: Ended) -> Job | None:
        """What it had goes to others. Returns its job if that is not tried again."""
        is_first = self._up_version < self._ranks.version and member.ready_version < self._ranks.version
        job = self._backlog.died(member.page.message, member.page.index, self._ranks.told_messages)
        if not self._ending.has_begun and not member.is_ended_by_us:
            self._deaths.add(ended, is_first=is_first and job is None)
        if job is None:
            return None
        job.num_deaths += 1
        if job.num_deaths < MAX_TRIES:
            job.died_at = member.page.position
            self._backlog.again(job)
            return None
        return job if self._backlog.claim(job) else None

    def _break(self) -> None:
        """Nothing can be done any more: every job fails."""
        with self._lock:
            jobs = [job for job in self._backlog.drop() if self._backlog.claim(job)]
            self._waits.clear()
            self._ending.is_hurried = True
        for job in jobs:
            _settle(job, error=self._deaths.error())

    def _look_at_end(self) -> None:
        """Whether it is time to end, and how far that is."""
        with self._lock:
            is_due = self._ending.is_hurried or (self._is_closed and not self._backlog.jobs())
            members = list(self._ranks.members.values())
            dropped: list[Job] = []
            if is_due and not self._ending.has_begun:
                self._ending.begin()
                dropped = [job for job in self._backlog.drop() if self._backlog.claim(job)]
                for member in members:
                    self._ranks.stop_hearing(member)
                    member.line.close()  # a process that is not in user code ends
        for job in dropped:
            if job.future.cancel():
                job.future.set_running_or_notify_cancel()
        if self._ending.has_begun:
            self._ending.press([member.birth for member in members])

    def _end(self) -> None:
        """Let go of everything. What is still there ends with its life."""
        with self._lock:
            if not self._has_ended:
                self._has_ended = True
                self._ranks.end()
                self._backlog.end()
                self._woken.close()
                self._wake.close()
        _staffs.discard(self)


def _settle(job: Job, value: Any = None, error: BaseException | None = None) -> None:
    if not job.future.set_running_or_notify_cancel():
        return
    if error is None:
        job.future.set_result(value)
    else:
        job.future.set_exception(error)


_staffs: "weakref.WeakSet[Staff]" = weakref.WeakSet()


def end_all(seconds: float) -> None:
    """At the end of the program: no process and no thread of ours outlives it."""
    staffs = list(_staffs)
    for staff in staffs:
        staff.close(cancel=True)
    for staff in staffs:
        staff.join(seconds)


def _forget_all() -> None:
    for staff in list(_staffs):
        staff.forget()
    _staffs.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
