"""Backlog: jobs in, messages to whichever process is free out, and jobs back from messages whose process died.

Guarantees: in order of submission; a job is in at most as many messages as it was sent; a message is taken by one
process; what a dead process took and what it did not is told apart exactly; short jobs go several in a message.

Nothing in here takes a lock: who calls, holds the staff's.
"""

import math
import pickle
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torchstage.executors.slots import Slot, Slots
from torchstage.executors.wire import Full, close_all, pair, receive, send

MESSAGE_SECONDS = 0.001  # of work in a message of short jobs: more than ten times what sending it costs
LONG_SECONDS = 0.01  # a job of that length or more: one that waits for each process is enough
MAX_JOBS = 64  # in a message
NEWS_SHARE = 0.1  # of the newest job in the mean of their seconds


@dataclass(slots=True, eq=False)
class Job:
    """A job that somebody waits for, until it is settled."""

    future: Future[Any]
    version: int  # of the program that runs it
    parcel: Any
    num_deaths: int = 0  # of processes that died in it
    died_at: int | None = None  # where in it the first of them was, if it had said
    is_settled: bool = False


@dataclass(slots=True, eq=False)
class Message:
    """Jobs that went to one process together. ``open``: those that are not answered."""

    number: int
    jobs: list[Job]
    slots: list[Slot | None]
    open: set[int] = field(default_factory=set[int])


class Backlog:
    """The jobs that are not done, and where they are."""

    def __init__(self, num_processes: int, max_slots: int) -> None:
        self._num_processes = num_processes
        self._slots = Slots(max_slots)
        self._line, self.takers = pair()  # the processes receive from ``takers``; only they and ``_recall`` do
        self._waiting: deque[Job] = deque()
        self._messages: dict[int, Message] = {}
        self._doubtful: set[int] = set()  # messages that perhaps nobody has
        self._last_number = 0
        self._mean_seconds: float | None = None  # that a job took
        self._num_open: dict[int, int] = {}  # jobs that are not settled, by version

    def add(self, job: Job) -> None:
        """A new job, behind all others."""
        self._num_open[job.version] = self._num_open.get(job.version, 0) + 1
        self._waiting.append(job)
        self.send()

    def claim(self, job: Job) -> bool:
        """Settle the job; False if it is already. Who gets True tells the future."""
        if job.is_settled:
            return False
        job.is_settled = True
        self._num_open[job.version] -= 1
        if not self._num_open[job.version]:
            del self._num_open[job.version]
        return True

    def jobs(self) -> list[Job]:
        """All that are not settled, in order of submission but for those that are tried again."""
        sent = [job for message in self._messages.values() for job in message.jobs]
        return list(dict.fromkeys(job for job in (*sent, *self._waiting) if not job.is_settled))

    def send(self) -> None:
        """Send what waits, as far as the processes need it soon."""
        while self._waiting and len(self._messages) - len(self._doubtful) < self._max_messages():
            jobs = self._next_jobs()
            if not jobs or not self._send(jobs):
                return

    def _max_messages(self) -> int:
        """In the hands of processes and before them. The parent may be kept from sending more for some milliseconds."""
        is_long = self._mean_seconds is not None and self._mean_seconds >= LONG_SECONDS
        return self._num_processes * (2 if is_long else 3)

    def _next_jobs(self) -> list[Job]:
        """Those of the next message: of one version, and none that has killed a process before beside others."""
        most = 1
        if self._mean_seconds is not None:
            most = min(MAX_JOBS, int(MESSAGE_SECONDS / max(self._mean_seconds, 1e-6)))
            most = min(most, math.ceil(len(self._waiting) / (2 * self._num_processes)))
        jobs: list[Job] = []
        while self._waiting and len(jobs) < max(most, 1):
            job = self._waiting[0]
            if jobs and (job.version != jobs[0].version or job.num_deaths):
                break
            self._waiting.popleft()
            if job.future.cancelled() and self.claim(job):
                job.future.set_running_or_notify_cancel()  # tells who waits
            if job.is_settled:
                continue
            jobs.append(job)
            if job.num_deaths:
                break
        return jobs

    def _send(self, jobs: list[Job]) -> bool:
        slots = [self._slots.take() if len(jobs) == 1 else None for _ in jobs]
        self._last_number += 1
        content = [(None if slot is None else slot.number, job.parcel) for job, slot in zip(jobs, slots, strict=True)]
        text = pickle.dumps((self._last_number, jobs[0].version, content), 5)
        try:
            send(self._line, text, [slot.fd for slot in slots if slot is not None], wait=False)
        except Full:  # it is sent when an answer has come: some process has a message
            for slot in slots:
                if slot is not None:
                    slot.give_back()
            self._waiting.extendleft(reversed(jobs))
            return False
        self._messages[self._last_number] = Message(self._last_number, jobs, slots, set(range(len(jobs))))
        return True

    def versions(self) -> list[int]:
        """Of the programs that jobs need which are not settled."""
        return list(self._num_open)

    def answered(self, number: int, index: int, seconds: float | None) -> tuple[Job, Slot | None] | None:
        """The job that a process has answered, and where the result lies, which is the caller's from now on.
        ``seconds``: that it took; None: it was not run."""
        message = self._messages.get(number)
        if message is None or index not in message.open:
            return None
        message.open.remove(index)
        if not message.open:
            del self._messages[number]
            self._doubtful.discard(number)
        if seconds is not None:
            mean = seconds if self._mean_seconds is None else self._mean_seconds
            self._mean_seconds = mean + NEWS_SHARE * (seconds - mean)
        return message.jobs[index], message.slots[index]

    def held(self, number: int, index: int) -> Job | None:
        """The job at this place in a message, if it is not answered."""
        message = self._messages.get(number)
        return message.jobs[index] if message is not None and index in message.open else None

    def died(self, number: int, index: int, tell: Callable[[], tuple[Collection[int], bool]]) -> Job | None:
        """A process died with this message (0: none that it told of), in the job ``index``, which is returned. Its
        other jobs wait again, first in line. ``tell()``: the messages that living processes tell of at this moment, and
        whether these certainly are all that they have."""
        killer = self.held(number, index)
        again = self._taken_back(number)
        # 1. A process receives a message. 2. It tells of it on its page. If it died between the two, nobody has the
        # message: neither the socket nor a page. What a living process has between the two is sent twice, which is
        # harmless, as the first answer counts; but its slot is not given to another. The pages are read when the socket
        # is empty: what a process received after that was not looked for on its page.
        for recalled in self._recall():
            again += self._taken_back(recalled)
        alive, is_certain = tell()
        for message in list(self._messages.values()):
            if message.number in alive:
                continue
            if is_certain:  # or it was answered just now: then who made it may refer to its slot
                again += self._taken_back(message.number, drops=True)
            else:
                self._doubtful.add(message.number)
                again += [message.jobs[position] for position in sorted(message.open)]
        self._waiting.extendleft(job for job in reversed(again) if job is not killer and not job.is_settled)
        return None if killer is None or killer.is_settled else killer

    def again(self, job: Job) -> None:
        """Try the job once more, before all others."""
        self._waiting.appendleft(job)

    def _taken_back(self, number: int, *, drops: bool = False) -> list[Job]:
        """The jobs of a message that nobody works on any more and that are not answered. ``drops``: its slots are not
        used again."""
        message = self._messages.pop(number, None)
        self._doubtful.discard(number)
        if message is None:
            return []
        for index in message.open:
            if (slot := message.slots[index]) is not None:
                (slot.drop if drops else slot.give_back)()
        return [message.jobs[index] for index in sorted(message.open)]

    def _recall(self) -> list[int]:
        """Take back the messages that no process has received."""
        numbers: list[int] = []
        while True:
            try:
                packet = receive(self.takers, wait=False)
            except Full:
                return numbers
            if packet is None:
                return numbers
            text, files = packet
            close_all(files)
            numbers.append(pickle.loads(text)[0])

    def drop(self) -> list[Job]:
        """Nothing more is begun. Returns the jobs that were not settled, which are the caller's to settle."""
        jobs = self.jobs()
        self._waiting.clear()
        self._recall()
        return jobs

    def end(self) -> None:
        """No process is left, or none that is waited for. Those that are left end at their next job."""
        for message in self._messages.values():
            for index in message.open:
                if (slot := message.slots[index]) is not None:
                    slot.drop()  # who still has the message may write there
        self._messages.clear()
        self._line.close()
        self.takers.close()
        self._slots.close()

    def forget(self) -> None:
        """In a process made by fork: this end is the parent's."""
        self._line.close()
