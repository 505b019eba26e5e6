"""``python -m tests.stress --minutes 30 --seed 1``: random programs until the time is over. ``--program`` runs one again."""

import argparse
import contextlib
import sys
import time
import traceback
from importlib import import_module

from tests.stress.program import Program, program_of, shorter
from tests.stress.running import Counts, Hung, run

ATTEMPTS = 3  # a race shows up now and then


def fails(program: Program, attempts: int = ATTEMPTS) -> BaseException | None:
    for _ in range(attempts):
        try:
            run(program)
        except (Exception, Hung) as error:
            return error
    return None


def shrunk(program: Program, most_seconds: float = 120) -> Program:
    until = time.monotonic() + most_seconds
    found = True
    while found and time.monotonic() < until:
        found = False
        for other in shorter(program):
            if time.monotonic() > until:
                break
            if fails(other) is not None:
                program, found = other, True
                break
    return program


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=float, default=0.1, help="share of the programs that may use processes")
    parser.add_argument("--program", type=int)
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--go-on", action="store_true")
    given = parser.parse_args()
    with contextlib.suppress(ModuleNotFoundError):  # uvloop opens a pipe with its first loop, and keeps it
        import_module("uvloop").new_event_loop().close()
    until = time.monotonic() + 60 * given.minutes
    counts = Counts()
    number = 0
    num_failed = 0
    while time.monotonic() < until:
        seed = given.program if given.program is not None else given.seed * 1_000_000 + number
        program = program_of(seed, has_processes=(seed * 7919) % 1000 < 1000 * given.processes)
        number += 1
        try:
            run(program, counts)
        except (Exception, Hung):
            num_failed += 1
            print(program)
            traceback.print_exc(limit=-6)
            if not given.no_shrink:
                less = shrunk(program)
                print("shorter", less, repr(fails(less)))
            sys.stdout.flush()
            if not given.go_on:
                return 1
        if given.program is not None:
            break
    print(counts, "failed:", num_failed)
    return num_failed != 0


if __name__ == "__main__":
    sys.exit(main())
