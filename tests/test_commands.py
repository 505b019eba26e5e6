"""``python -m torchstage``: what its help and version say, and that what is wrong is said in a line."""

import re
import subprocess
import sys
from typing import Any

import pytest
import torch

import torchstage
from torchstage import __main__ as commands
from torchstage.__main__ import main


def said(capsys: Any, *words: str) -> tuple[int, str, str]:
    """Exit status, and what was written to stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        main(words)
    written = capsys.readouterr()
    return int(end.value.code or 0), written.out, written.err


def names(capsys: Any) -> list[str]:
    _, out, _ = said(capsys, "--help")
    return re.findall(r"^    (\w+) ", out.partition("commands:")[2], re.MULTILINE)


def test_help_names_every_command_and_shows_how_to_call_it(capsys: Any) -> None:
    found = names(capsys)
    assert "probe" in found
    status, out, err = said(capsys, "--help")
    assert (status, err) == (0, "")
    for name in found:
        assert f"\n  python -m torchstage {name} " in out.partition("examples:")[2]


def test_the_help_of_a_command_has_examples_that_it_would_take(capsys: Any, monkeypatch: Any) -> None:
    asked = []
    monkeypatch.setattr(commands, "probe", lambda request, say: asked.append(request) or "a table")
    _, out, _ = said(capsys, "probe", "--help")
    _, general, _ = said(capsys, "--help")
    lines = [*re.findall(r"^  python -m torchstage (probe .*)$", out + general, re.MULTILINE)]
    assert len(lines) >= 4
    for line in lines:
        words = [word for word in line.split() if word != "--json"]
        assert main(words) == 0
    assert len(asked) == len(lines)


def test_version_says_what_a_report_of_a_fault_needs(capsys: Any) -> None:
    status, out, _ = said(capsys, "--version")
    assert status == 0
    python = ".".join(map(str, sys.version_info[:3]))
    assert out == f"torchstage {torchstage.__version__}, torch {torch.__version__}, Python {python}\n"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ([], "python -m torchstage --help"),
        (["prob"], "python -m torchstage --help"),
        (["probe"], "python -m torchstage probe --help"),
        (["probe", "module:make", "--workers", "3"], "python -m torchstage --help"),
        (["probe", "module:make", "--num-workers", "many"], "python -m torchstage probe --help"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_that_says_where_to_look(words: list[str], where: str, capsys: Any) -> None:
    status, out, err = said(capsys, *words)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert re.match(r"python -m torchstage( probe)?: error: ", err)
    assert err.endswith(f" See: {where}\n")


def test_ctrl_c_ends_a_command_without_a_traceback(capsys: Any, monkeypatch: Any) -> None:
    def interrupted(request: Any, say: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "probe", interrupted)
    assert main(["probe", "module:make"]) == 130
    assert capsys.readouterr().err == ""


def test_it_is_a_program() -> None:
    command = [sys.executable, "-m", "torchstage", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"torchstage {torchstage.__version__}, ")
