"""Seat: what one process is given when it begins: its place among the others, and its ends of what connects them.

Guarantees: it travels to a process that is forked, and to one that multiprocessing spawns.
"""

from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any


class File:
    """An open file that another process gets a duplicate of, where it has not inherited it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (reduction.DupFd(self.descriptor),)


def _arrived(duplicate: Any) -> File:
    return File(duplicate.detach())


@dataclass(frozen=True, slots=True)
class Seat:
    """What a process is given. ``inherited``: the program itself, for a process made by fork."""

    number: int
    num_processes: int
    jobs: File  # all processes receive from it
    line: File  # to the parent and back, its own
    page: File
    life: File  # at its end when the parent ends
    inherited: tuple[int, Any] | None = None

    @property
    def files(self) -> list[int]:
        """Its files, in the order in which ``seated`` takes them."""
        return [file.descriptor for file in (self.jobs, self.line, self.page, self.life)]


def seated(number: int, num_processes: int, files: list[int]) -> Seat:
    """The seat of a process that was sent its files."""
    jobs, line, page, life = map(File, files)
    return Seat(number, num_processes, jobs, line, page, life)
