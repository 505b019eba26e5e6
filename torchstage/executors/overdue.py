"""Overdue: jobs that nobody waits for any longer in, their processes ended and the jobs failed out.

A process tells on its page which stage it is in and since when, as far as that is looked at; a thread of the parent
that waits compares that with what the stage may take.

Guarantees: a process is ended only while it is in the job that was named, in the same stage since the same moment; the
job is not tried again, others that were sent to the process are; an end of this kind is no death that counts.
"""

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torchstage.executors.backlog import Backlog, Job
from torchstage.executors.page import STACK_SIGNAL
from torchstage.executors.ranks import Member, Ranks

STACK_SECONDS = 0.3  # for a process to write where it is; one inside the kernel does not
QUIET_SECONDS = 0.01  # what was written and not added to for so long is all


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """A job that a process is in. ``stage``: the number of the stage, 0: none that is looked at. ``since``: on
    time.monotonic's clock. ``position``: where in the job, None if it has not said."""

    future: Future[Any]
    pid: int
    stage: int
    since: float
    position: int | None


def inside_of(member: Member, backlog: Backlog) -> Inside | None:
    """The job that a process is in at this moment. The caller holds the staff's lock."""
    page = member.page
    job = backlog.held(page.message, page.index)
    if job is None or member.birth.pid is None:
        return None
    stage, since = page.stage  # a job before this one left none
    return Inside(job.future, member.birth.pid, stage, since, page.position)


def found(inside: Inside, ranks: Ranks, backlog: Backlog) -> tuple[Member, Job] | None:
    """The process and the job, if it is still there. The caller holds the staff's lock."""
    for member in ranks.members.values():
        now = inside_of(member, backlog) if member.birth.pid == inside.pid else None
        if now is not None and (now.future, now.stage, now.since) == (inside.future, inside.stage, inside.since):
            job = backlog.held(member.page.message, member.page.index)
            return None if job is None or job.is_settled else (member, job)
    return None


def stack_of(member: Member) -> str:
    """The Python stack of a process, innermost call last; "" if it cannot tell. Waits for that."""
    member.page.clear_text()
    member.birth.kill(STACK_SIGNAL)
    until, text, since = time.monotonic() + STACK_SECONDS, "", 0.0
    while (now := time.monotonic()) < until:
        latest = member.page.text
        if latest != text:
            text, since = latest, now
        elif text and now - since > QUIET_SECONDS:
            break
        time.sleep(QUIET_SECONDS / 5)
    lines = [line for line in text.splitlines() if line.startswith("  File")]
    return "".join(f"{line}\n" for line in reversed(lines))


def end(member: Member) -> None:
    """End the process at once: nothing that it does is wanted."""
    member.is_ended_by_us = True
    member.birth.kill(signal.SIGKILL)


Overdue = tuple[Inside, Callable[[str], BaseException]]  # and the error, given the stack
