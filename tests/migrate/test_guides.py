"""The guides show what the scripts say: each excerpt is in the script that it names, each difference made anew."""

import ast
import difflib
import re

import pytest

from .scripts import FOLDER, ROOT

NAMES = ["dataloader", "stateful-dataloader", "spdl", "grain", "webdataset"]
SHOWN = re.compile(
    r"^<!-- (?P<scripts>[\w. ]+) -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(r"^```(?P<language>\w*)\n.*?^```$", re.MULTILINE | re.DOTALL)
GAPS = [  # as the guide that SPDL has for users of Grain calls them
    "Checkpointable iterator state and elastic resume",
    "Lazy random access after transformations",
    "Random-access and checkpointable mixture state",
    "Automatic per-record random keys",
    "Drop-in elastic global batching",
    "Dataset transformation introspection",
]
each_guide = pytest.mark.parametrize("name", NAMES)


def guide(name):
    return (ROOT / "docs" / f"migrate-from-{name}.md").read_text()


def source(script):
    return (FOLDER / script).read_text()


@each_guide
def test_each_excerpt_is_whole_and_in_its_script(name):
    shown = list(SHOWN.finditer(guide(name)))
    named = [script for one in shown for script in one["scripts"].split()]
    stem = name.replace("-", "_")
    assert {f"{stem}_before.py", f"{stem}_after.py"} <= set(named)
    for one in shown:
        if one["language"] == "py":
            for part in re.split(r"\n\n\n", one["text"].strip("\n")):
                assert whole_definitions(one["scripts"], part)


def whole_definitions(script, text):
    """Whether this is, character by character, a function or a class of the script."""
    whole = source(script)
    definitions = [node for node in ast.walk(ast.parse(whole)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert text in [ast.get_source_segment(whole, node) for node in definitions], f"{script} has no\n{text}"
    return True


@each_guide
def test_each_difference_is_that_of_its_scripts(name):
    for one in SHOWN.finditer(guide(name)):
        if one["language"] == "diff":
            before, after = (source(script).splitlines() for script in one["scripts"].split())
            lines = difflib.unified_diff(before, after, n=0, lineterm="")
            kept = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            assert one["text"].splitlines() == kept


@each_guide
def test_nothing_is_shown_that_is_not_checked(name):
    text = guide(name)
    checked = sum(one["language"] in ("py", "diff") for one in SHOWN.finditer(text))
    fences = [one["language"] for one in FENCE.finditer(text)]
    assert fences.count("py") + fences.count("diff") == checked
    assert set(fences) <= {"py", "diff", "python", "text", "sh"}


@each_guide
def test_each_guide_answers_the_same_questions(name):
    headings = re.findall(r"^## (.+)$", guide(name), re.MULTILINE)
    asked = ["What maps to what", "What stays the same", "What differs", "How to check", "Checkpoints"]
    assert [heading for heading in headings if heading in asked] == asked


def test_each_of_the_six_gaps_has_code_that_is_run():
    sections = re.split(r"^### ", guide("grain"), flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections] == GAPS
    assert all("```python" in section for section in sections)


def test_the_guides_can_be_found():
    for page in ("docs/index.md", "README.md"):
        text = (ROOT / page).read_text()
        assert [name for name in NAMES if f"migrate-from-{name}.md" not in text] == []
