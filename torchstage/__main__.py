"""Commands: ``python -m torchstage probe module:dataset_factory``.

Guarantees: what is wrong with the command is said in a line, with exit status 2; what fails while it runs, with 1.
"""

import argparse
import sys
from collections.abc import Sequence

from torchstage.probe.command import ProbeFailed, Request, probe


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    options = _parser().parse_args(arguments)
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
    parser = argparse.ArgumentParser(prog="python -m torchstage", description="torchstage's commands.")
    commands = parser.add_subparsers(required=True, metavar="command")
    probe_parser = commands.add_parser(
        "probe",
        help="measure a dataset with one thread, several threads and several processes",
        description="Loads your dataset with one thread, with several threads and with several processes, each in a "
        "fresh Python process, and recommends a setting.",
    )
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
