"""TensorBoard: a folder of event files in; its address, its page in headless Chromium and a picture of that out.

``python docs/draw_tensorboard.py`` runs examples/03_lightning.py, then makes docs/images/tensorboard.png of its files.

Guarantees: when a ``with`` block ends, by an error too, its processes have ended and its folder is gone.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/03_lightning.py"
PICTURE = ROOT / "docs/images/tensorboard.png"
SHOWN = "^data/train/(wait_share|samples_per_second|(collate|decode|fetch|transform)/busy_share)$"
PAGE_SIZE = {"width": 1360, "height": 1160}  # room for six charts
SETTINGS = {  # of TensorBoard's page, where it keeps them itself
    "ignoreOutliers": False,
    "scalarSmoothing": 0,
    "stepSelectorEnabled": False,
    "timeSeriesCardMinWidth": 440,
    "timeSeriesSettingsPaneOpened": False,
}
QUIET = (  # a browser that asks nobody but us
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
MAX_SECONDS, LOOK_SECONDS = 40, 0.25
MIN_SATURATION, MIN_PIXELS = 60, 40  # of a curve; all else in a chart is grey


@contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """The address of a TensorBoard that shows a folder."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--host", "127.0.0.1", "--port", "0"]
    # In one process, which has read everything when it says where it is.
    options = ["--load_fast", "false", "--reload_task", "blocking", "--reload_interval", "0"]
    server = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    with server.stdout:
        try:
            yield address_in(server.stdout)
        finally:
            server.kill()
            server.wait()


def address_in(lines: Iterator[str]) -> str:
    said: list[str] = []
    for line in lines:
        said.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
            return found[0]
    raise RuntimeError(f"TensorBoard ended and did not say where it is. It said:\n{''.join(said)}")


@contextmanager
def browser_page() -> Iterator[Any]:
    """An empty page of Chromium, as playwright has it."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as user_data, sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            user_data, executable_path=shutil.which("chromium"), args=QUIET, viewport=PAGE_SIZE
        )
        try:
            yield browser.new_page()
        finally:
            browser.close()


def show_charts(page: Any, address: str, pattern: str, number_of: int) -> dict[str, Image.Image]:
    """Let the page show the charts of some tags, and wait for their curves. The charts as they are seen, by tag.

    pattern: a regular expression for the tags.
    """
    page.add_init_script(f"localStorage.setItem('_tb_global_settings', {json.dumps(json.dumps(SETTINGS))})")
    page.goto(f"{address}?tagFilter={quote(pattern)}#timeseries")
    charts: dict[str, Image.Image] = {}
    for _ in range(int(MAX_SECONDS / LOOK_SECONDS)):
        charts = dict(map(tag_and_chart, page.locator("scalar-card:has(canvas)").all()))
        if len(charts) == number_of and all(has_curve(chart) for chart in charts.values()):
            page.locator("scalar-card").first.scroll_into_view_if_needed()
            return charts
        page.wait_for_timeout(LOOK_SECONDS * 1000)
    drawn = {tag: has_curve(chart) for tag, chart in charts.items()}
    raise TimeoutError(f"After {MAX_SECONDS} s TensorBoard's page has these charts, with a curve or not: {drawn}")


def tag_and_chart(card: Any) -> tuple[str, Image.Image]:
    tag = "".join(card.locator("tb-truncated-path").inner_text().split())
    with Image.open(BytesIO(card.locator("canvas").screenshot())) as picture:
        return tag, picture.convert("RGB")


def has_curve(chart: Image.Image) -> bool:
    num_pixels = chart.convert("HSV").getchannel("S").histogram()
    return sum(num_pixels[MIN_SATURATION:]) >= MIN_PIXELS


def draw(picture: Path) -> None:
    picture.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, EXAMPLE, "--logs", folder], check=True)
        with tensorboard(Path(folder)) as address, browser_page() as page:
            show_charts(page, address, SHOWN, number_of=6)
            page.screenshot(path=picture)


if __name__ == "__main__":
    draw(PICTURE)
