"""The example that trains with Lightning, and what TensorBoard makes of its event files: by HTTP, and on its page."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil
import pytest

for needed in ("lightning", "skimage", "tensorboard", "torchvision"):
    pytest.importorskip(needed)

ROOT = Path(__file__).resolve().parents[2]
NUM_SAMPLES, BATCH_SIZE, STEPS_PER_LOG = 192, 16, 4  # of the example, with --quick; samples of an epoch
STAGES = ("fetch", "decode", "transform", "collate")
needs_browser = pytest.mark.skipif(
    shutil.which("chromium") is None or importlib.util.find_spec("playwright") is None,
    reason="needs chromium on PATH, and playwright",
)


def load(path: Path) -> Any:
    """A script, which is no module of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


drawing = load(ROOT / "docs/draw_tensorboard.py")


@dataclass(frozen=True)
class Run:
    logs: Path
    printed: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    logs = tmp_path_factory.mktemp("logs")
    warnings = ["-W", "error", "-W", "default:Training waited for data"]  # it may: with one thread
    command = [sys.executable, *warnings, drawing.EXAMPLE, "--quick", "--logs", logs]
    finished = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert finished.returncode == 0, finished.stdout
    return Run(logs, finished.stdout)


def asked(address: str, path: str, **query: str) -> Any:
    with urlopen(f"{address}data/plugin/scalars/{path}?{urlencode(query)}") as answer:
        return json.load(answer)


def written(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of each tag, out of the event file itself."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    [file] = folder.glob("events.out.tfevents.*")
    found: dict[str, list[tuple[int, float]]] = {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                found.setdefault(value.tag, []).append((event.step, float(make_ndarray(value.tensor))))
    return found


def test_the_example_goes_on_exactly_and_says_what_its_loaders_did(run: Run) -> None:
    assert "Same batches: yes (the last 5 of 24, pixel for pixel)" in run.printed
    epochs = re.findall(r"^Data of epoch (\d), train: (\d+) samples in .* % of a step\. \w+", run.printed, re.MULTILINE)
    assert epochs == [("0", "192"), ("1", "192"), ("1", "80")]
    tables = re.findall(r"^ +stage +runs in .*?^\d+ batches, (\d+) samples", run.printed, re.MULTILINE | re.DOTALL)
    assert tables == ["384", "80"]
    assert f"tensorboard --logdir {run.logs}\n" in run.printed


def test_the_example_does_not_write_over_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").touch()
    monkeypatch.setattr(sys, "argv", ["03_lightning.py", "--logs", str(tmp_path)])
    with pytest.raises(SystemExit, match="is not empty"):
        load(drawing.EXAMPLE).main()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_tensorboard_answers_with_what_the_monitor_wrote(run: Run) -> None:
    with drawing.tensorboard(run.logs) as address:
        tags = asked(address, "tags")
        assert set(tags) == {"whole", "resumed"}
        for name, has in tags.items():
            in_file = written(run.logs / name)
            assert set(has) == set(in_file)
            for tag in has:
                points = [(step, value) for _, step, value in asked(address, "scalars", run=name, tag=tag)]
                assert points == in_file[tag]


@pytest.mark.parametrize(("name", "first_step"), [("whole", 0), ("resumed", 19)])
def test_what_was_written_is_of_these_trainings(run: Run, name: str, first_step: int) -> None:
    found = written(run.logs / name)
    steps = [step for step in range(first_step, 24) if step % STEPS_PER_LOG == STEPS_PER_LOG - 1]
    for stage in STAGES:
        num_samples = [value for _, value in found[f"data/train/{stage}/samples"]]
        assert sum(num_samples) == BATCH_SIZE * (24 - first_step)
    for tag in ("wait_share", "samples_per_second", *(f"{stage}/busy_share" for stage in STAGES)):
        points = found[f"data/train/{tag}"]
        assert [step for step, _ in points] == steps
        assert all(0 <= value <= (1 if tag.endswith("share") else 10_000) for _, value in points)
    assert [step for step, _ in found["data/val/wait_share"]] == [step for step in (11, 23) if step > first_step]


@pytest.mark.browser
@needs_browser
def test_the_page_draws_a_chart_for_each_tag(run: Run, tmp_path: Path) -> None:
    with drawing.tensorboard(run.logs) as address, drawing.browser_page() as page:
        charts = drawing.show_charts(page, address, drawing.SHOWN, number_of=6)
        page.screenshot(path=tmp_path / "page.png")
    of_stages = {f"data/train/{stage}/busy_share" for stage in STAGES}
    assert set(charts) == {"data/train/wait_share", "data/train/samples_per_second", *of_stages}
    assert (tmp_path / "page.png").stat().st_size > 20_000
    assert not any(drawing.has_curve(chart.convert("L").convert("RGB")) for chart in charts.values())


@pytest.mark.browser
@needs_browser
def test_nothing_runs_on_after_an_error(run: Run) -> None:
    started: list[psutil.Process] = []
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    def fail() -> None:
        with drawing.tensorboard(run.logs), drawing.browser_page():
            started.extend(p for p in psutil.Process().children(recursive=True) if p.pid not in before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert len(started) >= 3  # TensorBoard, playwright's driver, Chromium
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_a_server_that_ends_at_once_has_said_why() -> None:
    with pytest.raises(RuntimeError, match=r"did not say where it is\. It said:\nno such option"):
        drawing.address_in(iter(["no such option"]))
