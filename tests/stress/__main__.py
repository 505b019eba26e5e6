"""``python -m tests.stress --minutes 30 --seed 1``: random programs of loaders until the time is over.

``--program N`` runs one of them again, and looks for a shorter one that fails as well.
"""

import argparse
import contextlib
import sys
import time
import traceback
from importlib import import_module

from tests.stress.around import Hung
from tests.stress.program import program_of_number
from tests.stress.running import Counts, run
from tests.stress.shrinking import failure_of, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=None, help="of the first program; the clock's, if there is none")
    parser.add_argument("--processes", type=float, default=0.1, help="the share of programs that may use processes")
    parser.add_argument("--program", type=int, help="run this one alone")
    parser.add_argument("--go-on", action="store_true", help="after a failure")
    given = parser.parse_args()
    with contextlib.suppress(ModuleNotFoundError):  # uvloop opens a pipe with its first loop, and keeps it
        import_module("uvloop").new_event_loop().close()
    seed = int(time.time()) if given.seed is None else given.seed
    numbers = iter([given.program]) if given.program is not None else iter(range(seed * 10**6, (seed + 1) * 10**6))
    print(f"seed {seed}", flush=True)
    until = time.monotonic() + 60 * given.minutes
    counts, num_failed = Counts(), 0
    for number in numbers:
        if time.monotonic() > until:
            break
        program = program_of_number(number, share_of_processes=given.processes)
        try:
            run(program, counts)
        except (Exception, Hung):
            num_failed += 1
            print(program, traceback.format_exc(), sep="\n", flush=True)
            if not given.go_on:
                less = shrunk(program)
                print(f"shorter: {less}\n{failure_of(less)!r}")
                break
    print(f"seed {seed}: {counts}; {num_failed} failed")
    return num_failed != 0


if __name__ == "__main__":
    sys.exit(main())
