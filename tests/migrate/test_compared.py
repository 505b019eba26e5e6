"""``torchstage.compare``, which the guides name, finds that the scripts before and after give the same."""

import re
import shlex
import subprocess
import sys

import pytest

import torchstage

from .scripts import FOLDER, ROOT, script

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("torchvision")

CASES = {
    "dataloader": (None, "make_loader", "make_loader", {"set_epoch": True}),
    "dataloader, lines": (None, "make_lines_loader", "make_lines_loader", {}),
    "stateful_dataloader": ("torchdata.stateful_dataloader", "make_loader", "make_loader", {"set_epoch": True}),
    "stateful_dataloader, lines": ("torchdata.stateful_dataloader", "make_lines_loader", "make_lines_loader", {}),
    "spdl": ("spdl.pipeline", "make_loader", "make_loader", {"order": "any"}),
    "grain": ("grain", "make_loader", "make_loader", {"order": "any"}),
    "webdataset": ("webdataset", "make_loader", "make_stream_loader", {}),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.filterwarnings("ignore:unclosed file .*photographs-:ResourceWarning")  # WebDataset leaves them open
@pytest.mark.filterwarnings("ignore:StageLoader. 1 bad sample")  # SPDL's script has a broken photograph
@pytest.mark.filterwarnings("ignore:StageLoader. the dataset has no state")  # lines of DataLoader, and WebDataset
@pytest.mark.parametrize("case", CASES)
def test_compare_finds_no_difference_in_two_epochs_and_after_a_restart(case):
    peer, before, after, options = CASES[case]
    if peer is not None:
        pytest.importorskip(peer)
    name = case.split(",")[0]
    makers = getattr(script(f"{name}_before"), before), getattr(script(f"{name}_after"), after)
    found = torchstage.compare(*makers, timed_epochs=0, **options)
    assert found.equal, str(found)
    assert "restarted at batch" in str(found)


def test_compare_finds_a_difference_where_augmentations_are_drawn():
    before, after = (script(f"dataloader_{when}") for when in ("before", "after"))
    makers = (lambda: before.make_loader(before.AUGMENTED)), (lambda: after.make_loader(after.AUGMENTED))
    found = torchstage.compare(*makers, epochs=1, restart=None, timed_epochs=0)
    assert not found.equal
    assert found.differences


def commands():
    """What each guide says to run."""
    pages = sorted((ROOT / "docs").glob("migrate-from-*.md"))
    found = {
        page.stem: re.findall(r"^python -m torchstage compare .*$", page.read_text(), re.MULTILINE) for page in pages
    }
    assert all(len(lines) == 1 for lines in found.values())
    return {name: lines[0] for name, lines in found.items()}


@pytest.mark.parametrize("name", commands())
def test_the_commands_name_what_there_is(name):
    *_, reference, candidate = shlex.split(commands()[name])
    for named in (reference, candidate):
        path, _, maker = named.rpartition(":")
        assert (ROOT / path).parent == FOLDER
        assert f"\ndef {maker}(" in (ROOT / path).read_text()


@pytest.mark.timeout(600)  # it starts a process for each reading; 20 s of CPU time
def test_the_command_of_a_guide_says_that_they_are_equal():
    words = shlex.split(commands()["migrate-from-dataloader"])
    finished = subprocess.run(
        [sys.executable, *words[1:], "--timed-epochs", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert finished.returncode == 0, finished.stdout
    assert "EQUAL: 12 batches in 2 epochs" in finished.stdout
