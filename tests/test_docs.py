"""What the documents show is run here: their Python blocks, the output printed under them, and their links.

The blocks of a file run in order, in one namespace. A ```text block right after a ```python block is its
output; `...` in it stands for anything.
"""

import ast
import contextlib
import doctest
import io
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(#[^)]*)?\)")


@dataclass(frozen=True)
class Example:
    code: str
    first_line: int
    output: str | None  # None: not shown, so anything will do


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def examples_of(document: Path) -> list[Example]:
    text = document.read_text()
    blocks = list(FENCE.finditer(text))
    examples = []
    for block, after in itertools.pairwise([*blocks, None]):
        if block["language"] != "python":
            continue
        shows_output = after and after["language"] == "text" and not text[block.end() : after.start()].strip()
        first_line = text.count("\n", 0, block.start("text")) + 1
        examples.append(Example(block["text"], first_line, after["text"] if after and shows_output else None))
    return examples


def output_of(example: Example, document: Path, namespace: dict[str, Any]) -> str:
    """What the example prints. Empty lines before its code make tracebacks name the document's own lines."""
    code = compile("\n" * (example.first_line - 1) + example.code, str(document), "exec")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    return printed.getvalue()


@pytest.mark.timeout(300)  # docs/probe.md starts a dozen interpreters, each of which imports torch
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if examples_of(d)], ids=name_of)
def test_the_examples_of_a_document_run_and_print_what_it_says(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "example"}
    for example in examples_of(document):
        printed = output_of(example, document, namespace)
        if example.output is not None:
            is_right = doctest.OutputChecker().check_output(example.output, printed, doctest.ELLIPSIS)
            where = f"{name_of(document)}:{example.first_line}"
            assert is_right, f"{where} printed\n{printed}\ninstead of\n{example.output}"


@pytest.mark.parametrize("name", ["README.md", "docs/drop-in.md", "docs/errors.md", "docs/life-cycle.md"])
def test_the_documents_that_show_code_are_found(name):
    assert examples_of(ROOT / name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_links_of_a_document_lead_somewhere(document):
    targets = [link["target"] for link in LINK.finditer(FENCE.sub("", document.read_text()))]
    local = [target for target in targets if "://" not in target]
    missing = [target for target in local if not (document.parent / target).exists()]
    assert not missing


def test_every_argument_of_the_loader_is_explained():
    import inspect

    from torchstage import StageLoader

    explained = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs/drop-in.md").read_text(), re.MULTILINE))
    assert explained == set(inspect.signature(StageLoader).parameters)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_the_files_that_a_document_names_are_there(document):
    folders = [name for name in ("benchmarks", "docs", "examples", "tests") if (ROOT / name).is_dir()]  # of an archive
    named = re.findall(rf"`((?:{'|'.join(folders)})/[\w/.-]+)`", document.read_text())
    assert not [path for path in named if not (ROOT / path).exists()]


def test_the_modules_on_the_map_are_there():
    design = (ROOT / "docs/design.md").read_text()
    told = design[design.index("### What is where") : design.index("## Decisions")]
    names = {name for line in told.splitlines() for name in re.findall(r"`([\w/]+)(?:\.py)?`", line)}
    assert len(names) > 80
    package = ROOT / "torchstage"
    assert not [name for name in names if not ((package / f"{name}.py").is_file() or (package / name).is_dir())]


def test_the_messages_of_troubleshooting_are_those_that_are_printed():
    """Its quotes, in which dots stand for anything, are in string literals of the library, piece by piece."""
    quotes = re.findall(r"^> `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    assert quotes
    said = [words for path in (ROOT / "torchstage").rglob("*.py") for words in literals_of(path)]
    pieces = {piece.strip(" .,:;") for quote in quotes for piece in quote.split("...")} - {""}
    assert not [piece for piece in pieces if not any(piece in words for words in said)]


def literals_of(path: Path) -> list[str]:
    """Strings as the code has them; what an f-string puts in is left out."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            found.append("\0".join(part.value if isinstance(part, ast.Constant) else "" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found
