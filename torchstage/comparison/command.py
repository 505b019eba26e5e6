"""Command: ``python -m torchstage compare module:reference module:candidate``: the arguments in, an exit status out.

Guarantees: 0: equal; 1: different; 2: what was asked for cannot be compared, said in a line.
"""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from torchstage.comparison.compare import compare
from torchstage.comparison.fresh import CannotCompare, Named

DESCRIPTION = (
    "Reads both loaders and compares each batch: values bit by bit, dtypes, shapes, types of containers, order; then "
    "time, CPU and memory. Each loader is made and read in a fresh process. Exit status: 0 equal, 1 different, 2 wrong "
    "usage."
)
EXAMPLE = "example: python -m torchstage compare train.py:old_loader train.py:new_loader --epochs 2"


def add_arguments(parser: argparse.ArgumentParser, spec: Callable[[str], str], positive: Callable[[str], int]) -> None:
    """``spec``, ``positive``: what checks a name, and a number."""
    add: Any = parser.add_argument
    for name in ("reference", "candidate"):
        words = f"a function that makes the {name}, called without arguments; or path/to/file.py:{name}"
        add(name, type=spec, metavar=f"module:{name}", help=words)
    add("--epochs", type=positive, default=2, metavar="N", help="epochs to compare, default: 2")
    add("--max-batches", type=positive, metavar="N", help="of each epoch, default: all")
    add("--ranks", type=positive, metavar="N", help="processes for each loader, with RANK and WORLD_SIZE set")
    add("--process-group", action="store_true", help="ranks: initialise torch.distributed with gloo")
    add("--order", choices=("exact", "any"), default="exact", help="any: the same samples, in whatever order")
    add("--restart", type=_restart, default="auto", metavar="BATCH", help="a number, no, or auto (default)")
    add("--seed", type=_seed, default=0, metavar="N", help="of the global generators, default: 0; or no")
    add("--set-epoch", action="store_true", help="call set_epoch before each epoch")
    add("--tolerance", type=_tolerance, metavar="R[,A]", help="of floating-point values: relative[,absolute]")
    add("--timeout", type=_seconds, metavar="S", help="seconds to wait for a batch")
    add("--timed-epochs", type=_whole, default=1, metavar="N", help="for time and memory, default: 1; 0: none")
    add("--max-differences", type=positive, default=10, metavar="N", help="shown, default: 10")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(options: Any) -> int:
    """Returns the exit status."""
    try:
        found = compare(
            Named(options.reference),
            Named(options.candidate),
            epochs=options.epochs,
            order=options.order,
            restart=options.restart,
            seed=options.seed,
            set_epoch=options.set_epoch,
            tolerance=options.tolerance,
            max_batches=options.max_batches,
            max_differences=options.max_differences,
            timeout=options.timeout,
            timed_epochs=options.timed_epochs,
            fresh_processes=True,
            ranks=options.ranks,
            process_group=options.process_group,
        )
    except (CannotCompare, TypeError, ValueError) as error:
        words = str(error).removeprefix("torchstage.compare: ")
        sys.stderr.write(f"torchstage compare: {words}\n")
        return 2
    sys.stdout.write((found.as_json() if options.json else str(found)) + "\n")
    return 0 if found.equal else 1


def _restart(text: str) -> "int | str | None":
    if text in ("auto", "no"):
        return None if text == "no" else text
    return _whole(text)


def _seed(text: str) -> int | None:
    return None if text == "no" else _whole(text)


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def _tolerance(text: str) -> tuple[float, float]:
    parts = text.split(",")
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, or two with a comma, got {text!r}")
    return values[0], values[1] if len(values) == 2 else 0.0


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")
    return value
