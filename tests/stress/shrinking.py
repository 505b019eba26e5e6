"""Shrinking: a program that fails in, a shorter one that fails as well out."""

import time

from tests.stress.around import Hung
from tests.stress.program import Program, shorter
from tests.stress.running import run

ATTEMPTS = 3  # a race shows up now and then


def failure_of(program: Program, attempts: int = ATTEMPTS) -> BaseException | None:
    """What it raises, if it does in one of so many attempts."""
    for _ in range(attempts):
        try:
            run(program)
        except (Exception, Hung) as error:
            return error.with_traceback(None)
    return None


def shrunk(program: Program, most_seconds: float = 60.0) -> Program:
    """The shortest that is found in so many seconds."""
    until = time.monotonic() + most_seconds
    while True:
        for other in shorter(program):
            if time.monotonic() > until:
                return program
            if failure_of(other) is not None:
                program = other
                break
        else:
            return program
