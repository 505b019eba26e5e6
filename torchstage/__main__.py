"""Commands: ``python -m torchstage probe module:dataset_factory``, ``python -m torchstage compare module:a module:b``.

Guarantees: what is wrong with the command is said in a line, with exit status 2; what fails while it runs, with 1; a
Ctrl-C ends it without a traceback, with 130.
"""

import argparse
import platform
import sys
from collections.abc import Sequence
from typing import NoReturn

import torch

from torchstage import __version__
from torchstage.comparison import command as comparison
from torchstage.probe.command import ProbeFailed, Request, probe

EXAMPLES = """\
examples:
  python -m torchstage probe my_data:Photographs
      My dataset is what Photographs() in my_data.py returns. Do threads or processes load it faster, how many
      samples a second do they give, and what should I write?
  python -m torchstage probe path/to/my_data.py:Photographs --batch-size 64 --num-workers 8 --json
      The same of a file anywhere, with my own settings, for another program to read.
  python -m torchstage compare train.py:old_loader train.py:new_loader
      Do two loaders give the same batches, bit by bit, also after a restart, and what does each of them cost?

"python -m torchstage COMMAND --help" tells the options of a command.
"""
PROBE_EXAMPLES = """\
examples:
  python -m torchstage probe my_data:Photographs
  python -m torchstage probe path/to/my_data.py:make_dataset --batch-size 64 --num-workers 8 --seconds 10
  python -m torchstage probe my_data:Tokens --collate my_data:pad --json

The recommendation is the simplest setting that gives 0.9 of the best one or more. docs/probe.md tells how to read the
table.
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where to look."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}. See: {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        return 130  # as a shell says of what SIGINT ended


def _probe(options: argparse.Namespace) -> int:
    request = Request(options.dataset, options.collate, options.batch_size, options.num_workers, options.seconds)
    try:
        report = probe(request, say=_tell)
    except ProbeFailed as error:
        _tell(f"torchstage probe: {error}")
        return 1
    sys.stdout.write((report.as_json() if options.json else str(report)) + "\n")
    return 0


def _tell(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m torchstage",
        description="torchstage's commands. The loader itself is torchstage.StageLoader: it takes DataLoader's place.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"torchstage {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(required=True, metavar="command", title="commands", dest="command")
    probe_parser = commands.add_parser(
        "probe",
        help="measure a dataset with one thread, several threads and several processes",
        description="Loads your dataset with one thread, with several threads and with several processes, each in a\n"
        "fresh Python process; tells what one thread alone lets expect of the others, and recommends a setting.",
        epilog=PROBE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    probe_parser.set_defaults(run=_probe)
    probe_parser.add_argument(
        "dataset",
        type=_spec,
        metavar="module:factory",
        help="a function or class that makes the dataset, called without arguments; or path/to/file.py:factory",
    )
    probe_parser.add_argument("--batch-size", type=_positive, default=32, metavar="N", help="default: 32")
    probe_parser.add_argument(
        "--num-workers", type=_positive, default=None, metavar="N", help="default: as many as cores may be used"
    )
    probe_parser.add_argument("--seconds", type=_seconds, default=5.0, metavar="S", help="for each, default: 5")
    probe_parser.add_argument("--collate", type=_spec, default=None, metavar="module:function", help="a collate_fn")
    probe_parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    compare_parser = commands.add_parser(
        "compare",
        help="check that two loaders give the same batches, and what each of them costs",
        description=comparison.DESCRIPTION,
        epilog=comparison.EXAMPLE,
    )
    compare_parser.set_defaults(run=comparison.run)
    comparison.add_arguments(compare_parser, _spec, _positive)
    return parser


def _spec(text: str) -> str:
    module, colon, name = text.rpartition(":")
    if not (colon and module and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form module:name or path/to/file.py:name")
    return text


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0 and below 3600, got {text!r}")
    return value


if __name__ == "__main__":
    sys.exit(main())
