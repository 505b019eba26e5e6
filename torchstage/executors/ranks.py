"""Ranks: programs in, processes that have them out. Who is there, and what each has been told.

Guarantees: a new process is told all programs that jobs may need; one whose program nobody needs forgets it.

Nothing in here takes a lock: who calls, holds the staff's.
"""

import contextlib
import os
import pickle
import selectors
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any

from torchstage.executors.child import FORGET, PROGRAM
from torchstage.executors.failures import Packed
from torchstage.executors.launch import Launcher
from torchstage.executors.mains import Main
from torchstage.executors.nursing import Birth
from torchstage.executors.page import Page
from torchstage.executors.seat import File, Seat
from torchstage.executors.shared import Shared
from torchstage.executors.wire import Full, pair, send


@dataclass(slots=True, eq=False)
class Program:
    """What runs jobs, as it is sent. Not shared: processes inherit it, or it is not sent any more."""

    version: int
    shared: Shared | None
    main: Main | None
    failure: Packed | None = None  # why it could not start


@dataclass(slots=True, eq=False)
class Member:
    """A process, from when it was asked for."""

    seat: int
    birth: Birth
    line: socket.socket
    page: Page
    ready_version: int = 0  # of the newest program that it has ready
    is_heard: bool = True  # its line is open here, and not at its end
    known: set[int] = field(default_factory=set[int])  # versions of programs that it was told of, and not to forget
    is_behind: bool = False  # there was no room for more
    is_ended_by_us: bool = False  # what it did took too long


class Ranks:
    """The processes by their seats, and the programs by their versions."""

    def __init__(self, num_processes: int, context: BaseContext | None) -> None:
        self.num_processes = num_processes
        self.selector = selectors.DefaultSelector()
        self.members: dict[int, Member] = {}
        self.programs: dict[int, Program] = {}
        self.version = 0  # of the newest
        self.inherited: Any = None
        self._launcher = Launcher(context)
        self.inherits = self._launcher.inherits
        self._life, self._own_life = os.pipe()

    def launch(self, seat: int, takers: int, hear: Callable[[Member], None], look: Callable[[Member], None]) -> None:
        """Ask for a process, and tell it the programs. ``hear``: called when it says something; ``look``: when there is
        news of it. Raises what asking for it raises."""
        line, theirs = pair()
        page, page_file = Page.make()
        inherited = (self.version, self.inherited) if self.inherits else None
        files = map(File, (takers, theirs.fileno(), page_file, self._life))
        try:
            birth = self._launcher.launch(Seat(seat, self.num_processes, *files, inherited=inherited))
        except BaseException:
            line.close()
            page.close()
            raise
        finally:
            theirs.close()
            os.close(page_file)
        member = self.members[seat] = Member(seat, birth, line, page)
        self.selector.register(line, selectors.EVENT_READ, lambda: hear(member))
        self.selector.register(birth.news, selectors.EVENT_READ, lambda: look(member))
        self.update(member)

    def add(self, shared: Shared | None, main: Main | None, inherited: Any) -> None:
        """A new program, for all."""
        self.version += 1
        self.inherited = inherited
        self.programs[self.version] = Program(self.version, shared, main)
        for member in self.members.values():
            self.update(member)

    def forget_all_but(self, needed: Iterable[int]) -> None:
        """Programs of other versions are not needed; the newest always is."""
        for version in set(self.programs) - {self.version, *needed}:
            program = self.programs.pop(version)
            if program.shared is not None:
                program.shared.close()
        for member in self.members.values():
            self.update(member)

    def update(self, member: Member) -> None:
        """Tell the process which programs there are, as far as there is room for that: nobody waits for one that is in
        user code. What is left is told when its line can be written to."""
        if not member.is_heard or (not member.is_behind and member.known == self.programs.keys()):
            return
        is_behind = False
        try:
            for version in sorted(self.programs.keys() - member.known):
                _tell(member, self.programs[version])
                member.known.add(version)
            for version in sorted(member.known - self.programs.keys()):
                send(member.line, pickle.dumps((FORGET, version)), wait=False)
                member.known.remove(version)
        except Full:
            is_behind = True
        except OSError:  # it is dead, which is heard elsewhere
            pass
        if is_behind != member.is_behind:
            member.is_behind = is_behind
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_behind else 0)
            self.selector.modify(member.line, events, self.selector.get_key(member.line).data)

    @property
    def num_ready(self) -> int:
        """Processes that have the newest program ready."""
        return sum(member.ready_version == self.version for member in self.members.values())

    def told_messages(self) -> tuple[list[int], bool]:
        """The messages that the processes tell of, and whether these are certainly all that they have."""
        pages = [member.page for member in self.members.values()]
        is_certain = not any(page.reaches for page in pages)
        return [page.message for page in pages], is_certain

    def stop_hearing(self, member: Member) -> None:
        """Its line is at its end, or what it says does not matter any more."""
        if member.is_heard:
            self.selector.unregister(member.line)
            member.is_heard = False

    def leave(self, member: Member) -> None:
        """The process has ended."""
        self.selector.unregister(member.birth.news)
        self.stop_hearing(member)
        del self.members[member.seat]
        member.line.close()
        member.birth.close()

    def end(self) -> None:
        """Let go of all. What is still there ends with its life."""
        for member in self.members.values():
            member.line.close()
            member.birth.close()
            member.page.close()
        self.members.clear()
        for program in self.programs.values():
            if program.shared is not None:
                program.shared.close()
                program.shared = None
        self._launcher.close()
        self.selector.close()
        for file in (self._own_life, self._life):
            os.close(file)

    def forget(self) -> None:
        """In a process made by fork, maybe one of ours: what leads to the others is closed."""
        with contextlib.suppress(OSError):
            os.close(self._own_life)
        for member in self.members.values():
            member.line.close()
        self.selector.close()
        self._launcher.close()


def _tell(member: Member, program: Program) -> None:
    if program.shared is not None:
        text = pickle.dumps((PROGRAM, program.version, program.shared.parcel, program.main), 5)
        send(member.line, text, [] if program.shared.fd is None else [program.shared.fd], wait=False)
